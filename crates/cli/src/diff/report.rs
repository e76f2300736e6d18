//! A comparison of digest logs as sentences.

use std::fmt::Write;

use super::compare::{Cause, Comparison, Difference, MergedBy, label};
use super::log::RunLog;

pub(super) fn text(found: &Comparison, a: &RunLog, b: &RunLog) -> String {
    let mut out = String::new();
    match &found.first {
        None => {
            let _ = writeln!(out, "same: {} rounds of {} keys", found.rounds, found.keys);
        }
        Some(first) => {
            let key = label(a, b, first.key);
            let _ = writeln!(out, "different: {key}, round {}: {}", first.round, sentence(first));
            let ((here, of_here), (next, of_next)) = (first.differ_here, first.differ_next);
            let _ = writeln!(
                out,
                "in round {} {here} of {of_here} keys differ, in round {} {next} of {of_next}",
                first.round,
                first.round.saturating_add(1)
            );
            if first.round > 1 {
                let _ = writeln!(out, "all keys are the same up to round {}", first.round - 1);
            }
        }
    }
    for note in &found.notes {
        let _ = writeln!(out, "note: {note}");
    }
    out
}

fn sentence(first: &Difference) -> String {
    match &first.cause {
        Cause::Contribution { differ, only_a, only_b, agree } => {
            let mut parts = Vec::new();
            if !differ.is_empty() {
                let verb = if differ.len() == 1 { "differs" } else { "differ" };
                parts.push(format!("the contribution of {} {verb}", ranks(differ)));
            }
            for (only, name) in [(only_a, "A"), (only_b, "B")] {
                if !only.is_empty() {
                    parts.push(format!("{} contributed in {name} only", ranks(only)));
                }
            }
            let agree = if agree.is_empty() {
                String::new()
            } else {
                let verb = if agree.len() == 1 { "agrees" } else { "agree" };
                format!("; {} {verb}", ranks(agree))
            };
            parts.join(", and ") + &agree
        }
        Cause::Value { known, by_rank, a, b } => {
            let inputs = match (known, by_rank) {
                (true, _) => "the same contributions make another value",
                (false, true) => {
                    "the value differs (the contributions are not logged on both sides; set digests=all)"
                }
                (false, false) => {
                    "the value differs (sums of other numbers of contributions are equal under \
                     sum_order=tree alone)"
                }
            };
            format!("{inputs}: {}", merging(a, b))
        }
        Cause::State { arrays } => {
            let names: Vec<String> = arrays.iter().map(|at| format!("array {at}")).collect();
            format!("the value is the same, the optimizer's state differs in {}", names.join(", "))
        }
        Cause::Missing { only_in_a, whole_key } => {
            let (has, lacks) = if *only_in_a { ("A", "B") } else { ("B", "A") };
            let what = if *whole_key { "the key" } else { "the round" };
            format!("{what} is in {has} and not in {lacks}")
        }
    }
}

/// In what two runs differ that merge the same contributions.
fn merging(a: &MergedBy, b: &MergedBy) -> String {
    let mut parts = Vec::new();
    let mut compare = |what: &str, here: &str, there: &str| {
        if here == there {
            return;
        }
        parts.push(format!("{what} is {here} in A and {there} in B"));
    };
    compare("the rule", &a.rule, &b.rule);
    compare("the version of the setting", &a.setting.to_string(), &b.setting.to_string());
    compare("the version of the library", &a.version, &b.version);
    compare("the instruction set", &a.isa, &b.isa);
    let weight = |it: &MergedBy| match &*it.weight {
        "" => "none".to_owned(),
        weight => weight.to_owned(),
    };
    compare("the sum of the weights", &weight(a), &weight(b));
    let merged = |it: &MergedBy| if it.failed { "failed" } else { "done" };
    compare("the merge", merged(a), merged(b));
    if parts.is_empty() {
        return format!(
            "rule ({}), setting {}, library {} and instruction set {} are the same",
            a.rule, a.setting, a.version, a.isa
        );
    }
    parts.join("; ")
}

fn ranks(ranks: &[u32]) -> String {
    let all: Vec<String> = ranks.iter().map(ToString::to_string).collect();
    match all.split_last() {
        Some((last, [])) => format!("rank {last}"),
        Some((last, others)) => format!("ranks {} and {last}", others.join(", ")),
        None => String::new(),
    }
}
