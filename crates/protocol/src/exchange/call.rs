//! One exchange of this worker, and its progress.

use std::collections::BTreeMap;

use super::{ExchangePlan, ExchangeTerms, PIECE};
use crate::job::{Data, Peer, Time};
use crate::message::kinds::LAST_STEP;

/// An exchange that has begun and not ended.
#[derive(Debug)]
pub(super) struct ExchangeCall<D> {
    plan: ExchangePlan<D>,
    pub(super) began: Time,
    pub(super) deadline: Time,
    /// By rank: bytes that are still to come, of contributions and of results.
    missing: Vec<[u64; 2]>,
    /// By rank: whether the contribution to it was sent.
    sent: Vec<bool>,
    /// By rank: whether it knows that this worker has begun.
    told: Vec<bool>,
    /// By rank: messages with lent data that it has not acknowledged.
    unacknowledged: Vec<usize>,
    /// Pieces that are not reduced.
    unreduced: u64,
    /// Pieces that wait for those of other ranks, by their offset.
    waiting: BTreeMap<u64, Vec<(u32, D)>>,
}

impl<D: Data> ExchangeCall<D> {
    pub(super) fn new(plan: ExchangePlan<D>, began: Time) -> Self {
        let (workers, deadline) = (plan.sends.len(), plan.deadline);
        let bytes = plan.receives.iter().zip(&plan.results);
        Self {
            began,
            deadline,
            missing: bytes.map(|(first, last)| [*first, *last]).collect(),
            sent: vec![false; workers],
            told: vec![false; workers],
            unacknowledged: vec![0; workers],
            unreduced: plan.reduces.div_ceil(PIECE),
            waiting: BTreeMap::new(),
            plan,
        }
    }

    pub(super) fn terms(&self) -> ExchangeTerms {
        self.plan.terms
    }

    pub(super) fn is_lent(&self) -> bool {
        self.plan.is_lent
    }

    pub(super) fn reduces(&self) -> bool {
        self.plan.reduces > 0
    }

    pub(super) fn reduced_bytes(&self) -> u64 {
        self.plan.reduces
    }

    pub(super) fn result_receivers(&self) -> &[u32] {
        &self.plan.result_receivers
    }

    /// The contribution for a rank that was not sent.
    pub(super) fn to_send(&self, rank: u32) -> Option<&D> {
        self.plan.sends.get(rank as usize)?.as_ref()
    }

    pub(super) fn take_to_send(&mut self, rank: u32) -> Option<D> {
        let data = self.plan.sends.get_mut(rank as usize)?.take()?;
        self.sent[rank as usize] = true;
        Some(data)
    }

    /// Whether a rank is to be told that this worker has begun: once, unless the contribution says so.
    pub(super) fn begins_for(&mut self, rank: u32) -> bool {
        let rank = rank as usize;
        !self.sent[rank] && !std::mem::replace(&mut self.told[rank], true)
    }

    pub(super) fn note_sent(&mut self, rank: u32, messages: usize) {
        self.unacknowledged[rank as usize] += messages;
    }

    pub(super) fn note_delivered(&mut self, rank: u32) {
        let messages = &mut self.unacknowledged[rank as usize];
        *messages = messages.saturating_sub(1);
    }

    pub(super) fn note_reduced(&mut self) {
        self.unreduced = self.unreduced.saturating_sub(1);
    }

    /// Whether anything of a rank is still to come.
    pub(super) fn awaits(&self, rank: u32) -> bool {
        self.missing[rank as usize] != [0, 0]
    }

    /// Whether the exchange cannot end without a rank.
    pub(super) fn needs(&self, rank: u32) -> bool {
        let gets_results = self.unreduced > 0 && self.plan.result_receivers.contains(&rank);
        self.awaits(rank)
            || self.to_send(rank).is_some()
            || gets_results
            || self.unacknowledged[rank as usize] > 0
    }

    /// All ranks to which this worker sends, or that send to it.
    pub(super) fn partners(&self) -> impl Iterator<Item = u32> + '_ {
        let takes_part = |rank: &u32| {
            let at = *rank as usize;
            let receives = self.plan.receives[at] > 0 || self.plan.results[at] > 0;
            let sends = self.sent[at] || self.plan.sends[at].is_some();
            receives || sends || self.plan.result_receivers.contains(rank)
        };
        (0u32..).take(self.sent.len()).filter(takes_part)
    }

    /// Bytes of the segment of a rank in a step.
    pub(super) fn expects(&self, rank: u32, step: u32) -> u64 {
        let lists = if step == LAST_STEP { &self.plan.results } else { &self.plan.receives };
        lists.get(rank as usize).copied().unwrap_or(0)
    }

    /// Whether a segment of this length is awaited.
    pub(super) fn fits(&self, rank: u32, step: u32, total: u64) -> bool {
        step <= LAST_STEP && total > 0 && self.expects(rank, step) == total
    }

    pub(super) fn note_received(&mut self, rank: u32, step: u32, bytes: u64) {
        let missing = &mut self.missing[rank as usize][step as usize];
        *missing = missing.saturating_sub(bytes);
    }

    /// Adds a piece; all pieces at its place, in the order of ranks, once all are there.
    pub(super) fn collect(&mut self, from: u32, at: u64, data: D) -> Option<Vec<(u32, D)>> {
        let expected = self.plan.receives.iter().filter(|bytes| **bytes > 0).count();
        let pieces = self.waiting.entry(at).or_default();
        pieces.push((from, data));
        if pieces.len() < expected {
            return None;
        }
        let mut pieces = self.waiting.remove(&at)?;
        pieces.sort_unstable_by_key(|(rank, _)| *rank);
        Some(pieces)
    }

    pub(super) fn is_complete(&self) -> bool {
        let has_all = self.missing.iter().all(|missing| *missing == [0, 0]);
        let has_sent = self.plan.sends.iter().all(Option::is_none);
        has_all
            && has_sent
            && self.unreduced == 0
            && self.unacknowledged.iter().all(|count| *count == 0)
    }

    /// Workers that have not begun the exchange; if all have, those that it waits for.
    pub(super) fn missing(&self, has_begun: &dyn Fn(u32) -> bool) -> Vec<Peer> {
        let named =
            |ranks: &mut dyn Iterator<Item = u32>| ranks.map(Peer::worker).collect::<Vec<_>>();
        let late = named(&mut self.partners().filter(|rank| !has_begun(*rank)));
        if !late.is_empty() {
            return late;
        }
        named(&mut self.partners().filter(|rank| self.needs(*rank)))
    }
}
