//! Lines of a digest log (also called: journal): one JSON object each.
//! docs/use/reproducibility.md has the format.

use std::fmt::Write;

use smallvec::SmallVec;

use super::RunDigest;

/// Version of the format of the lines.
pub(crate) const FORMAT: u32 = 1;

/// What describes the process that writes a log.
#[derive(Debug, Clone)]
pub(crate) struct LogHead {
    /// Type of the store.
    pub(crate) kind: &'static str,
    pub(crate) role: &'static str,
    /// Number of the servers of the job; 0 for a local store.
    pub(crate) servers: u32,
    pub(crate) isa: &'static str,
    /// Whether states and contributions have digests.
    pub(crate) all: bool,
}

impl LogHead {
    /// The first line of a file; `dropped` rounds that were logged before are in no file any more.
    pub(super) fn line(&self, dropped: u64) -> String {
        let Self { kind, role, servers, isa, all } = self;
        let digests = if *all { "all" } else { "values" };
        let mut line = format!(
            "{{\"kvstore_digests\":{FORMAT},\"version\":\"{}\",\"isa\":\"{isa}\",\"type\":\"{kind}\",\
             \"role\":\"{role}\",\"servers\":{servers},\"digests\":\"{digests}\",\"pid\":{},\
             \"dropped\":{dropped}",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
        );
        seal(&mut line, 0);
        line
    }
}

/// Digests of one closed round of a slice, or of one push of a local key.
#[derive(Debug, Clone)]
pub(crate) struct RoundRecord {
    pub(crate) key: u64,
    pub(crate) round: u64,
    /// Version of the setting by which it was merged.
    pub(crate) setting: u64,
    /// First byte of the slice in the key, and bytes of the whole key.
    pub(crate) start: u64,
    pub(crate) whole: u64,
    pub(crate) value: RunDigest,
    pub(crate) states: SmallVec<[RunDigest; 4]>,
    pub(crate) pushes: Contributions,
    /// Sum of the weights of the contributions; 0 if they had none.
    pub(crate) weight: f64,
    /// The round was not merged.
    pub(crate) failed: bool,
}

/// Digests of contributions, by rank; in a local store by place in the push.
pub(crate) type Contributions = SmallVec<[(u32, RunDigest); 4]>;

impl RoundRecord {
    /// Appends the line. `generation` counts how often the key has begun anew.
    pub(super) fn write(&self, out: &mut String, name: Option<&str>, generation: u64) {
        let first = out.len();
        put(out, "{\"key\":", self.key);
        if let Some(name) = name {
            out.push_str(",\"name\":");
            out.push_str(&text(name));
        }
        put(out, ",\"generation\":", generation);
        put(out, ",\"round\":", self.round);
        put(out, ",\"setting\":", self.setting);
        put(out, ",\"start\":", self.start);
        put(out, ",\"of\":", self.whole);
        out.push_str(",\"value\":");
        put_run(out, "[", self.value);
        for (at, run) in self.states.iter().enumerate() {
            put_run(out, if at == 0 { ",\"state\":[[" } else { ",[" }, *run);
        }
        out.push_str(if self.states.is_empty() { "" } else { "]" });
        for (at, (rank, run)) in self.pushes.iter().enumerate() {
            put(out, if at == 0 { ",\"pushes\":[[" } else { ",[" }, u64::from(*rank));
            put_run(out, ",", *run);
        }
        out.push_str(if self.pushes.is_empty() { "" } else { "]" });
        if self.weight != 0.0 {
            let _ = write!(out, ",\"weight\":{}", self.weight);
        }
        out.push_str(if self.failed { ",\"failed\":true" } else { "" });
        seal(out, first);
    }
}

/// Appends a number behind a text. Lines take a third of the time that `write!` needs.
fn put(out: &mut String, before: &str, number: u64) {
    out.push_str(before);
    out.push_str(itoa::Buffer::new().format(number));
}

/// Appends a digest in 16 hexadecimal digits and its bytes, behind a text, and closes the list.
fn put_run(out: &mut String, before: &str, run: RunDigest) {
    out.push_str(before);
    put_hex::<16>(out, run.sum);
    put(out, ",", run.len);
    out.push(']');
}

