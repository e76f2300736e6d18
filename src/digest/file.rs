//! File of a digest log: whole lines, rotated, in a bounded number of bytes.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::record::LogHead;

/// Two files of half of the bytes: the newer one is written, and the older one replaced by it.
pub(super) struct LogFile {
    file: File,
    path: PathBuf,
    older: PathBuf,
    head: LogHead,
    most: u64,
    /// Bytes of whole lines in the file.
    bytes: u64,
    /// Rounds in each file, and those that are in none any more.
    rounds: u64,
    older_rounds: u64,
    dropped: u64,
}

impl LogFile {
    /// Writes a file with lines alone, of a process without rounds.
    #[cfg(feature = "dist")]
    pub(super) fn write(folder: &Path, head: LogHead, lines: &str) -> io::Result<()> {
        Self::create(folder, head, u64::MAX)?.put(lines)
    }

    /// Begins a file with a name of its own in a folder, which is made if it is not there.
    pub(super) fn create(folder: &Path, head: LogHead, most: u64) -> io::Result<Self> {
        fs::create_dir_all(folder)?;
        let number = RandomState::new().hash_one(std::process::id());
        let who = if head.servers == 0 { "local" } else { head.role };
        let name = format!("{who}-{number:016x}");
        let path = folder.join(format!("{name}.jsonl"));
        let older = folder.join(format!("{name}.old.jsonl"));
        let file = begin(&path)?;
        let mut log = Self {
            file,
            path,
            older,
            head,
            most,
            bytes: 0,
            rounds: 0,
            older_rounds: 0,
            dropped: 0,
        };
        log.put(&log.head.line(0))?;
        Ok(log)
    }

    /// Appends whole lines with so many rounds. After an error none of them is there.
    pub(super) fn append(&mut self, lines: &str, rounds: u64) -> io::Result<()> {
        self.put(lines)?;
        self.rounds += rounds;
        Ok(())
    }

    /// Whether the file has its share of the bytes.
    pub(super) fn is_full(&self) -> bool {
        self.bytes >= self.most / 2
    }

    /// Begins the next file, with lines that describe what follows.
    pub(super) fn rotate(&mut self, lines: &str) -> io::Result<()> {
        fs::rename(&self.path, &self.older)?;
        self.dropped += self.older_rounds;
        (self.older_rounds, self.rounds, self.bytes) = (self.rounds, 0, 0);
        self.file = begin(&self.path)?;
        self.put(&self.head.line(self.dropped))?;
        self.put(lines)
    }

    fn put(&mut self, lines: &str) -> io::Result<()> {
        let written = self.file.write_all(lines.as_bytes());
        match written {
            Ok(()) => self.bytes += lines.len() as u64,
            // A part of a line is no line.
            Err(_) => self.file.set_len(self.bytes).unwrap_or(()),
        }
        written
    }
}

/// A new file, readable by its owner and the group, to whose end lines go.
fn begin(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create_new(true).open(path)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};

    use super::{LogFile, LogHead};

    fn head() -> LogHead {
        LogHead { kind: "local", role: "worker", servers: 0, isa: "scalar", all: false }
    }

    #[test]
    fn a_full_disk_loses_lines_and_leaves_whole_ones() {
        let folder = std::env::temp_dir().join(format!("kvstore-full-{}", std::process::id()));
        let mut log = LogFile::create(&folder, head(), 1 << 20).unwrap();
        log.append("{\"one\":1}\n", 1).unwrap();
        let kept = std::mem::replace(
            &mut log.file,
            OpenOptions::new().append(true).open("/dev/full").unwrap(),
        );
        log.append("{\"two\":2}\n", 1).unwrap_err();
        log.file = kept;
        log.append("{\"three\":3}\n", 1).unwrap();
        assert_eq!(log.rounds, 2);
        let text = fs::read_to_string(&log.path).unwrap();
        assert!(text.ends_with("{\"one\":1}\n{\"three\":3}\n"), "{text}");
        assert_eq!(log.bytes, text.len() as u64);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_have_names_of_their_own() {
        let folder = std::env::temp_dir().join(format!("kvstore-names-{}", std::process::id()));
        let logs: Vec<_> =
            (0..20).map(|_| LogFile::create(&folder, head(), 1 << 20).unwrap()).collect();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), logs.len());
        fs::remove_dir_all(&folder).unwrap();
    }
}
