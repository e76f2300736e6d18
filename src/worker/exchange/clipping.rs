//! Clipping in a job: before any worker pushes, all sum the gradients of a call as its round will, each worker a part,
//! and share the sums of squares of blocks, from which all compute the same norm.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use smallvec::SmallVec;

use super::ExchangePurpose;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::kernel::SQUARES_BLOCK;
use crate::local::apply::{GlobalNorm, skip};
use crate::local::call::DataCall;
use crate::local::collective::{
    CollectiveCall, CollectiveHead, CollectiveKind, LentTensor, Reduction, copy,
};
use crate::local::merger::Clipping;
use crate::local::plan::{KeyGroup, Plan, Tensors};
use crate::local::table::Slot;
use crate::sys::{DefaultFloats, with_default_floats};
use crate::tensor::{Buffer, DType, Lent, Tensor, TensorMut};
use crate::worker::WorkerStore;
use crate::worker::submit::AT_ONCE;
use kvstore_protocol::{ExchangePlan, ExchangeTerms, Failure, Reason};

/// Code of the exchanges of a clipped push, beside those of [`CollectiveKind`]; the stage stands where those have
/// their reduction.
pub(super) const CODE: u32 = 9;
/// Stages of a batch: the sums of the gradients, and the sums of squares of blocks.
const SUMS: u32 = 0;
const SQUARES: u32 = 1;

/// Maximum bytes of the gradients that one exchange sums, unless a single key has more: they are copied.
const MOST_BYTES: usize = 64 << 20;
/// Bytes up to which each worker sums and squares everything, which takes one exchange instead of two.
const WHOLE: usize = 16 << 10;

/// The gradient of a key in a call that is clipped.
struct KeyGradient<'a> {
    group: &'a KeyGroup,
    rescale: f64,
    /// Its blocks among those of all gradients of the call.
    blocks: Range<usize>,
}

impl KeyGradient<'_> {
    fn slot(&self) -> &Slot {
        &self.group.slot
    }
}

/// A clipped call, and how many of its exchanges have begun. A failure may stay unknown to workers that have ended
/// the exchange before, so every exchange of the call is begun, as workers count them alike.
struct ClippedCall<'a> {
    name: &'static str,
    values: &'a [Lent],
    fingerprint: u32,
    deadline: Deadline,
    begun: usize,
}

/// Gradients of one dtype that are summed together, one behind the other.
struct Batch<'a> {
    gradients: Vec<&'a KeyGradient<'a>>,
    dtype: DType,
}

/// Consecutive elements of a gradient, from the start of a block on.
struct BlockRun<'a> {
    gradient: &'a KeyGradient<'a>,
    count: usize,
}

impl WorkerStore {
    /// Measures the gradients of a call with the other workers. Gives what the sums of its rounds are multiplied by,
    /// if they are clipped; a call that is skipped has no values afterwards.
    ///
    /// # Errors
    /// Those of a collective call, and `InvalidArgument` for a norm that is not finite, if such calls fail: nothing
    /// has been pushed then.
    pub(in crate::worker) fn clip(
        &self,
        call: DataCall,
        plan: &mut Plan,
        deadline: Deadline,
    ) -> Result<Option<f64>> {
        let Some(clipping) = self.local.handling.read().clipping else { return Ok(None) };
        let name = call.name();
        let gradients = self.gradients(plan);
        // The machine refuses the push of a worker that is done.
        if gradients.is_empty() || self.is_done()? {
            return Ok(None);
        }
        if plan.divisor.is_some() {
            return Err(fail!(Unsupported, "{name}: {WEIGHED}"));
        }
        let fingerprint = self.fingerprint(&gradients, clipping)?;
        let values = &plan.values;
        let mut clipped = ClippedCall { name, values, fingerprint, deadline, begun: 0 };
        let squares = self.squares(&gradients, &mut clipped)?;
        let norm = with_default_floats(|| {
            let mut norm = GlobalNorm::default();
            for KeyGradient { group, rescale, blocks } in &gradients {
                let of_key = squares[blocks.clone()].iter().fold(0.0, |all, sum| all + sum);
                norm.add(group.slot.key, *rescale, of_key);
            }
            norm
        });
        let factor = self.local.applier.factor(call.name(), &norm, clipping)?;
        if factor.is_none() {
            skip(&mut plan.groups);
        }
        Ok(factor.filter(|factor| *factor < 1.0))
    }

