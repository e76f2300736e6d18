//! Task queue of one slice on a server (also called: actor, strand): tasks run in order, by one thread at a
//! time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::round_weights::ContributionInfo;
use super::slice_context::SliceContext;
use super::slice_digests::{RoundEnd, SliceDigests};
use super::slice_merge::Divided;
use super::slice_value::SliceValue;
use crate::codec::Origin;
use crate::error::{Result, fail};
use crate::job::encoding;
use crate::local::Local;
use crate::local::merge::StepDigester;
use crate::local::merger::{Handling, Merger};
use crate::local::table::Slot;
use crate::runtime::{BlockPool, Bytes};
use crate::sys;
use crate::sys::sync::Mutex;
use crate::trace::{SliceWork, Tracer, WorkSpan};
use kvstore_protocol::{Failure, Reason, ValueRequest};

/// Bytes of a cache line.
const LINE: usize = 64;

/// Task of a slice; tasks run in the order of the queue.
pub(super) enum SliceTask {
    Install(Bytes),
    /// With a handling, `data` is encoded by its codec, or is `rows`. Sums are `by_tree` or by rank.
    Add {
        first: bool,
        by_tree: bool,
        rows: bool,
        data: Bytes,
        origin: Origin,
        info: ContributionInfo,
        handling: Option<Arc<Handling>>,
    },
    Restore(Bytes, Arc<Handling>),
    Close {
        round: u64,
        by_tree: bool,
        handling: Arc<Handling>,
    },
    /// With the handling in force, for a request of the whole state.
    Answer(ValueRequest<Bytes>, Option<Arc<Handling>>),
}

/// Value for an answer, or the failure.
pub(super) type SliceReply = (ValueRequest<Bytes>, std::result::Result<Bytes, Failure>);

pub(super) struct SliceQueue {
    slot: Slot,
    /// Number in the key.
    slice: u32,
    /// Index of its first codec block in the key.
    block: u64,
    /// The key has no other slice.
    whole: bool,
    queue: Mutex<TaskQueue>,
    /// Round of the last contribution.
    round: AtomicU64,
    /// Digests of its rounds, if the server makes them.
    digests: Option<Box<SliceDigests>>,
}

/// Tasks of one slice. Lists are lent to slices that have tasks.
pub(super) type TaskList = Box<Vec<SliceTask>>;

struct TaskQueue {
    jobs: Option<TaskList>,
    /// None while a thread works on the slice: it has the state, and looks at the queue again before it stops.
    state: Option<SliceValue>,
}

impl SliceQueue {
    pub(super) fn new(
        slot: Slot,
        slice: u32,
        (block, whole): (u64, bool),
        digests: Option<Box<SliceDigests>>,
    ) -> Self {
        let queue = Mutex::new(TaskQueue { jobs: None, state: Some(SliceValue::default()) });
        Self { slot, slice, block, whole, queue, round: AtomicU64::new(0), digests }
    }

