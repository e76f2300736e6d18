//! Reads the digest logs of a run: slices become whole keys, so that runs with other servers compare.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use kvstore_checksum::{crc32c, crc64};
use serde::Deserialize;

/// Version of the format that this program reads.
const FORMAT: u32 = 1;

/// A digest, and the number of bytes that it is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Run {
    pub(super) sum: u64,
    pub(super) len: u64,
}

impl Run {
    fn then(self, next: Self) -> Self {
        let sum = crc64::combine(self.sum, next.sum, next.len);
        Self { sum, len: self.len.saturating_add(next.len) }
    }
}

/// The log of one run.
#[derive(Debug, Default)]
pub(super) struct RunLog {
    pub(super) path: PathBuf,
    pub(super) kinds: BTreeSet<String>,
    pub(super) versions: BTreeSet<String>,
    pub(super) isas: BTreeSet<String>,
    /// States and contributions have no digests.
    pub(super) values_only: bool,
    pub(super) names: BTreeMap<u64, String>,
    /// Rounds of each key.
    pub(super) keys: BTreeMap<u64, KeyLog>,
    /// Rounds that were removed by rotation, and rounds without a line.
    pub(super) dropped: u64,
    pub(super) lost: u64,
    /// Files of rounds whose process has not closed them.
    pub(super) open: usize,
}

/// The rounds of one key, by their number since its first init.
#[derive(Debug, Default)]
pub(super) struct KeyLog {
    pub(super) bytes: u64,
    pub(super) rounds: BTreeMap<u64, KeyRound>,
    /// By generation and round, while files are read.
    read: BTreeMap<(u64, u64), Vec<SliceRound>>,
}

/// One round of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct KeyRound {
    pub(super) round: u64,
    pub(super) generation: u64,
    pub(super) setting: u64,
    /// Rule and codec with their options.
    pub(super) rule: String,
    pub(super) value: Run,
    pub(super) states: Vec<Run>,
    pub(super) pushes: BTreeMap<u32, Run>,
    /// Sum of the weights, as a text; empty without weights.
    pub(super) weight: String,
    pub(super) failed: bool,
}

#[derive(Debug)]
struct SliceRound {
    start: u64,
    round: KeyRound,
}

/// One line; which members it has says what it is.
#[derive(Debug, Deserialize)]
struct Line {
    kvstore_digests: Option<u32>,
    version: Option<String>,
    isa: Option<String>,
    r#type: Option<String>,
    digests: Option<String>,
    dropped: Option<u64>,
    setting: Option<u64>,
    rule: Option<String>,
    codec: Option<String>,
    key: Option<u64>,
    name: Option<String>,
    #[serde(default)]
    generation: u64,
    round: Option<u64>,
    #[serde(default)]
    start: u64,
    of: Option<u64>,
    value: Option<(String, u64)>,
    #[serde(default)]
    state: Vec<(String, u64)>,
    #[serde(default)]
    pushes: Vec<(u32, String, u64)>,
    weight: Option<f64>,
    #[serde(default)]
    failed: bool,
    lost: Option<u64>,
    end: Option<bool>,
}

/// What a file has said so far.
#[derive(Default)]
struct FileState {
    settings: BTreeMap<u64, String>,
    has_head: bool,
    has_rounds: bool,
    has_ended: bool,
}