    /// The gradients of a call, in ascending order of their keys: workers may have initialised names in any order.
    fn gradients<'a>(&self, plan: &'a Plan) -> Vec<KeyGradient<'a>> {
        let handling = self.local.handling.read();
        let pushed = plan.groups.iter().filter(|group| !group.values.is_empty());
        let gradient = |group: &'a KeyGroup| {
            let rescale = handling.rescale_of(group.slot.key, group.slot.dtype)?;
            Some(KeyGradient { group, rescale, blocks: 0..0 })
        };
        let mut all: Vec<_> = pushed.filter_map(gradient).collect();
        all.sort_unstable_by_key(|it| it.slot().key.id());
        let mut next = 0;
        for gradient in &mut all {
            let first = next;
            next += gradient.slot().count.div_ceil(SQUARES_BLOCK);
            gradient.blocks = first..next;
        }
        all
    }

    /// Hash of what all workers have alike: the keys of a push with their rounds, and the setting.
    fn fingerprint(&self, gradients: &[KeyGradient<'_>], clipping: Clipping) -> Result<u32> {
        let mut bytes = Vec::with_capacity(gradients.len() * 5 * size_of::<u64>());
        let mut put = |number: u64| bytes.extend_from_slice(&number.to_le_bytes());
        put(clipping.max_norm.to_bits());
        put(clipping.non_finite as u64);
        for some in gradients.chunks(AT_ONCE.0) {
            self.step(|worker, _| {
                for gradient in some {
                    let slot = gradient.slot();
                    let key = slot.key.id();
                    put(key);
                    put(worker.pushes_before_next(key));
                    put(slot.count as u64);
                    put(slot.dtype.code().into());
                    put(gradient.rescale.to_bits());
                }
            })?;
        }
        Ok(kvstore_checksum::crc32c(&bytes))
    }

    /// The sums of squares of all blocks of the gradients.
    fn squares(
        &self,
        gradients: &[KeyGradient<'_>],
        call: &mut ClippedCall<'_>,
    ) -> Result<Vec<f64>> {
        let workers = self.seat().workers;
        let batches = batches(gradients);
        let mut all = vec![0.0; gradients.last().map_or(0, |last| last.blocks.end)];
        let fill = |all: &mut [f64], batch: &Batch<'_>, sums: Vec<f64>| {
            let mut sums = sums.into_iter();
            for gradient in &batch.gradients {
                let places = &mut all[gradient.blocks.clone()];
                places.iter_mut().zip(&mut sums).for_each(|(place, sum)| *place = sum);
            }
        };
        let result: Result<()> = batches.iter().try_for_each(|batch| {
            fill(&mut all, batch, self.squares_of_batch(batch, call)?);
            Ok(())
        });
        if let Err(error) = result {
            let terms = batches.iter().flat_map(|batch| batch.terms(call.fingerprint, workers));
            // Calls that differ differ for all workers, in the first exchange.
            if error.kind() != ErrorKind::Differs {
                self.give_up_rest(terms.skip(call.begun), &error, call.deadline);
            }
            return Err(in_clipping(&error));
        }
        Ok(all)
    }

    /// The sums of squares of the blocks of a batch: each worker sums and squares an equal number of them.
    fn squares_of_batch(&self, batch: &Batch<'_>, call: &mut ClippedCall<'_>) -> Result<Vec<f64>> {
        let (seat, size) = (self.seat(), batch.dtype.size());
        let (mine, memory) = self.own_sums(batch, call.values)?;
        let all = 0..batch.blocks();
        if seat.workers == 1 {
            return self.squares_of_part(batch, &all, mine);
        }
        let array = |start: *mut u8, count| LentTensor::of_array(start, batch.dtype, count);
        let is_whole = batch.is_whole(seat.workers);
        let part = if is_whole { all } else { batch.part(seat.rank, seat.workers) };
        let own = batch.elements(&part);
        let summed = Buffer::fixed(own.len() * size)?;
        let values = if is_whole {
            [array(mine, own.len())].into_iter().collect()
        } else {
            let of = |rank| batch.elements(&batch.part(rank, seat.workers));
            let of = (0..seat.workers).map(of);
            of.map(|of| array(mine.wrapping_add(of.start * size), of.len())).collect()
        };
        let kind = if is_whole { CollectiveKind::AllReduce } else { CollectiveKind::ReduceScatter };
        let outs = [array(summed.as_ptr(), own.len())].into_iter().collect();
        let sum = CollectiveCall { head: head(kind), dtype: batch.dtype, values, outs };
        self.exchange_of(call, batch.terms_of(SUMS, call.fingerprint), sum)?;
        drop(memory);
        let squares = self.squares_of_part(batch, &part, summed.as_ptr())?;
        if is_whole { Ok(squares) } else { self.share(&squares, batch, call) }
    }

    /// Makes an exchange of a call.
    fn exchange_of(
        &self,
        call: &mut ClippedCall<'_>,
        terms: ExchangeTerms,
        exchange: CollectiveCall,
    ) -> Result<()> {
        let driver = self.exchanges(call.name, call.deadline)?;
        let purpose = ExchangePurpose { name: call.name, terms: Some(terms) };
        let polling = self.polling_of(&exchange, &driver);
        let begun = self.begin_exchange(exchange, &driver, (purpose, None), call.deadline)?;
        call.begun += 1;
        Self::await_exchange(&driver, &begun, polling)
    }

    /// Begins the exchanges of a call that has failed, and gives them up: this worker does not reach them.
    fn give_up_rest(
        &self,
        rest: impl Iterator<Item = ExchangeTerms>,
        error: &Error,
        deadline: Deadline,
    ) {
        let driver = self
            .exchanges
            .lock()
            .as_ref()
            .filter(|hub| self.has_met(hub))
            .map(|hub| Arc::clone(&hub.driver));
        let Some(driver) = driver else { return };
        let (workers, group) = (self.workers as usize, self.group_id());
        let is_other = |rank: u32| rank != self.rank && self.has_worker(rank);
        let deadline = self.moment(deadline);
        let failure = Failure::new(Reason::Timeout, error.message());
        for terms in rest {
            let plan = ExchangePlan {
                terms,
                deadline,
                sends: (0..workers).map(|_| None).collect(),
                is_lent: false,
                // Other workers learn of its end if anything of theirs is awaited.
                receives: (0..self.workers).map(|rank| u64::from(is_other(rank))).collect(),
                reduces: 0,
                result_receivers: Vec::new(),
                results: vec![0; workers],
            };
            driver.step(|machine, now| {
                let id = machine.begin(group, plan, now);
                machine.give_up(id, &failure);
            });
        }
    }

    /// The sums of this worker's values, one behind the other, and their memory, unless it is the caller's.
    fn own_sums(&self, batch: &Batch<'_>, lent: &[Lent]) -> Result<(*mut u8, Option<Buffer>)> {
        if let [KeyGradient { group, .. }] = &batch.gradients[..]
            && let [only] = &lent[group.values.clone()]
            && only.is_plain(batch.dtype)
        {
            return Ok((only.data(), None));
        }
        let size = batch.dtype.size();
        let sums = Buffer::fixed(batch.count() * size)?;
        let mut place = sums.as_ptr();
        for KeyGradient { group: KeyGroup { slot, values, .. }, .. } in &batch.gradients {
            match &lent[values.clone()] {
                [only] if only.is_plain(batch.dtype) => copy(place, only.data(), slot.bytes()),
                values => {
                    let sum = self.driver.blocks.take(slot.bytes())?;
                    let added = self.add_up(slot, values, &sum);
                    copy(place, sum.as_ptr(), slot.bytes());
                    self.driver.blocks.give_back(sum);
                    added?;
                }
            }
            place = place.wrapping_add(slot.bytes());
        }
        Ok((sums.as_ptr(), Some(sums)))
    }

    /// The sums of squares of some blocks of a batch, whose sums begin at an address.
    fn squares_of_part(
        &self,
        batch: &Batch<'_>,
        blocks: &Range<usize>,
        start: *mut u8,
    ) -> Result<Vec<f64>> {
        let _floats = DefaultFloats::enter();
        let (mut sums, mut of_run) = (Vec::with_capacity(blocks.len()), Vec::<AtomicU64>::new());
        let mut place = start;
        for BlockRun { gradient, count } in batch.runs(blocks) {
            let Slot { key, order, .. } = *gradient.slot();
            let shape = [i64::try_from(count).unwrap_or(i64::MAX)];
            let slot = Slot::new(key, order, batch.dtype, &shape, count)?;
            let values = [Lent::plain(place, batch.dtype)];
            self.local.keys.team.squares(&slot, &values, None, &mut of_run)?;
            let sum = |sum: &AtomicU64| f64::from_bits(sum.load(Ordering::Relaxed));
            sums.extend(of_run.iter().map(sum));
            place = place.wrapping_add(slot.bytes());
        }
        Ok(sums)
    }

    /// The sums of all workers, in the order of blocks.
    fn share(
        &self,
        own: &[f64],
        batch: &Batch<'_>,
        call: &mut ClippedCall<'_>,
    ) -> Result<Vec<f64>> {
        let seat = self.seat();
        let mut all = vec![0.0; batch.blocks()];
        let (mut rest, mut outs) = (&mut all[..], Vec::new());
        for rank in 0..seat.workers {
            let (out, behind) = rest.split_at_mut(batch.part(rank, seat.workers).len());
            outs.push(TensorMut::from(out));
            rest = behind;
        }
        let values = [Tensor::from(own)];
        let (values, outs) = (Tensors::Values(&values), Tensors::Outs(&outs));
        let gather = CollectiveCall::new(head(CollectiveKind::AllGather), seat, values, outs)?;
        self.exchange_of(call, batch.terms_of(SQUARES, call.fingerprint), gather)?;
        Ok(all)
    }
}

