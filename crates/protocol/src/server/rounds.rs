//! Rounds of one slice (also: synchronous SGD, SSP): the order of contributions, the close of a round, and
//! the pulls that it answers.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use super::Workers;
use crate::job::{Data, Mode, Peer, Time};
use crate::message::ROUNDS_OVER;

/// A push that is held until its turn.
#[derive(Debug)]
pub(super) struct Contribution<D> {
    pub(super) data: D,
    /// Credit to return once the push is added.
    pub(super) paid: u64,
    pub(super) setting: u64,
    pub(super) codec: u16,
    /// Bits of its weight; 0 without one.
    pub(super) weight: u64,
    /// Its part of the tree of the round; 0 without one.
    pub(super) part: u64,
    /// Bits of what its round is scaled by; 0 without one.
    pub(super) scale: u64,
}

/// A held push, by round and rank.
type EarlyPush<D> = ((u64, u32), Contribution<D>);

/// A pull of the value after the worker's own push of a round, or behind all pushes (`ROUNDS_OVER`).
#[derive(Debug, Clone)]
pub(super) struct WaitingPull<D> {
    pub(super) rank: u32,
    pub(super) round: u64,
    pub(super) request: u64,
    pub(super) priority: i32,
    /// Query of the driver; None for the whole value.
    pub(super) wanted: Option<D>,
}

/// Next steps on a slice, in their order.
#[derive(Debug)]
pub(super) enum RoundStep<D> {
    Add { round: u64, rank: u32, first: bool, contribution: Contribution<D> },
    Close { round: u64, setting: u64 },
    Grant { rank: u32, round: u64 },
    Answer { pull: WaitingPull<D>, round: u64 },
}

/// Pushes and pulls of a slice that wait. A slice at rest has none: a job may have very many small keys.
#[derive(Debug)]
pub(super) struct SliceBacklog<D> {
    /// Held pushes, in the order of round and rank.
    held: Vec<EarlyPush<D>>,
    /// Offered pushes, and whether they are granted.
    offers: BTreeMap<(u64, u32), bool>,
    pulls: Vec<WaitingPull<D>>,
}

impl<D> Default for SliceBacklog<D> {
    fn default() -> Self {
        Self { held: Vec::new(), offers: BTreeMap::new(), pulls: Vec::new() }
    }
}

impl<D> SliceBacklog<D> {
    fn is_empty(&self) -> bool {
        self.held.is_empty() && self.offers.is_empty() && self.pulls.is_empty()
    }
}

/// Empty backlogs of slices that had one.
#[derive(Debug)]
#[expect(clippy::vec_box, reason = "slices have them behind a pointer")]
pub(super) struct SpareBacklogs<D>(Vec<Box<SliceBacklog<D>>>);

impl<D> Default for SpareBacklogs<D> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

/// Maximum number of backlogs that are kept.
const MOST_SPARE: usize = 16_384;

impl<D> SpareBacklogs<D> {
    /// The backlog of a slice.
    fn lend<'a>(
        &mut self,
        backlog: &'a mut Option<Box<SliceBacklog<D>>>,
    ) -> &'a mut SliceBacklog<D> {
        backlog.get_or_insert_with(|| self.0.pop().unwrap_or_default())
    }

    /// Takes the backlog of a slice at rest.
    pub(super) fn take_back(&mut self, slice: &mut Slice<D>) {
        let spare = slice.backlog.take_if(|backlog| backlog.is_empty());
        self.0.extend(spare.filter(|_| self.0.len() < MOST_SPARE));
    }
}

/// The rounds of one slice.
///
/// In rounds, contributions are added in the order of ranks: `next` is the rank in turn in the open round.
/// Without rounds every push is a round of its own, and `open` counts them.
#[derive(Debug)]
pub(super) struct Slice<D> {
    len: u64,
    open: u64,
    next: u32,
    added: u32,
    setting: u64,
    backlog: Option<Box<SliceBacklog<D>>>,
    /// Last added round of each rank; every round up to it was added.
    taken: SmallVec<[u64; 2]>,
    /// Arrival of the last push.
    came: Option<Time>,
}

impl<D: Data> Slice<D> {
    pub(super) fn new(len: u64, workers: u32) -> Self {
        Self {
            len,
            open: 1,
            next: 0,
            added: 0,
            setting: 0,
            backlog: None,
            taken: SmallVec::from_elem(0, workers as usize),
            came: None,
        }
    }

