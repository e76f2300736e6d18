//! Digest log of a process (also called: write-behind journal): rounds queue their records, and a thread
//! writes them.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::file::LogFile;
use super::record::{self, LogHead, RoundRecord};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::key::{Key, KeyNames};
use crate::log::{Level, log};
use crate::pool::without_signals;
use crate::sys::sync::{Condvar, Mutex};

/// Maximum records that wait for the thread: beyond them a slow disk loses records, and holds back no round.
const MOST_QUEUED: usize = 1 << 16;

/// Interval of the writes: a round wakes no thread.
const INTERVAL: Duration = Duration::from_millis(20);

/// Bytes of lines in one write.
const AT_ONCE: usize = 16 << 10;

/// Timeout of the last writes when a log is closed.
const LAST_WRITES: Duration = Duration::from_secs(10);

/// Maximum settings that a rotated file repeats.
const MOST_SETTINGS: usize = 64;

/// The digest log of one process.
pub(crate) struct DigestLog {
    shared: Arc<SharedQueue>,
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) all: bool,
}

struct SharedQueue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    entries: Vec<LogEntry>,
    /// Version of the last setting that was described.
    setting: Option<u64>,
    counts: LogCounts,
    is_closing: bool,
    has_ended: bool,
}

/// Lines of a log, and records that have none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LogCounts {
    pub(crate) rounds: u64,
    pub(crate) lost: u64,
}

enum LogEntry {
    Setting { version: u64, rule: String, codec: String },
    Round(RoundRecord),
}

impl DigestLog {
    /// Begins a log in a folder. The key's names are those of its store.
    pub(crate) fn open(
        folder: &Path,
        most_bytes: u64,
        head: LogHead,
        names: Arc<KeyNames>,
    ) -> Result<Self> {
        let all = head.all;
        let unable =
            |error| fail!(Io, "digest_log: cannot write to \"{}\": {error}", folder.display());
        let file = LogFile::create(folder, head, most_bytes).map_err(unable)?;
        let shared = Arc::new(SharedQueue { state: Mutex::default(), changed: Condvar::new() });
        let queue = Arc::clone(&shared);
        let thread = without_signals(|| {
            let named = std::thread::Builder::new().name("kvstore-digests".into());
            named.spawn(move || LogWriter::new(file, names).run(&queue))
        });
        let thread = Mutex::new(Some(thread.map_err(unable)?));
        Ok(Self { shared, thread, all })
    }

    /// Queues the record of a round. `describe` gives the rule and the codec of its setting, if they are new.
    pub(crate) fn add(&self, round: RoundRecord, describe: impl FnOnce() -> (String, String)) {
        let mut state = self.shared.state.lock();
        if state.is_closing || state.entries.len() >= MOST_QUEUED {
            state.counts.lost += 1;
            return;
        }
        if state.setting != Some(round.setting) {
            let (rule, codec) = describe();
            state.setting = Some(round.setting);
            state.entries.push(LogEntry::Setting { version: round.setting, rule, codec });
        }
        state.entries.push(LogEntry::Round(round));
    }

    pub(crate) fn counts(&self) -> LogCounts {
        self.shared.state.lock().counts
    }

