//! One process-wide log sink, silent until somebody sets it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use parking_lot::RwLock;

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
    let old = std::mem::replace(&mut *SINK.write(), sink);
    LEVEL.store(level as i32, Ordering::SeqCst);
    drop(old);
}

/// Logs one line; the text is only made when somebody listens.
pub(crate) fn log(level: Level, text: impl FnOnce() -> String) {
    // Relaxed: a line more or less while the level changes does not matter.
    if LEVEL.load(Ordering::Relaxed) < level as i32 {
        return;
    }
    // Bounded: in the child of a fork the lock may belong to a thread that is not there.
    let sink = SINK.try_read_for(Duration::from_millis(100)).and_then(|sink| sink.clone());
    if let Some(sink) = sink {
        sink(level, &text());
    }
}