impl RunLog {
    /// Reads a folder.
    pub(super) fn read(folder: &Path) -> anyhow::Result<Self> {
        let mut log = Self { path: folder.to_owned(), ..Self::default() };
        let mut files = Vec::new();
        let unable = || format!("cannot read the folder \"{}\"", folder.display());
        for entry in fs::read_dir(folder).with_context(unable)? {
            let path = entry.with_context(unable)?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                files.push(path);
            }
        }
        files.sort();
        if files.is_empty() {
            bail!("\"{}\" has no digest log: no file ends in .jsonl", folder.display());
        }
        for file in files {
            let bytes =
                fs::read(&file).with_context(|| format!("cannot read \"{}\"", file.display()))?;
            log.take_file(&file, &bytes)?;
        }
        log.finish()?;
        Ok(log)
    }

    /// Takes the lines of a file.
    pub(super) fn take_file(&mut self, path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
        // A part of a line at the end is one that a killed process has begun, or a running one writes now.
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let mut state = FileState::default();
        let is_older = path.to_string_lossy().ends_with(".old.jsonl");
        for (number, line) in (1..).zip(bytes[..whole].split_inclusive(|byte| *byte == b'\n')) {
            let line = line.strip_suffix(b"\n").unwrap_or(line);
            let read = read_line(line).and_then(|line| self.take(line, &mut state, is_older));
            read.with_context(|| format!("line {number} of \"{}\"", path.display()))?;
        }
        self.open += usize::from(state.has_rounds && !state.has_ended && !is_older);
        Ok(())
    }

    fn take(&mut self, line: Line, file: &mut FileState, is_older: bool) -> anyhow::Result<()> {
        if let Some(format) = line.kvstore_digests {
            if format != FORMAT {
                bail!(
                    "its format is {format}, and this program reads {FORMAT}: use its own kvstore"
                );
            }
            file.has_head = true;
            self.kinds.extend(line.r#type);
            self.versions.extend(line.version);
            self.isas.extend(line.isa);
            self.values_only |= line.digests.as_deref() != Some("all");
            if !is_older {
                self.dropped = self.dropped.saturating_add(line.dropped.unwrap_or(0));
            }
            return Ok(());
        }
        if !file.has_head {
            bail!("the file is no digest log: its first line does not say so");
        }
        file.has_ended |= line.end == Some(true);
        self.lost = self.lost.saturating_add(line.lost.unwrap_or(0));
        if let (Some(key), Some(name)) = (line.key, &line.name) {
            self.names.insert(key, name.clone());
        }
        if let (Some(version), Some(rule)) = (line.setting, &line.rule) {
            let codec = line.codec.filter(|codec| codec != "none");
            let text = codec.map_or(rule.clone(), |codec| format!("{rule}, codec {codec}"));
            file.settings.insert(version, text);
            return Ok(());
        }
        if line.round.is_some() {
            file.has_rounds = true;
            self.add(&line, file)?;
        }
        Ok(())
    }

    fn add(&mut self, line: &Line, file: &FileState) -> anyhow::Result<()> {
        let missing = "a member is missing";
        let (key, round) = (line.key.context(missing)?, line.round.context(missing)?);
        let (setting, bytes) = (line.setting.context(missing)?, line.of.context(missing)?);
        let run = |(sum, len): &(String, u64)| -> anyhow::Result<Run> {
            Ok(Run {
                sum: u64::from_str_radix(sum, 16).context("a digest is no number")?,
                len: *len,
            })
        };
        let push = |(rank, sum, len): &(u32, String, u64)| Ok((*rank, run(&(sum.clone(), *len))?));
        let value = run(line.value.as_ref().context(missing)?)?;
        let found = KeyRound {
            round,
            generation: line.generation,
            setting,
            rule: file.settings.get(&setting).cloned().unwrap_or_default(),
            value,
            states: line.state.iter().map(run).collect::<anyhow::Result<_>>()?,
            pushes: line.pushes.iter().map(push).collect::<anyhow::Result<_>>()?,
            weight: line.weight.map(|it| it.to_string()).unwrap_or_default(),
            failed: line.failed,
        };
        let log = self.keys.entry(key).or_default();
        if log.bytes != bytes && !log.read.is_empty() {
            bail!("the key has {bytes} bytes here and {} elsewhere: logs of two runs", log.bytes);
        }
        log.bytes = bytes;
        let slices = log.read.entry((line.generation, round)).or_default();
        if slices
            .iter()
            .any(|slice| slice.start == line.start && slice.round.value.len == value.len)
        {
            bail!(
                "round {round} of key {key} stands twice in the folder, which has the logs of more than one \
                 run; give each run a folder of its own"
            );
        }
        slices.push(SliceRound { start: line.start, round: found });
        Ok(())
    }

    /// Combines slices to whole keys, and numbers their rounds through all generations. A round of which a
    /// slice has no line is left out.
    pub(super) fn finish(&mut self) -> anyhow::Result<()> {
        if self.keys.is_empty() {
            bail!("\"{}\" has a digest log without a round", self.path.display());
        }
        if self.kinds.iter().any(|kind| kind.ends_with("async")) {
            bail!(
                "\"{}\" is the log of a dist_async job, whose pushes have no order that a second run has too",
                self.path.display()
            );
        }
        for log in self.keys.values_mut() {
            let (mut before, mut last) = (0_u64, (0, 0));
            for ((generation, round), slices) in std::mem::take(&mut log.read) {
                if generation != last.0 {
                    before = before.saturating_add(last.1);
                }
                last = (generation, round);
                if let Some(whole) = joined(slices, log.bytes) {
                    log.rounds.insert(before.saturating_add(round), whole);
                }
            }
        }
        Ok(())
    }

    /// How a key is shown.
    pub(super) fn label(&self, key: u64) -> Option<String> {
        self.names.get(&key).map(|name| format!("key {name:?}"))
    }
}

