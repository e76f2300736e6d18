//! One process-wide log sink, silent until the host sets one.

#[cfg(feature = "dist")]
use std::cell::RefCell;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// Verbosity of the log; each level includes those before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(i32)]
pub enum Level {
    /// Nothing.
    Off = 0,
    /// Bugs of this library.
    Error = 1,
    /// Things that lose work.
    Warn = 2,
    /// Stores opened and closed.
    Info = 3,
    /// Keys made and removed, updaters set, threads started.
    Debug = 4,
}

impl Level {
    pub(crate) fn from_number(level: i32) -> Option<Self> {
        let all = [Level::Off, Level::Error, Level::Warn, Level::Info, Level::Debug];
        all.into_iter().find(|known| *known as i32 == level)
    }
}

type LogSink = Arc<dyn Fn(Level, &str) + Send + Sync>;

static LEVEL: AtomicI32 = AtomicI32::new(0);
static SINK: RwLock<Option<LogSink>> = RwLock::new(None);

/// Sends the library's log lines up to `level` to `sink`; None is silent again.
pub fn set_logger(level: Level, sink: Option<LogSink>) {
    let level = if sink.is_some() { level } else { Level::Off };
    let old = std::mem::replace(&mut *SINK.write().unwrap_or_else(PoisonError::into_inner), sink);
    LEVEL.store(level as i32, Ordering::SeqCst);
    drop(old);
}

/// Logs one line; the text is only made when the level is enabled.
pub(crate) fn log(level: Level, text: impl FnOnce() -> String) {
    // Relaxed: a line more or less while the level changes does not matter.
    if LEVEL.load(Ordering::Relaxed) < level as i32 {
        return;
    }
    let text = text();
    #[cfg(feature = "dist")]
    let Some(text) = hold_back(level, text) else { return };
    tell(level, &text);
}

fn tell(level: Level, text: &str) {
    if let Some(sink) = current() {
        sink(level, text);
    }
}

#[cfg(feature = "dist")]
thread_local! {
    /// Buffered lines of this thread, until the end of `DeferredLog`.
    static WAITING: RefCell<Option<Vec<(Level, String)>>> = const { RefCell::new(None) };
}

/// While this lives, the lines of this thread are buffered. The sink is the host's code, and may
/// call the library, which must not be locked then.
#[cfg(feature = "dist")]
pub(crate) struct DeferredLog {
    is_first: bool,
}

#[cfg(feature = "dist")]
impl DeferredLog {
    pub(crate) fn begin() -> Self {
        let begin = |lines: &RefCell<Option<_>>| {
            let mut lines = lines.borrow_mut();
            let is_first = lines.is_none();
            lines.get_or_insert_default();
            is_first
        };
        // A thread that is about to end has no such slot any more, and logs its lines at once.
        Self { is_first: WAITING.try_with(begin).unwrap_or(false) }
    }
}

#[cfg(feature = "dist")]
impl Drop for DeferredLog {
    fn drop(&mut self) {
        if self.is_first {
            let lines = WAITING.try_with(RefCell::take).ok().flatten();
            lines.into_iter().flatten().for_each(|(level, text)| tell(level, &text));
        }
    }
}

/// Buffers a line, or returns it if no `DeferredLog` is alive.
#[cfg(feature = "dist")]
fn hold_back(level: Level, text: String) -> Option<String> {
    let mut text = Some(text);
    let _ = WAITING.try_with(|lines| {
        if let Some(lines) = &mut *lines.borrow_mut() {
            lines.extend(text.take().map(|text| (level, text)));
        }
    });
    text
}

/// The sink, unless its lock stays taken: in the child of a fork it may belong to a thread that is
/// not there.
fn current() -> Option<LogSink> {
    for _ in 0..100 {
        match SINK.try_read() {
            Ok(sink) => return sink.clone(),
            Err(TryLockError::Poisoned(poison)) => return poison.into_inner().clone(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}