    /// Begins the span of a task; the span ends when the returned guard is dropped.
    fn begin<'a>(&self, job: &SliceTask, tracer: &'a Tracer) -> Option<WorkSpan<'a>> {
        // Relaxed: one thread at a time works on a slice.
        let (is_sum, round) = match job {
            SliceTask::Add { origin, .. } => {
                self.round.store(origin.round + 1, Ordering::Relaxed);
                (true, origin.round + 1)
            }
            SliceTask::Close { .. } => (false, self.round.load(Ordering::Relaxed)),
            _ => return None,
        };
        let (key, slice) = (self.slot.key.id(), self.slice);
        Some(tracer.work(SliceWork { is_sum, key, slice, round }))
    }

    /// Prefetches it: a task follows soon.
    pub(super) fn announce(&self) {
        let start = std::ptr::from_ref(self).cast::<u8>();
        (0..size_of::<Self>()).step_by(LINE).for_each(|at| sys::prefetch(start.wrapping_add(at)));
    }

    pub(super) fn first_block(&self) -> u64 {
        self.block
    }

    /// Its digests, if the server makes them.
    pub(super) fn digests(&self) -> Option<&SliceDigests> {
        self.digests.as_deref()
    }

    /// Bytes of the stored value.
    pub(super) fn bytes(&self) -> usize {
        self.slot.bytes()
    }

    /// Queues tasks, which the list has no longer then; `list` gives an empty list if the slice has none.
    pub(super) fn post(&self, jobs: &mut Vec<SliceTask>, list: impl FnOnce() -> TaskList) {
        self.queue.lock().jobs.get_or_insert_with(list).append(jobs);
    }

    /// Runs the queued tasks, unless another thread already does; gives their list, which is empty then.
    pub(super) fn work(
        &self,
        local: &Local,
        tracer: &Tracer,
        blocks: &Arc<BlockPool>,
        reply: &mut dyn FnMut(SliceReply),
    ) -> Option<TaskList> {
        let mut queue = self.queue.lock();
        let (mut state, mut jobs) = (queue.state.take()?, None::<TaskList>);
        while queue.jobs.as_ref().is_some_and(|queued| !queued.is_empty()) {
            std::mem::swap(&mut queue.jobs, &mut jobs);
            drop(queue);
            for job in jobs.iter_mut().flat_map(|jobs| jobs.drain(..)) {
                // A subscriber may run code of the program when the span begins and ends: nothing is locked.
                let span = self.begin(&job, tracer);
                let of = SliceContext { slot: &self.slot, local, blocks, digester: None };
                self.one(&mut state, job, of, reply);
                drop(span);
            }
            queue = self.queue.lock();
        }
        queue.state = Some(state);
        jobs
    }

    /// Adds a contribution to the open round, or records why it cannot be added.
    fn add(&self, state: &mut SliceValue, of: SliceContext<'_>, task: SliceTask) {
        let SliceTask::Add { first, by_tree, rows, data, origin, info, handling } = task else {
            return;
        };
        if let Err(error) = state.weights.add(first, origin.rank, info) {
            state.lose(error);
        }
        let added = if !first && of.slot.dtype.is_opaque() {
            let dtype = of.slot.dtype.name();
            Err(fail!(Unsupported, "values of {dtype} are not added, and two were pushed"))
        } else if rows {
            self.digests().inspect(|it| it.add_rows(first, origin.rank, &data, of.slot));
            state.begin(first);
            state.add_rows(origin.rank, data);
            Ok(())
        } else if by_tree {
            self.digests().inspect(|it| it.add(first, origin.rank, &data));
            state.add_to_tree(of, first, origin.rank, data)
        } else {
            let round = origin.round.wrapping_add(state.ahead(origin.rank));
            decode(of, data, Origin { round, ..origin }, handling).and_then(|data| {
                self.digests().inspect(|it| it.add(first, origin.rank, &data));
                state.add(of, first, data)
            })
        };
        if let Err(error) = added {
            state.lose(error);
        }
    }

    fn one(
        &self,
        state: &mut SliceValue,
        job: SliceTask,
        of: SliceContext<'_>,
        reply: &mut dyn FnMut(SliceReply),
    ) {
        of.local.fault("slice");
        let result = match job {
            SliceTask::Install(data) => {
                self.digests().inspect(|it| it.replaced());
                state.install(of, data)
            }
            SliceTask::Restore(data, handling) => {
                self.digests().inspect(|it| it.replaced());
                state.restore(of, &data, &handling)
            }
            add @ SliceTask::Add { .. } => {
                self.add(state, of, add);
                Ok(())
            }
            SliceTask::Close { round, by_tree, handling } => {
                self.close(state, of, (round, by_tree), &handling)
            }
            SliceTask::Answer(answer, handling) => {
                let known = handling.as_ref().and_then(|_| self.digests()?.value());
                let wanted = answer.wanted.as_ref().and_then(Bytes::in_block).unwrap_or(&[]);
                let value = state.answer(of, wanted, (handling.as_deref(), known));
                reply((answer, value));
                Ok(())
            }
        };
        if let Err(error) = result {
            let key = of.local.keys.names.label(self.slot.key);
            let reason = match error.kind() {
                crate::ErrorKind::Callback => Reason::Callback,
                crate::ErrorKind::Differs => Reason::Differs,
                crate::ErrorKind::DtypeMismatch => Reason::DtypeMismatch,
                _ => Reason::Invalid,
            };
            let text = format!("on the server: {key}: {}", error.message());
            crate::log::log(crate::Level::Error, || text.clone());
            state.set_failure(Some(Failure::new(reason, text)));
        }
    }

    /// Merges a round, and digests the result.
    fn close(
        &self,
        state: &mut SliceValue,
        of: SliceContext<'_>,
        (round, by_tree): (u64, bool),
        handling: &Handling,
    ) -> Result<()> {
        state.set_failure(None);
        let merger = handling.merger_of(self.slot.key);
        let divisor = state.weights.close(of.slot.dtype);
        let digests = self.digests();
        let digester = StepDigester::new(digests.is_some_and(SliceDigests::has_all), false);
        let is_ours = !matches!(merger, Merger::Updater(_));
        let of = SliceContext { digester: digests.filter(|_| is_ours).map(|_| &digester), ..of };
        let closed = match state.take_lost() {
            Some(error) => Err(error),
            None => self
                .check_whole(merger)
                .and(check_measured(handling, merger))
                .and(divisor)
                .and_then(|divisor| {
                    let scale = state.weights.scale().unwrap_or(1.0);
                    state.close(of, by_tree, Divided { merger, divisor, scale })
                }),
        };
        if let Some(digests) = digests {
            let is_contribution = matches!(closed, Ok(true));
            let weight = state.weights.closed().total_weight;
            let (failed, received) = (closed.is_err(), state.received_digest());
            let digester = of.digester.filter(|_| !failed);
            let end = RoundEnd { round, weight, failed, is_contribution, received, digester };
            state.with_stored(&self.slot, |stored, value| {
                digests.close((&self.slot, end), stored, value, handling);
            });
        }
        closed.map(drop)
    }

    /// Rejects a rule that needs an uncut key, as this slice is a part of one.
    fn check_whole(&self, merger: &Merger) -> Result<()> {
        match merger {
            Merger::Optimizer(optimizer) if !self.whole && merger.measures_whole_keys() => {
                Err(fail!(
                    Unsupported,
                    "{} measures whole keys, and this one is in slices; let all workers call \
                     set_optimizer again, which makes it whole",
                    optimizer.name()
                ))
            }
            _ => Ok(()),
        }
    }
}