/// Why a push with a weight is refused while a job clips.
pub(in crate::worker) const WEIGHED: &str = "in a job pushes with a weight are not clipped: the norm is that of \
    sums that are not divided; use rescale_grad of the optimizer, or end clipping (set_clipping with 0)";

impl Batch<'_> {
    fn count(&self) -> usize {
        self.gradients.iter().map(|it| it.slot().count).sum()
    }

    fn blocks(&self) -> usize {
        self.gradients.iter().map(|it| it.blocks.len()).sum()
    }

    /// Whether every worker sums all of it. Otherwise each has a block at least, so that all hear of each other.
    fn is_whole(&self, workers: u32) -> bool {
        self.count() * self.dtype.size() <= WHOLE || self.blocks() < workers as usize
    }

    /// The blocks that a worker sums.
    fn part(&self, rank: u32, workers: u32) -> Range<usize> {
        let start = |rank: u32| self.blocks() * rank as usize / workers as usize;
        start(rank)..start(rank + 1)
    }

    /// What workers have alike in a stage.
    fn terms_of(&self, stage: u32, fingerprint: u32) -> ExchangeTerms {
        let dtype = if stage == SUMS { self.dtype } else { DType::F64 };
        let count = if stage == SUMS { self.count() } else { self.blocks() };
        let what = CODE | stage << 8;
        ExchangeTerms { what, root: fingerprint, dtype: dtype.code(), count: count as u64 }
    }

    /// The same of all its exchanges.
    fn terms(&self, fingerprint: u32, workers: u32) -> impl Iterator<Item = ExchangeTerms> {
        let stages = if self.is_whole(workers) { 1 } else { 2 };
        [SUMS, SQUARES].map(|stage| self.terms_of(stage, fingerprint)).into_iter().take(stages)
    }

    /// The elements of some blocks, among all of the batch.
    fn elements(&self, blocks: &Range<usize>) -> Range<usize> {
        let count = |until: usize| self.runs(&(0..until)).iter().map(|run| run.count).sum();
        count(blocks.start)..count(blocks.end)
    }

    /// Some blocks, by gradient. Those of a gradient are whole but for its last.
    fn runs(&self, blocks: &Range<usize>) -> SmallVec<[BlockRun<'_>; 4]> {
        let (mut runs, mut first) = (SmallVec::new(), 0);
        for gradient in &self.gradients {
            let own = first..first + gradient.blocks.len();
            let (from, to) = (blocks.start.max(own.start), blocks.end.min(own.end));
            if from < to {
                let start = (from - own.start) * SQUARES_BLOCK;
                let end = ((to - own.start) * SQUARES_BLOCK).min(gradient.slot().count);
                runs.push(BlockRun { gradient, count: end - start });
            }
            first = own.end;
        }
        runs
    }
}

