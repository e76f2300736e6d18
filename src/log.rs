//! One process-wide log sink, silent until somebody sets it.

use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, PoisonError, RwLock, TryLockError};
use std::time::Duration;

/// How much to hear; each level includes those before it.
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

type Sink = Arc<dyn Fn(Level, &str) + Send + Sync>;

static LEVEL: AtomicI32 = AtomicI32::new(0);
static SINK: RwLock<Option<Sink>> = RwLock::new(None);

/// Sends the library's log lines up to `level` to `sink`; None is silent again.
pub fn set_logger(level: Level, sink: Option<Sink>) {
    let level = if sink.is_some() { level } else { Level::Off };
    let old = std::mem::replace(&mut *SINK.write().unwrap_or_else(PoisonError::into_inner), sink);
    LEVEL.store(level as i32, Ordering::SeqCst);
    drop(old);
}

/// Logs one line; the text is only made when somebody listens.
pub(crate) fn log(level: Level, text: impl FnOnce() -> String) {
    // Relaxed: a line more or less while the level changes does not matter.
    if LEVEL.load(Ordering::Relaxed) < level as i32 {
        return;
    }
    if let Some(sink) = current() {
        sink(level, &text());
    }
}

/// The sink, unless its lock stays taken: in the child of a fork it may belong to a thread that is
/// not there.
fn current() -> Option<Sink> {
    for _ in 0..100 {
        match SINK.try_read() {
            Ok(sink) => return sink.clone(),
            Err(TryLockError::Poisoned(poison)) => return poison.into_inner().clone(),
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    None
}