    /// The same slice, whose rounds go on from a number.
    pub(super) fn begin_at(mut self, base: u64, mode: Mode) -> Self {
        self.go_on_from(base, mode);
        self
    }

    /// Goes on from a round, once no worker pushes any more. Without rounds only the pushes of workers are counted
    /// anew.
    pub(super) fn go_on_from(&mut self, base: u64, mode: Mode) {
        debug_assert!(self.held().is_empty() && self.added == 0, "all rounds have closed");
        if mode == Mode::Sync {
            // A lost worker may have made more rounds than all others: these numbers come again.
            self.open = base.saturating_add(1);
            self.next = 0;
        }
        self.taken.fill(base);
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    fn taken(&self, rank: u32) -> u64 {
        self.taken.get(rank as usize).copied().unwrap_or(u64::MAX)
    }

    /// Whether a push is a duplicate.
    pub(super) fn has(&self, rank: u32, round: u64) -> bool {
        round <= self.taken(rank) || self.is_held(round, rank)
    }

    fn held(&self) -> &[EarlyPush<D>] {
        self.backlog.as_ref().map_or(&[], |backlog| &backlog.held)
    }

    fn pulls(&self) -> &[WaitingPull<D>] {
        self.backlog.as_ref().map_or(&[], |backlog| &backlog.pulls)
    }

    fn offers(&self) -> impl Iterator<Item = (&(u64, u32), &bool)> {
        self.backlog.iter().flat_map(|backlog| &backlog.offers)
    }

    fn place(&self, round: u64, rank: u32) -> Result<usize, usize> {
        self.held().binary_search_by_key(&(round, rank), |(name, _)| *name)
    }

    fn is_held(&self, round: u64, rank: u32) -> bool {
        self.place(round, rank).is_ok()
    }

    /// Removes a held contribution.
    fn take(&mut self, round: u64, rank: u32) -> Option<Contribution<D>> {
        let at = self.place(round, rank).ok()?;
        Some(self.backlog.as_mut()?.held.remove(at).1)
    }

    /// Whether a push was granted.
    pub(super) fn was_granted(&self, rank: u32, round: u64) -> bool {
        let offers = self.backlog.as_ref().map(|backlog| &backlog.offers);
        offers.is_some_and(|offers| offers.get(&(round, rank)) == Some(&true))
    }

    /// Whether a push is further ahead than `max_rounds_ahead`.
    pub(super) fn is_too_far(&self, round: u64, workers: &Workers) -> bool {
        let most = (self.open - 1).saturating_add(workers.limits.max_rounds_ahead);
        workers.limits.mode == Mode::Sync && round > most
    }

    /// Last push that a worker can have made: one that has arrived or is offered, or one that it may send
    /// ahead. The pushes are searched only if `round` is further ahead.
    pub(super) fn latest(&self, rank: u32, ahead: u64, round: u64) -> u64 {
        let near = (self.open - 1).saturating_add(ahead);
        if round <= near { near } else { near.max(self.made(rank)) }
    }

    /// Holds a push that is no duplicate.
    pub(super) fn push(
        &mut self,
        rank: u32,
        round: u64,
        contribution: Contribution<D>,
        spare: &mut SpareBacklogs<D>,
    ) {
        let place = self.place(round, rank);
        let backlog = spare.lend(&mut self.backlog);
        backlog.offers.remove(&(round, rank));
        if let Err(at) = place {
            backlog.held.insert(at, ((round, rank), contribution));
        }
    }

    /// Records the arrival of a push; returns the arrival of the one before it.
    pub(super) fn came(&mut self, now: Time) -> Option<Time> {
        self.came.replace(now)
    }

    /// Records a push that its worker holds back without credit.
    pub(super) fn offer(&mut self, rank: u32, round: u64, spare: &mut SpareBacklogs<D>) {
        if !self.has(rank, round) {
            spare.lend(&mut self.backlog).offers.entry((round, rank)).or_insert(false);
        }
    }

    pub(super) fn pull(&mut self, pull: WaitingPull<D>, spare: &mut SpareBacklogs<D>) {
        spare.lend(&mut self.backlog).pulls.push(pull);
    }

    /// Adds contributions in turn, closes rounds, and grants offers in turn. `pushes` are the announced
    /// pushes of workers that are done.
    pub(super) fn advance(
        &mut self,
        workers: &Workers,
        pushes: &[u64],
        steps: &mut Vec<RoundStep<D>>,
    ) {
        match workers.limits.mode {
            Mode::Sync => while self.advance_round(workers, pushes, steps) {},
            Mode::Async { staleness } => {
                while workers.ranks().any(|rank| self.take_next(rank, staleness, workers, steps)) {}
            }
        }
    }

    /// Advances the open round by rank; true when it closed.
    fn advance_round(
        &mut self,
        workers: &Workers,
        pushes: &[u64],
        steps: &mut Vec<RoundStep<D>>,
    ) -> bool {
        let round = self.open;
        while self.next < workers.limits.workers {
            let rank = self.next;
            if let Some(contribution) = self.take(round, rank) {
                debug_assert!(self.taken(rank) < round, "rank {rank} adds once to round {round}");
                self.setting = self.setting.max(contribution.setting);
                self.taken[rank as usize] = round;
                steps.push(RoundStep::Add { round, rank, first: self.added == 0, contribution });
                self.added += 1;
            } else if workers.is_awaited(rank, round, pushes) {
                self.grant(rank, round, steps);
                return false;
            }
            self.next += 1;
        }
        if self.added == 0 {
            self.next = 0;
            return false;
        }
        debug_assert!(
            self.held().iter().all(|((held, _), _)| *held > round),
            "round {round} closes without a push that has arrived"
        );
        steps.push(RoundStep::Close { round, setting: self.setting });
        self.open += 1;
        self.next = 0;
        self.added = 0;
        true
    }

    /// Without rounds: applies the next push of a rank, or grants it; true when one was applied.
    fn take_next(
        &mut self,
        rank: u32,
        staleness: Option<u64>,
        workers: &Workers,
        steps: &mut Vec<RoundStep<D>>,
    ) -> bool {
        let round = self.taken(rank).saturating_add(1);
        if staleness.is_some_and(|most| round > self.slowest(workers).saturating_add(most)) {
            return false;
        }
        if let Some(contribution) = self.take(round, rank) {
            let setting = contribution.setting;
            debug_assert!(!self.is_held(round, rank), "push {round} of rank {rank} is taken once");
            self.taken[rank as usize] = round;
            let count = self.open;
            steps.push(RoundStep::Add { round, rank, first: true, contribution });
            steps.push(RoundStep::Close { round: count, setting });
            self.open += 1;
            return true;
        }
        self.grant(rank, round, steps);
        false
    }

    /// Grants an offered push that is in turn.
    fn grant(&mut self, rank: u32, round: u64, steps: &mut Vec<RoundStep<D>>) {
        let backlog = self.backlog.as_mut();
        let offer = backlog.and_then(|backlog| backlog.offers.get_mut(&(round, rank)));
        if let Some(granted @ false) = offer {
            *granted = true;
            debug_assert!(round > self.taken[rank as usize], "a grant is for a push to come");
            steps.push(RoundStep::Grant { rank, round });
        }
    }

    /// Pushes of the slowest active worker, applied or not. The slowest worker itself is therefore never held
    /// back.
    fn slowest(&self, workers: &Workers) -> u64 {
        workers.active().map(|rank| self.made(rank)).min().unwrap_or(u64::MAX)
    }

    fn made(&self, rank: u32) -> u64 {
        let of_rank = |(_, other): &&(u64, u32)| *other == rank;
        let held =
            self.held().iter().map(|(name, _)| name).filter(of_rank).map(|(round, _)| *round);
        let offered = self.offers().map(|(name, _)| name).filter(of_rank).map(|(round, _)| *round);
        held.chain(offered).chain([self.taken(rank)]).max().unwrap_or(0)
    }

    /// Answers the pulls whose round has closed.
    pub(super) fn answer(
        &mut self,
        workers: &Workers,
        pushes: &[u64],
        steps: &mut Vec<RoundStep<D>>,
    ) {
        let waits = |pull: &WaitingPull<D>| pull.round == ROUNDS_OVER;
        let is_over = self.pulls().iter().any(waits)
            && workers.ranks().all(|rank| !self.may_push(rank, workers, pushes));
        let (open, taken) = (self.open, &self.taken);
        let closed = |pull: &WaitingPull<D>| match workers.limits.mode {
            _ if waits(pull) => is_over,
            Mode::Sync => pull.round < open,
            Mode::Async { .. } => {
                taken.get(pull.rank as usize).is_some_and(|taken| pull.round <= *taken)
            }
        };
        let Some(backlog) = &mut self.backlog else { return };
        backlog.pulls.retain(|pull| {
            let ready = closed(pull);
            if ready {
                steps.push(RoundStep::Answer { pull: pull.clone(), round: open - 1 });
            }
            !ready
        });
    }

    /// A worker is lost or has left: its pulls and offers are void, and so are its pushes behind a gap. Its
    /// other pushes still count. Returns the bytes that are no longer held.
    pub(super) fn forget(&mut self, gone: u32) -> u64 {
        let (mut next, mut bytes) = (self.taken(gone).saturating_add(1), 0);
        let Some(backlog) = &mut self.backlog else { return 0 };
        backlog.pulls.retain(|pull| pull.rank != gone);
        backlog.offers.retain(|(_, rank), _| *rank != gone);
        backlog.held.retain(|((round, rank), contribution)| {
            if *rank != gone || *round == next {
                next += u64::from(*rank == gone);
                return true;
            }
            bytes += contribution.data.len();
            false
        });
        bytes
    }

    /// Credit of held pushes, by rank.
    pub(super) fn paid(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        self.held().iter().map(|((_, rank), contribution)| (*rank, contribution.paid))
    }

    /// No round closes any more: returns the waiting pulls, and the bytes that were held.
    pub(super) fn give_up(&mut self) -> (Vec<WaitingPull<D>>, u64) {
        let Some(backlog) = self.backlog.take() else { return (Vec::new(), 0) };
        let held = backlog.held.iter();
        let bytes = held.map(|(_, contribution)| contribution.data.len()).sum();
        (backlog.pulls, bytes)
    }

    /// Whether a worker is not done, or some of its announced pushes are missing.
    fn may_push(&self, rank: u32, workers: &Workers, pushes: &[u64]) -> bool {
        workers.is_awaited(rank, self.taken(rank).saturating_add(1), pushes)
    }

    /// Workers that a round waits for, or the open round before it.
    pub(super) fn awaited(&self, round: u64, workers: &Workers, pushes: &[u64]) -> Vec<Peer> {
        let late = |rank: &u32| match workers.limits.mode {
            _ if round == ROUNDS_OVER => self.may_push(*rank, workers, pushes),
            Mode::Sync => {
                let open = self.open.min(round);
                let came = self.taken(*rank) >= open || self.is_held(open, *rank);
                !came && workers.is_awaited(*rank, open, pushes)
            }
            Mode::Async { staleness } => {
                let bound = self.made(*rank).saturating_add(staleness.unwrap_or(u64::MAX));
                workers.is_active(*rank) && round > bound
            }
        };
        workers.ranks().filter(late).map(Peer::worker).collect()
    }

    #[cfg(test)]
    pub(super) fn is_at_rest(&self) -> bool {
        self.backlog.as_ref().is_none_or(|backlog| backlog.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Contribution, Mode, ROUNDS_OVER, RoundStep, Slice, SpareBacklogs, WaitingPull, Workers,
    };
    use crate::job::Limits;
    use crate::sim::{Bytes, limits};

    fn workers(mode: Mode) -> Workers {
        let limits = Limits { workers: 3, mode, ..limits() };
        Workers { limits, here: vec![true; 3], done: vec![false; 3] }
    }

    fn push(slice: &mut Slice<Bytes>, rank: u32, round: u64) {
        let data = Bytes::new(&[0; 4]);
        let (weight, part, scale) = (0, 0, 0);
        let contribution =
            Contribution { data, paid: 4, setting: 0, codec: 0, weight, part, scale };
        slice.push(rank, round, contribution, &mut SpareBacklogs::default());
    }

    fn pull(slice: &mut Slice<Bytes>, rank: u32, round: u64) {
        let pull = WaitingPull { rank, round, request: 0, priority: 0, wanted: None };
        slice.pull(pull, &mut SpareBacklogs::default());
    }

    /// Steps in short: `+0` adds rank 0, `.` closes, `?1` grants rank 1, `!1` answers rank 1.
    fn steps(slice: &mut Slice<Bytes>, workers: &Workers) -> String {
        steps_of(slice, workers, [0; 3])
    }

    /// Steps in short, with the announced pushes of workers that are done.
    fn steps_of(slice: &mut Slice<Bytes>, workers: &Workers, pushes: [u64; 3]) -> String {
        let mut steps = Vec::new();
        slice.advance(workers, &pushes, &mut steps);
        slice.answer(workers, &pushes, &mut steps);
        let short = |step: &RoundStep<Bytes>| match step {
            RoundStep::Add { rank, .. } => format!("+{rank}"),
            RoundStep::Close { .. } => ".".into(),
            RoundStep::Grant { rank, .. } => format!("?{rank}"),
            RoundStep::Answer { pull, .. } => format!("!{}", pull.rank),
        };
        steps.iter().map(short).collect()
    }

    #[test]
    fn contributions_are_added_in_the_order_of_ranks_whatever_comes_first() {
        let (mut slice, workers) = (Slice::new(4, 3), workers(Mode::Sync));
        push(&mut slice, 2, 1);
        push(&mut slice, 1, 2);
        assert_eq!(steps(&mut slice, &workers), "");
        slice.offer(1, 1, &mut SpareBacklogs::default());
        assert_eq!(steps(&mut slice, &workers), "", "an offer waits for its turn");
        push(&mut slice, 0, 1);
        assert_eq!(steps(&mut slice, &workers), "+0?1");
        assert_eq!(steps(&mut slice, &workers), "", "one grant is enough");
        pull(&mut slice, 1, 1);
        push(&mut slice, 1, 1);
        assert_eq!(steps(&mut slice, &workers), "+1+2.!1");
        assert!(slice.has(1, 1) && slice.has(1, 2) && !slice.has(0, 2));
    }

    #[test]
    fn a_pull_behind_all_pushes_waits_for_whoever_may_still_push() {
        for mode in [Mode::Sync, Mode::Async { staleness: None }] {
            let (mut slice, mut workers) = (Slice::new(4, 3), workers(mode));
            let awaited = |slice: &Slice<Bytes>, workers: &Workers, pushes| {
                let peers = slice.awaited(ROUNDS_OVER, workers, pushes).into_iter();
                peers.map(|peer| peer.rank).collect::<Vec<_>>()
            };
            pull(&mut slice, 0, ROUNDS_OVER);
            (0..3).for_each(|rank| push(&mut slice, rank, 1));
            let first = steps(&mut slice, &workers);
            assert_eq!(first, if mode == Mode::Sync { "+0+1+2." } else { "+0.+1.+2." });
            assert_eq!(awaited(&slice, &workers, &[0; 3]), [0, 1, 2]);
            workers.done = vec![true, false, true];
            assert_eq!(steps_of(&mut slice, &workers, [1, 0, 2]), "", "one is at work");
            assert_eq!(awaited(&slice, &workers, &[1, 0, 2]), [1, 2]);
            workers.done[1] = true;
            assert_eq!(steps_of(&mut slice, &workers, [1, 1, 2]), "", "a push is on its way");
            assert_eq!(awaited(&slice, &workers, &[1, 1, 2]), [2]);
            push(&mut slice, 2, 2);
            assert_eq!(steps_of(&mut slice, &workers, [1, 1, 2]), "+2.!0");
            pull(&mut slice, 1, ROUNDS_OVER);
            assert_eq!(steps_of(&mut slice, &workers, [1, 1, 9]), "", "more are on their way");
            workers.here[2] = false;
            assert_eq!(steps_of(&mut slice, &workers, [1, 1, 9]), "!1", "and will never come");
        }
    }

    #[test]
    fn a_lost_worker_leaves_nothing_behind_a_gap() {
        let (mut slice, mut workers) = (Slice::new(4, 3), workers(Mode::Sync));
        [1, 2, 4].into_iter().for_each(|round| push(&mut slice, 2, round));
        slice.offer(2, 5, &mut SpareBacklogs::default());
        pull(&mut slice, 2, 1);
        workers.here[2] = false;
        assert_eq!(slice.forget(2), 4);
        for round in 1..=3 {
            push(&mut slice, 0, round);
            push(&mut slice, 1, round);
        }
        assert_eq!(steps(&mut slice, &workers), "+0+1+2.+0+1+2.+0+1.");
        assert!(slice.is_at_rest());
    }

    #[test]
    fn without_rounds_nobody_leads_the_slowest_by_more_than_the_bound() {
        let mode = Mode::Async { staleness: Some(1) };
        let (mut slice, mut workers) = (Slice::new(4, 3), workers(mode));
        (1..=3).for_each(|round| push(&mut slice, 0, round));
        assert_eq!(steps(&mut slice, &workers), "+0.");
        push(&mut slice, 1, 1);
        assert_eq!(steps(&mut slice, &workers), "+1.");
        slice.offer(2, 1, &mut SpareBacklogs::default());
        assert_eq!(steps(&mut slice, &workers), "+0.?2", "an offer is a push that was made");
        workers.done[1] = true;
        workers.done[2] = true;
        assert_eq!(steps(&mut slice, &workers), "+0.");
    }
}