fn read_line(line: &[u8]) -> anyhow::Result<Line> {
    let damaged = "it is damaged";
    let text = std::str::from_utf8(line).context(damaged)?;
    let (before, seal) = text.rsplit_once(",\"crc\":\"").context(damaged)?;
    let sum = seal.strip_suffix("\"}").and_then(|sum| u32::from_str_radix(sum, 16).ok());
    if sum != Some(crc32c(before.as_bytes())) {
        bail!("{damaged}: its checksum differs");
    }
    serde_json::from_str(text).context(damaged)
}

/// The round of a whole key; None if a slice is missing.
fn joined(mut slices: Vec<SliceRound>, bytes: u64) -> Option<KeyRound> {
    slices.sort_by_key(|slice| slice.start);
    let mut slices = slices.into_iter();
    let first = slices.next()?;
    let (mut end, mut all) = (first.round.value.len, first.round);
    let mut is_whole = first.start == 0;
    for SliceRound { start, round } in slices {
        is_whole &= start == end;
        end = end.saturating_add(round.value.len);
        all.value = all.value.then(round.value);
        is_whole &= all.states.len() == round.states.len();
        all.states.iter_mut().zip(round.states).for_each(|(sum, next)| *sum = sum.then(next));
        is_whole &= all.pushes.keys().eq(round.pushes.keys());
        for (rank, next) in round.pushes {
            all.pushes.entry(rank).and_modify(|sum| *sum = sum.then(next));
        }
        all.setting = all.setting.max(round.setting);
        if all.rule != round.rule {
            all.rule = format!("{} and {}", all.rule, round.rule);
        }
        all.failed |= round.failed;
    }
    (is_whole && end == bytes).then_some(all)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test")]

    use std::fs;

    use kvstore_checksum::crc32c;
    use kvstore_protocol::testing::Random;

    use super::super::compare::compare;
    use super::super::report;
    use super::{RunLog, read_line};

    const HEAD: &str = r#"{"kvstore_digests":1,"version":"0.1.0","isa":"avx2","type":"dist_sync","digests":"all","dropped":0"#;
    const ROUND: &str = r#"{"key":7,"generation":0,"round":1,"setting":1,"start":0,"of":8,"value":["00000000000000ab",8],"state":[["0000000000000001",8]],"pushes":[[0,"0000000000000002",8],[1,"0000000000000003",8]]"#;

    fn sealed(line: &str) -> String {
        format!("{line},\"crc\":\"{:08x}\"}}\n", crc32c(line.as_bytes()))
    }

    /// Nothing in a file is trusted: forged lines with checksums that fit are read or refused.
    #[test]
    fn forged_lines_are_read_or_refused() {
        let folder = std::env::temp_dir().join(format!("kvstore-forged-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (mut random, mut read) = (Random::new(7), 0);
        let numbers = ["0", "1", "8", "18446744073709551615", "-1", "1e9", "null", "\"x\"", "[]"];
        for _ in 0..2_000 {
            let mut lines = sealed(HEAD);
            for _ in 0..=random.index(4) {
                let mut line = ROUND.to_owned();
                for _ in 0..random.index(3) {
                    let places: Vec<usize> =
                        line.match_indices([':', ',']).map(|it| it.0).collect();
                    let start = random.pick(&places) + 1;
                    let end =
                        line[start..].find([',', ']', ':']).map_or(line.len(), |it| start + it);
                    line.replace_range(start..end, random.pick(&numbers));
                }
                lines += &sealed(&line);
            }
            fs::write(folder.join("server.jsonl"), lines).unwrap();
            if let Ok(log) = RunLog::read(&folder) {
                read += 1;
                let other = RunLog::read(&folder).unwrap();
                if let Ok(found) = compare(&log, &other) {
                    assert!(found.first.is_none(), "{}", report::text(&found, &log, &other));
                }
            }
        }
        fs::remove_dir_all(&folder).unwrap();
        assert!((100..1_900).contains(&read), "{read}");
    }

    #[test]
    fn an_altered_byte_of_a_line_is_noticed() {
        let line = sealed(ROUND);
        let line = line.trim_end().as_bytes();
        assert!(read_line(line).is_ok());
        for at in 0..line.len() {
            let mut altered = line.to_vec();
            altered[at] ^= 1;
            assert!(read_line(&altered).is_err(), "byte {at}");
        }
    }
}