/// Rejects an updater while gradients are clipped: workers do not know of it, and have not measured its gradients.
fn check_measured(handling: &Handling, merger: &Merger) -> Result<()> {
    match (handling.clipping, merger) {
        (Some(_), Merger::Updater(_)) => Err(fail!(
            Unsupported,
            "set_clipping does not clip what an updater of a server gets; set an optimizer, or clip before the \
             push and end clipping (set_clipping with 0)"
        )),
        _ => Ok(()),
    }
}

/// Decodes a contribution.
fn decode(
    SliceContext { slot, local, blocks, .. }: SliceContext<'_>,
    data: Bytes,
    origin: Origin,
    handling: Option<Arc<Handling>>,
) -> Result<Bytes> {
    let Some(handling) = handling else { return Ok(data) };
    let codec = handling.codec.as_ref();
    let codec = codec.ok_or_else(|| fail!(InvalidArgument, "no codec is set"))?;
    encoding::decode(codec, local.keys.team, slot, origin, &data, blocks)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Settings};
    use crate::key::Key;
    use crate::local::kind::StoreKind;
    use crate::tensor::DType;

    /// The failure of the last round, and the stored value.
    fn outcome(shard: &SliceQueue, blocks: &Arc<BlockPool>) -> (Option<String>, Vec<u8>) {
        let mut queue = shard.queue.lock();
        let state = queue.state.as_mut().expect("no thread works on the slice");
        let stored = state.share(&shard.slot, blocks).unwrap().bytes().to_vec();
        (state.failure().map(ToString::to_string), stored)
    }

    impl SliceQueue {
        /// The stored value.
        pub(in crate::server) fn stored(&self, blocks: &Arc<BlockPool>) -> Vec<u8> {
            outcome(self, blocks).1
        }
    }

    #[test]
    fn a_round_with_two_contributions_of_an_opaque_dtype_is_not_merged() {
        let local = Local::new(1, 1, Settings::new(&Config::new()).unwrap(), StoreKind::DistSync);
        let blocks = Arc::<BlockPool>::default();
        let bytes =
            |value: u8| Bytes::of_block(blocks.make(16, |room| room.zeroed().fill(value)).unwrap());
        let handling = Arc::new(Handling::PLAIN);
        for (by_tree, rows) in [(false, false), (true, false), (false, true), (true, true)] {
            let slot = Slot::new(Key::from(1u64), 0, DType::Bool, &[16], 16).unwrap();
            let shard = SliceQueue::new(slot, 0, (0, true), None);
            let post = |job| shard.post(&mut vec![job], TaskList::default);
            let add = |rank, data| {
                let origin = Origin { key: 1, rank, round: 0, block: 0 };
                let (first, info, handling) = (rank == 0, ContributionInfo::default(), None);
                post(SliceTask::Add { first, by_tree, rows, data, origin, info, handling });
            };
            post(SliceTask::Install(bytes(1)));
            add(0, bytes(0));
            add(1, bytes(1));
            post(SliceTask::Close { round: 1, by_tree, handling: Arc::clone(&handling) });
            let tracer = Tracer::new(None, std::time::Instant::now());
            shard.work(&local, &tracer, &blocks, &mut |_| panic!("an answer"));
            let (failure, stored) = outcome(&shard, &blocks);
            assert!(failure.is_some_and(|text| text.contains("bool")), "the round has failed");
            assert_eq!(stored, [1; 16], "and nothing of it is merged");
        }
    }

    #[test]
    fn a_round_with_a_contribution_that_cannot_be_read_is_not_merged() {
        let local = Local::new(1, 1, Settings::new(&Config::new()).unwrap(), StoreKind::DistSync);
        let blocks = Arc::<BlockPool>::default();
        let bytes =
            |value: u8| Bytes::of_block(blocks.make(16, |room| room.zeroed().fill(value)).unwrap());
        let slot = Slot::new(Key::from(1u64), 0, DType::U8, &[16], 16).unwrap();
        let shard = SliceQueue::new(slot, 0, (0, true), None);
        let post = |job| shard.post(&mut vec![job], TaskList::default);
        let plain = Arc::new(Handling::PLAIN);
        let add = |first, data, handling| {
            let origin = Origin { key: 1, rank: 0, round: 0, block: 0 };
            let (by_tree, rows, info) = (false, false, ContributionInfo::default());
            SliceTask::Add { first, by_tree, rows, data, origin, info, handling }
        };
        post(SliceTask::Install(bytes(1)));
        post(add(true, bytes(2), None));
        // An encoded contribution without a codec in force.
        post(add(false, bytes(3), Some(Arc::clone(&plain))));
        post(SliceTask::Close { round: 1, by_tree: false, handling: Arc::clone(&plain) });
        let tracer = Tracer::new(None, std::time::Instant::now());
        let work = || {
            let list = shard.work(&local, &tracer, &blocks, &mut |_| panic!("an answer"));
            assert!(list.is_some_and(|list| list.is_empty()));
        };
        work();
        let (failure, stored) = outcome(&shard, &blocks);
        assert!(failure.is_some(), "the round has failed");
        assert_eq!(stored, [1; 16], "and nothing of it is merged");
        post(add(true, bytes(4), None));
        post(SliceTask::Close { round: 2, by_tree: false, handling: plain });
        work();
        let expected = (None, vec![4; 16]);
        assert_eq!(outcome(&shard, &blocks), expected, "the next one is as good as any");
    }

    #[test]
    fn a_contribution_to_a_tree_that_has_another_size_is_not_merged() {
        let local = Local::new(1, 1, Settings::new(&Config::new()).unwrap(), StoreKind::DistSync);
        let blocks = Arc::<BlockPool>::default();
        let bytes = |bytes: &[u8]| Bytes::of_block(blocks.join(&[bytes]).unwrap());
        let slot = Slot::new(Key::from(1u64), 0, DType::F16, &[4], 4).unwrap();
        let shard = SliceQueue::new(slot, 0, (0, true), None);
        let post = |job| shard.post(&mut vec![job], TaskList::default);
        let add = |rank, data| {
            let origin = Origin { key: 1, rank, round: 0, block: 0 };
            let (first, by_tree, rows, handling) = (rank == 0, true, false, None);
            let info = ContributionInfo::default();
            post(SliceTask::Add { first, by_tree, rows, data, origin, info, handling });
        };
        let close = || {
            post(SliceTask::Close { round: 1, by_tree: true, handling: Arc::new(Handling::PLAIN) });
            let tracer = Tracer::new(None, std::time::Instant::now());
            shard.work(&local, &tracer, &blocks, &mut |_| panic!("an answer"));
            outcome(&shard, &blocks)
        };
        // 2048 + 1 + 1 + 1 is 2051 in float32, and rounds to 2052; rounded one by one it is 2048.
        let [large, one] = [2048f32, 1.0].map(|it| [it; 4].map(f32::to_le_bytes).concat());
        let [zeros, merged] = [[0u8, 0], [0x02, 0x68]].map(|it| [it; 4].concat());
        post(SliceTask::Install(bytes(&zeros)));
        add(0, bytes(&large));
        add(2, bytes(&one[..8]));
        add(3, bytes(&one));
        let (failure, stored) = close();
        assert_eq!(stored, zeros, "nothing of the round is merged");
        let text = failure.expect("the round has failed");
        assert!(text.contains("8 bytes") && text.contains("have 16"), "{text}");
        add(0, bytes(&large));
        (1..4).for_each(|rank| add(rank, bytes(&one)));
        assert_eq!(close(), (None, merged));
    }
}