/// The gradients by dtype, in batches, in their order.
fn batches<'a>(gradients: &'a [KeyGradient<'a>]) -> Vec<Batch<'a>> {
    let mut all: Vec<Batch<'_>> = Vec::new();
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let mut bytes = usize::MAX;
        let is_of = |it: &&KeyGradient<'_>| it.slot().dtype == dtype && it.slot().count > 0;
        for gradient in gradients.iter().filter(is_of) {
            bytes = bytes.saturating_add(gradient.slot().bytes());
            if bytes > MOST_BYTES {
                bytes = gradient.slot().bytes();
                all.push(Batch { gradients: Vec::new(), dtype });
            }
            all.last_mut().into_iter().for_each(|batch| batch.gradients.push(gradient));
        }
    }
    all
}

/// An exchange of a clipped push, for texts.
pub(super) fn describe(terms: &ExchangeTerms, dtype: &str) -> String {
    let of = if terms.what >> 8 & 0xff == SQUARES { "the squares of " } else { "" };
    format!("{of}a clipped push (list {:08x}, {} {dtype})", terms.root, terms.count)
}

const fn head(kind: CollectiveKind) -> CollectiveHead {
    CollectiveHead { kind, reduction: Reduction::Sum, root: 0 }
}

/// The error of an exchange, behind which this worker does not push. Others may have ended the exchange before.
fn in_clipping(error: &Error) -> Error {
    let text = format!(
        "{} (this worker was measuring gradients, and has pushed nothing)",
        error.message()
    );
    Error::new(error.kind(), text)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::Key;

    fn groups(counts: &[(DType, usize)]) -> Vec<KeyGroup> {
        let group = |(at, (dtype, count)): (u64, &(DType, usize))| {
            let shape = [i64::try_from(*count).unwrap()];
            let slot = Slot::new(Key::from(at), at, *dtype, &shape, *count).unwrap();
            KeyGroup { slot: Arc::new(slot), values: 0..1, outs: 0..0 }
        };
        (0..).zip(counts).map(group).collect()
    }

    fn gradients(groups: &[KeyGroup]) -> Vec<KeyGradient<'_>> {
        groups.iter().map(|group| KeyGradient { group, rescale: 1.0, blocks: 0..0 }).collect()
    }

    #[test]
    fn batches_have_all_keys_of_a_dtype_in_order_and_a_maximum_of_bytes() {
        let (large, small) = (MOST_BYTES / 4 + 1, 100);
        let counts = [
            (DType::F32, small),
            (DType::F64, small),
            (DType::F32, large),
            (DType::F32, 0),
            (DType::F32, small),
            (DType::F32, MOST_BYTES / 4 - small),
            (DType::F32, 1),
        ];
        let groups = groups(&counts);
        let all = gradients(&groups);
        let keys = |batch: &Batch<'_>| -> Vec<u64> {
            batch.gradients.iter().map(|it| it.slot().key.id()).collect()
        };
        let batches: Vec<_> = batches(&all).iter().map(keys).collect();
        assert_eq!(batches, [vec![0], vec![2], vec![4, 5], vec![6], vec![1]]);
    }

    #[test]
    fn the_parts_of_a_batch_are_all_of_its_blocks_and_elements() {
        for counts in [vec![1], vec![2_048, 1], vec![7, 2_049, 6_144, 10_000, 3]] {
            let groups = groups(&counts.iter().map(|it| (DType::F32, *it)).collect::<Vec<_>>());
            let mut all = gradients(&groups);
            let mut next = 0;
            for gradient in &mut all {
                let end = next + gradient.slot().count.div_ceil(SQUARES_BLOCK);
                gradient.blocks = next..end;
                next = end;
            }
            for batch in batches(&all) {
                assert_eq!(batch.blocks(), next);
                for workers in 1..=9 {
                    let (mut block, mut element) = (0, 0);
                    for rank in 0..workers {
                        let part = batch.part(rank, workers);
                        let elements = batch.elements(&part);
                        assert_eq!((part.start, elements.start), (block, element));
                        assert!(!part.is_empty() || batch.is_whole(workers), "all hear of all");
                        let runs = batch.runs(&part);
                        let of_runs: usize = runs.iter().map(|run| run.count).sum();
                        let blocks = runs.iter().map(|run| run.count.div_ceil(SQUARES_BLOCK));
                        assert_eq!((of_runs, blocks.sum()), (elements.len(), part.len()));
                        (block, element) = (part.end, elements.end);
                    }
                    assert_eq!((block, element), (next, batch.count()));
                }
            }
        }
    }
}