/// Appends a number in so many hexadecimal digits, in quotes.
fn put_hex<const DIGITS: usize>(out: &mut String, number: u64) {
    let mut digits = [0; DIGITS];
    for (at, digit) in digits.iter_mut().rev().enumerate() {
        *digit = b"0123456789abcdef"[usize::from((number >> (4 * at)).to_le_bytes()[0] & 15)];
    }
    out.push('"');
    out.push_str(std::str::from_utf8(&digits).unwrap_or_default());
    out.push('"');
}

/// Appends the line of a setting.
pub(super) fn write_setting(out: &mut String, version: u64, rule: &str, codec: &str) {
    let (rule, codec) = (text(rule), text(codec));
    let first = out.len();
    let _ = write!(out, "{{\"setting\":{version},\"rule\":{rule},\"codec\":{codec}");
    seal(out, first);
}

/// Appends the line of a name.
#[cfg(any(test, feature = "dist"))]
pub(super) fn write_name(out: &mut String, key: u64, name: &str) {
    let first = out.len();
    let _ = write!(out, "{{\"key\":{key},\"name\":{}", text(name));
    seal(out, first);
}

/// Appends the line that says how many rounds have none.
pub(super) fn write_lost(out: &mut String, lost: u64) {
    let first = out.len();
    let _ = write!(out, "{{\"lost\":{lost}");
    seal(out, first);
}

/// Appends the last line.
pub(super) fn write_end(out: &mut String) {
    let first = out.len();
    out.push_str("{\"end\":true");
    seal(out, first);
}

/// Ends the line that begins at `first` with its CRC-32C, so that an altered line is detected.
fn seal(out: &mut String, first: usize) {
    let sum = kvstore_checksum::crc32c(&out.as_bytes()[first..]);
    out.push_str(",\"crc\":");
    put_hex::<8>(out, sum.into());
    out.push_str("}\n");
}

/// A text as JSON has it.
fn text(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_else(|_| "\"\"".into())
}

#[cfg(test)]
mod tests {
    use smallvec::smallvec;

    use super::{LogHead, RoundRecord, write_name, write_setting};
    use crate::digest::RunDigest;

    #[test]
    fn lines_are_json() {
        let run = |sum, len| RunDigest { sum, len };
        let mut record = RoundRecord {
            key: 7,
            round: 3,
            setting: 2,
            start: 64,
            whole: 128,
            value: run(0xab, 64),
            states: smallvec![run(1, 64), run(2, 64)],
            pushes: smallvec![(0, run(3, 64)), (5, run(u64::MAX, 64))],
            weight: 0.0,
            failed: false,
        };
        let mut out = String::new();
        record.write(&mut out, Some("a \"name\"\n"), 1);
        let (line, seal) = out.split_once(",\"crc\":").unwrap();
        assert_eq!(seal, format!("\"{:08x}\"}}\n", kvstore_checksum::crc32c(line.as_bytes())));
        assert_eq!(
            line,
            "{\"key\":7,\"name\":\"a \\\"name\\\"\\n\",\"generation\":1,\"round\":3,\"setting\":2,\
             \"start\":64,\"of\":128,\"value\":[\"00000000000000ab\",64],\
             \"state\":[[\"0000000000000001\",64],[\"0000000000000002\",64]],\
             \"pushes\":[[0,\"0000000000000003\",64],[5,\"ffffffffffffffff\",64]]"
        );
        (record.states, record.pushes, record.failed) = (smallvec![], smallvec![], true);
        record.weight = 32.5;
        record.write(&mut out, None, 0);
        assert!(out.contains(",64],\"weight\":32.5,\"failed\":true,"), "{out}");
        write_setting(&mut out, 1, "sgd learning_rate=0.1", "none");
        write_name(&mut out, 1 << 63, "w");
        let head = LogHead { kind: "local", role: "worker", servers: 0, isa: "avx2", all: true };
        let head = head.line(5);
        for line in out.lines().chain(head.lines()) {
            let value: serde_json::Value = serde_json::from_str(line).unwrap();
            assert!(value.is_object());
        }
        assert_eq!((out.lines().count(), head.lines().count()), (4, 1));
    }
}
