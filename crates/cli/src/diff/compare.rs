//! The first difference of two runs (also called: bisection of divergence), and its cause by elimination.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::bail;
use serde::Serialize;

use super::log::{KeyRound, RunLog};

/// What a comparison has found.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    /// Rounds and keys that both runs have.
    pub(super) rounds: usize,
    pub(super) keys: usize,
    pub(super) first: Option<Difference>,
    /// What was not compared, as sentences.
    pub(super) notes: Vec<String>,
}

/// The first difference.
#[derive(Debug, Serialize)]
pub(super) struct Difference {
    pub(super) key: u64,
    pub(super) name: Option<String>,
    pub(super) round: u64,
    #[serde(flatten)]
    pub(super) cause: Cause,
    /// Keys that differ in this round and in the next one, of those that both have.
    pub(super) differ_here: (usize, usize),
    pub(super) differ_next: (usize, usize),
}

/// What the runs differ in, where all before it is the same.
#[derive(Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "cause", rename_all = "snake_case")]
pub(super) enum Cause {
    /// The contributions of these ranks differ, or are in one run only.
    Contribution { differ: Vec<u32>, only_a: Vec<u32>, only_b: Vec<u32>, agree: Vec<u32> },
    /// The same contributions make another value.
    Value { known: bool, a: MergedBy, b: MergedBy },
    /// The same value has another state: these arrays.
    State { arrays: Vec<usize> },
    /// Only one run has the round, or the key at all.
    Missing { only_in_a: bool, whole_key: bool },
}

/// How a run merged a round.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct MergedBy {
    pub(super) rule: String,
    pub(super) setting: u64,
    pub(super) version: String,
    pub(super) isa: String,
    pub(super) failed: bool,
}

impl MergedBy {
    fn of(round: &KeyRound, log: &RunLog) -> Self {
        let all = |set: &BTreeSet<String>| set.iter().cloned().collect::<Vec<_>>().join(", ");
        Self {
            rule: round.rule.clone(),
            setting: round.setting,
            version: all(&log.versions),
            isa: all(&log.isas),
            failed: round.failed,
        }
    }
}

/// A round of a key in one run.
enum Found<'a> {
    Round(&'a KeyRound),
    /// The run has no such round.
    Never,
    /// Its line may be one that is not there.
    Unknown,
}

/// Compares the rounds of two runs.
pub(super) fn compare(a: &RunLog, b: &RunLog) -> anyhow::Result<Comparison> {
    let both: BTreeSet<u64> =
        a.keys.keys().copied().filter(|key| b.keys.contains_key(key)).collect();
    if both.is_empty() {
        bail!("the runs have no key in common: these are logs of different programs");
    }
    for key in &both {
        let (here, there) = (a.keys[key].bytes, b.keys[key].bytes);
        if here != there {
            let name = label(a, b, *key);
            bail!(
                "{name} has {here} bytes in A and {there} in B: these are logs of different programs"
            );
        }
    }
    let mut found = Comparison { rounds: 0, keys: both.len(), first: None, notes: notes(a, b) };
    let mut rounds: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for (key, log) in a.keys.iter().chain(&b.keys) {
        log.rounds.keys().for_each(|round| _ = rounds.entry(*round).or_default().insert(*key));
    }
    for (round, keys) in &rounds {
        let mut is_in_both = false;
        for key in keys {
            is_in_both |= both_rounds(a, b, *key, *round).is_some();
            let Some(cause) = cause(a, b, *key, *round) else { continue };
            let name = a.names.get(key).or_else(|| b.names.get(key)).cloned();
            let next = round.saturating_add(1);
            found.first = Some(Difference {
                key: *key,
                name,
                round: *round,
                cause,
                differ_here: count(a, b, &both, *round),
                differ_next: count(a, b, &both, next),
            });
            return Ok(found);
        }
        found.rounds += usize::from(is_in_both);
    }
    if found.rounds == 0 {
        bail!("the runs have no round in common");
    }
    Ok(found)
}

/// How a key is shown.
pub(super) fn label(a: &RunLog, b: &RunLog, key: u64) -> String {
    let number = || if key >> 63 == 0 { format!("key {key}") } else { format!("key {key:#018x}") };
    a.label(key).or_else(|| b.label(key)).unwrap_or_else(number)
}

