//! Digests of a job as plain text.

use std::fmt::Write;

use kvstore::JobDigests;

/// The rounds that other jobs have too, then the keys; empty without digests.
pub(crate) fn table(digests: &JobDigests) -> String {
    if digests.scope == "off" {
        return "\nno digests: the servers have the option digests=off\n".into();
    }
    let mut text = format!("\n{:>20}  {:>6}  digest of all values\n", "round", "keys");
    for round in &digests.rounds {
        let _ = writeln!(text, "{:>20}  {:>6}  {:016x}", round.round, round.keys, round.digest);
    }
    let head = ("key", "round", "value", "state");
    let _ = writeln!(text, "\n{:>20}  {:>6}  {:16}  {}", head.0, head.1, head.2, head.3);
    let hex = |digest: Option<u64>| digest.map_or("-".into(), |digest| format!("{digest:016x}"));
    for key in &digests.keys {
        let (value, state) = (hex(key.value), hex(key.state));
        let _ = writeln!(text, "{:>20}  {:>6}  {value:16}  {state}", key.key, key.round);
    }
    text
}

#[cfg(test)]
mod tests {
    use kvstore::{JobDigests, ObservedKey, RoundDigest};

    use super::table;

    #[test]
    fn a_table_has_rounds_and_keys() {
        let key = |key, value, state| ObservedKey { key, round: 5, value, state, earlier: vec![] };
        let digests = JobDigests {
            scope: "all",
            rounds: vec![RoundDigest { round: 4, keys: 2, digest: 0xab }],
            keys: vec![key(7, Some(1), Some(0xff)), key(u64::MAX, None, None)],
        };
        assert_eq!(
            table(&digests),
            "
               round    keys  digest of all values
                   4       2  00000000000000ab

                 key   round  value             state
                   7       5  0000000000000001  00000000000000ff
18446744073709551615       5  -                 -
"
        );
        let off = JobDigests { scope: "off", ..JobDigests::default() };
        assert!(table(&off).contains("digests=off"));
    }
}