    /// Writes what is queued, and the line of the end, which the thread does also after the deadline. Rounds
    /// added afterwards are lost.
    pub(crate) fn finish(&self, deadline: Deadline) {
        let most = Instant::now() + LAST_WRITES;
        let end = deadline.moment().map_or(most, |end| end.min(most));
        let mut state = self.shared.state.lock();
        state.is_closing = true;
        self.shared.changed.notify_all();
        while !state.has_ended {
            if self.shared.changed.wait_until(&mut state, end) {
                if Instant::now() >= most {
                    let text = "digest_log: closed with rounds that are not written";
                    log(Level::Warn, || text.into());
                }
                return;
            }
        }
        drop(state);
        let thread = self.thread.lock().take();
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for DigestLog {
    fn drop(&mut self) {
        self.finish(Deadline::Never);
    }
}

/// Writes the names of keys, which servers do not learn, beside the logs of the servers.
#[cfg(feature = "dist")]
pub(crate) fn log_names(folder: &Path, head: LogHead, names: &KeyNames) {
    let mut lines = String::new();
    names.each(|key, name| record::write_name(&mut lines, key.id(), &name.to_string_lossy()));
    if lines.is_empty() {
        return;
    }
    if let Err(error) = LogFile::write(folder, head, &lines) {
        log(Level::Warn, || format!("digest_log: names are not logged: {error}"));
    }
}

/// What the thread has.
struct LogWriter {
    file: LogFile,
    names: Arc<KeyNames>,
    lines: String,
    settings: BTreeMap<u64, (String, String)>,
    /// Last round of each slice, and how often its rounds have begun anew.
    keys: HashMap<(u64, u64), (u64, u64)>,
    /// Whether the last write failed.
    is_failing: bool,
}

impl LogWriter {
    fn new(file: LogFile, names: Arc<KeyNames>) -> Self {
        let (lines, settings, keys) = (String::new(), BTreeMap::new(), HashMap::new());
        Self { file, names, lines, settings, keys, is_failing: false }
    }

    fn run(mut self, shared: &SharedQueue) {
        let (mut entries, mut told) = (Vec::new(), 0);
        loop {
            let mut state = shared.state.lock();
            let end = Instant::now() + INTERVAL;
            while !state.is_closing && !shared.changed.wait_until(&mut state, end) {}
            std::mem::swap(&mut entries, &mut state.entries);
            let (is_closing, lost) = (state.is_closing, state.counts.lost);
            drop(state);
            let written = self.write(&mut entries, lost - told, is_closing);
            let mut state = shared.state.lock();
            state.counts.rounds += written.rounds;
            state.counts.lost += written.lost;
            if !self.is_failing {
                told = lost;
            }
            if is_closing {
                state.has_ended = true;
                shared.changed.notify_all();
                return;
            }
        }
    }

    /// Writes entries, and how many were lost since the last ones; gives how many are in the file, and how many
    /// could not be written.
    fn write(&mut self, entries: &mut Vec<LogEntry>, lost: u64, ends: bool) -> LogCounts {
        let mut counts = LogCounts::default();
        let mut waiting = 0;
        for entry in entries.drain(..) {
            match entry {
                LogEntry::Setting { version, rule, codec } => {
                    record::write_setting(&mut self.lines, version, &rule, &codec);
                    self.settings.insert(version, (rule, codec));
                    if self.settings.len() > MOST_SETTINGS {
                        self.settings.pop_first();
                    }
                }
                LogEntry::Round(round) => {
                    waiting += 1;
                    self.round(&round);
                }
            }
            if self.lines.len() >= AT_ONCE {
                self.append(&mut waiting, &mut counts);
            }
        }
        if lost > 0 {
            record::write_lost(&mut self.lines, lost);
        }
        if ends {
            record::write_end(&mut self.lines);
        }
        self.append(&mut waiting, &mut counts);
        counts
    }

    fn round(&mut self, round: &RoundRecord) {
        let (last, generation) = self.keys.entry((round.key, round.start)).or_default();
        *generation += u64::from(round.round <= *last);
        *last = round.round;
        let key = Key::from(round.key);
        let named = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        let name = if key.is_name() { self.names.with(key, named) } else { None };
        round.write(&mut self.lines, name.as_deref(), *generation);
    }

    /// Writes the lines, which have so many rounds.
    fn append(&mut self, rounds: &mut u64, counts: &mut LogCounts) {
        if self.lines.is_empty() {
            return;
        }
        let rounds = std::mem::take(rounds);
        match self.put(rounds) {
            Ok(()) => {
                counts.rounds += rounds;
                self.is_failing = false;
            }
            Err(error) => {
                counts.lost += rounds;
                if !self.is_failing {
                    log(Level::Error, || format!("digest_log: rounds are lost: {error}"));
                }
                self.is_failing = true;
            }
        }
        self.lines.clear();
    }

    fn put(&mut self, rounds: u64) -> std::io::Result<()> {
        if self.file.is_full() {
            let mut settings = String::new();
            for (version, (rule, codec)) in &self.settings {
                record::write_setting(&mut settings, *version, rule, codec);
            }
            self.file.rotate(&settings)?;
        }
        self.file.append(&self.lines, rounds)
    }
}