fn notes(a: &RunLog, b: &RunLog) -> Vec<String> {
    let mut notes = Vec::new();
    for (name, log) in [("A", a), ("B", b)] {
        if log.open > 0 {
            notes.push(format!(
                "{name} has no end: a process of it runs, or was killed; rounds behind its last lines are \
                 not compared"
            ));
        }
        if log.dropped > 0 {
            let dropped = log.dropped;
            notes.push(format!("{name} has dropped its first {dropped} lines (digest_log_bytes)"));
        }
        if log.lost > 0 {
            let lost = log.lost;
            notes.push(format!("{name} has lost {lost} lines, as its disk was full or slow"));
        }
    }
    notes
}

fn find(log: &RunLog, key: u64, round: u64) -> Found<'_> {
    let Some(of_key) = log.keys.get(&key) else {
        let may_be = log.open > 0 || log.dropped > 0 || log.lost > 0;
        return if may_be { Found::Unknown } else { Found::Never };
    };
    if let Some(found) = of_key.rounds.get(&round) {
        return Found::Round(found);
    }
    let ends = (of_key.rounds.keys().next(), of_key.rounds.keys().next_back());
    let is_before = ends.0.is_none_or(|first| round < *first);
    let is_behind = ends.1.is_none_or(|last| round > *last);
    let may_be = log.lost > 0 || log.dropped > 0 && is_before || log.open > 0 && is_behind;
    if may_be { Found::Unknown } else { Found::Never }
}

fn both_rounds<'a>(
    a: &'a RunLog,
    b: &'a RunLog,
    key: u64,
    round: u64,
) -> Option<(&'a KeyRound, &'a KeyRound)> {
    match (find(a, key, round), find(b, key, round)) {
        (Found::Round(a), Found::Round(b)) => Some((a, b)),
        _ => None,
    }
}

/// In what a round of a key differs.
fn cause(a: &RunLog, b: &RunLog, key: u64, round: u64) -> Option<Cause> {
    match (find(a, key, round), find(b, key, round)) {
        (Found::Round(here), Found::Round(there)) => cause_of(here, there, a, b),
        (Found::Round(_), Found::Never) => {
            let whole_key = !b.keys.contains_key(&key);
            Some(Cause::Missing { only_in_a: true, whole_key })
        }
        (Found::Never, Found::Round(_)) => {
            let whole_key = !a.keys.contains_key(&key);
            Some(Cause::Missing { only_in_a: false, whole_key })
        }
        _ => None,
    }
}

fn cause_of(here: &KeyRound, there: &KeyRound, a: &RunLog, b: &RunLog) -> Option<Cause> {
    let known = !here.pushes.is_empty() && !there.pushes.is_empty();
    if known && here.pushes != there.pushes {
        let (mut differ, mut agree) = (Vec::new(), Vec::new());
        for (rank, run) in &here.pushes {
            match there.pushes.get(rank) {
                Some(other) if other == run => agree.push(*rank),
                Some(_) => differ.push(*rank),
                None => {}
            }
        }
        let only = |some: &KeyRound, other: &KeyRound| {
            some.pushes.keys().copied().filter(|rank| !other.pushes.contains_key(rank)).collect()
        };
        let (only_a, only_b) = (only(here, there), only(there, here));
        return Some(Cause::Contribution { differ, only_a, only_b, agree });
    }
    if here.value != there.value || here.failed != there.failed {
        let (a, b) = (MergedBy::of(here, a), MergedBy::of(there, b));
        return Some(Cause::Value { known, a, b });
    }
    if here.states == there.states || a.values_only || b.values_only {
        return None;
    }
    let most = here.states.len().max(there.states.len());
    let arrays = (0..most).filter(|at| here.states.get(*at) != there.states.get(*at)).collect();
    Some(Cause::State { arrays })
}

/// How many keys differ in a round, of those that both runs have in it.
fn count(a: &RunLog, b: &RunLog, keys: &BTreeSet<u64>, round: u64) -> (usize, usize) {
    let compared = keys.iter().filter(|key| both_rounds(a, b, **key, round).is_some());
    let differ = compared.clone().filter(|key| cause(a, b, **key, round).is_some());
    (differ.count(), compared.count())
}
