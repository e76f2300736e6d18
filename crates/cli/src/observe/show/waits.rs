//! Waiting calls, grouped over workers by their target.

use std::collections::BTreeMap;

use kvstore::View;

use super::units;

/// Minimum duration of a wait; shorter calls are at work.
pub(crate) const LONG_MS: u64 = 1_000;

/// Workers whose calls wait for one target.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) age_ms: u64,
    /// `pull  fc1.weight, round 812`.
    pub(crate) what: String,
    pub(crate) workers: Vec<u32>,
    pub(crate) awaited: Vec<String>,
}

/// Long waits, longest first.
pub(crate) fn of(view: &View) -> Vec<Wait> {
    let mut groups: BTreeMap<(String, Vec<String>), (u64, Vec<u32>)> = BTreeMap::new();
    for node in view.nodes.iter().filter(|node| node.role == "worker") {
        // The last report of a process that has gone shows no current wait.
        let facts = node.facts.as_ref().filter(|_| node.state != kvstore::State::Lost);
        let calls = facts.map_or(&[][..], |facts| &facts.waiting);
        for call in calls.iter().filter(|call| call.age_ms >= LONG_MS) {
            let key = call.key.as_ref().map_or_else(String::new, |key| format!(" {key}"));
            let round = match (call.round, &call.key) {
                (0, _) => String::new(),
                (round, Some(_)) => format!(", round {round}"),
                (number, None) => format!(" {number}"),
            };
            let what = format!("{}{key}{round}", call.call);
            let group = groups.entry((what, call.awaited.clone())).or_default();
            group.0 = group.0.max(call.age_ms);
            group.1.push(node.rank);
        }
    }
    let wait = |((what, awaited), (age_ms, workers))| Wait { age_ms, what, workers, awaited };
    let mut waits: Vec<Wait> = groups.into_iter().map(wait).collect();
    waits.sort_by_key(|wait| std::cmp::Reverse(wait.age_ms));
    waits
}

impl Wait {
    pub(crate) fn who(&self) -> String {
        let ranks: Vec<_> = self.workers.iter().take(6).map(ToString::to_string).collect();
        let more = if self.workers.len() > 6 { ", ..." } else { "" };
        let plural = if self.workers.len() > 1 { "s" } else { "" };
        format!("worker{plural} {}{more}", ranks.join(", "))
    }

    pub(crate) fn verb(&self) -> &'static str {
        if self.workers.len() > 1 { "wait" } else { "waits" }
    }

    pub(crate) fn whom(&self) -> String {
        match &self.awaited[..] {
            [] => "earlier calls of its own".into(),
            names => names.join(", "),
        }
    }

    pub(crate) fn age(&self) -> String {
        units::micros(self.age_ms * 1_000)
    }
}
