//! Entry point for `fuzz/`: digest logs of two runs.

use std::path::Path;

use kvstore_checksum::crc32c;

use super::compare::compare;
use super::log::RunLog;
use super::report;

/// Two logs with an empty line between them, and in each files behind lines of `-`. Lines are read as they are,
/// and with a checksum that fits. A log is the same as itself, and its comparison with the other one is
/// printed.
pub(crate) fn logs(data: &[u8]) {
    let seal = |line: &[u8]| {
        [line, b",\"crc\":\"", format!("{:08x}", crc32c(line)).as_bytes(), b"\"}\n"].concat()
    };
    let as_they_are = |line: &[u8]| [line, b"\n"].concat();
    compared(data, &as_they_are);
    compared(data, &seal);
}

fn compared(data: &[u8], line: &dyn Fn(&[u8]) -> Vec<u8>) {
    let mut lines = data.split(|byte| *byte == b'\n');
    let one = read(&mut lines, line);
    let other = read(&mut lines, line);
    for (a, b, is_same) in [(&one, &one, true), (&one, &other, false), (&other, &one, false)] {
        let (Some(a), Some(b)) = (a, b) else { continue };
        let Ok(found) = compare(a, b) else { continue };
        assert!(!is_same || found.first.is_none(), "a log differs from itself: {found:?}");
        assert!(!report::text(&found, a, b).is_empty());
        assert!(serde_json::to_string(&found).is_ok());
    }
}

/// The log of the lines up to an empty one.
fn read<'a>(
    lines: &mut impl Iterator<Item = &'a [u8]>,
    line: &dyn Fn(&[u8]) -> Vec<u8>,
) -> Option<RunLog> {
    let mut files = vec![Vec::new()];
    for text in lines.by_ref().take_while(|text| !text.is_empty()) {
        match (text, files.last_mut()) {
            (b"-", _) => files.push(Vec::new()),
            (text, Some(file)) => file.extend(line(text)),
            _ => {}
        }
    }
    let mut log = RunLog::default();
    for (number, file) in files.iter().enumerate() {
        let path = format!("{number}{}.jsonl", if number == 1 { ".old" } else { "" });
        log.take_file(Path::new(&path), file).ok()?;
    }
    log.finish().ok()?;
    Some(log)
}

#[cfg(test)]
mod tests {
    #[test]
    fn logs_that_were_found_are_compared() {
        crate::fuzz::tests::replay("diff_log.tar", super::logs);
    }
}
