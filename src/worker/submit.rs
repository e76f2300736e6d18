//! Submission of a checked call (also called: dispatch): one request to the machine for each key.

use std::sync::Arc;

use smallvec::SmallVec;

use super::call::{PendingCall, PendingKey, PullTarget};
use super::inputs::{CallInputs, OutgoingValue, part_of};
use super::memory::CallMemory;
use super::requests::{KeyOperation, KeyRequest};
use super::{WorkerStore, WorkerSums};
use crate::deadline::Deadline;
use crate::error::{Error, Result, fail};
use crate::job::round_info;
use crate::local::call::DataCall;
use crate::local::counters::CallTally;
use crate::local::kind::StoreKind;
use crate::local::plan::{self, KeyGroup, Pairs, Plan, RowPairs};
use crate::local::table::Slot;
use crate::runtime::Bytes;
use kvstore_protocol::{OpId, PullDependency, Time};

/// Batch size of requests: maximum keys, as many as a bundle has, and bytes of their values.
pub(super) const AT_ONCE: (usize, usize) = (64, 512 << 10);

impl WorkerStore {
    /// Whether each push is a round by itself.
    fn is_asynchronous(&self) -> bool {
        matches!(self.kind, StoreKind::DistAsync | StoreKind::DistDeviceAsync)
    }

    fn check_call(&self, call: DataCall) -> Result<()> {
        match call {
            DataCall::Pull | DataCall::PullRows => Ok(()),
            _ => self.check_writes(call.name()),
        }
    }

    /// Checks a call on rows, and fills its empty plan.
    pub(super) fn plan_rows(
        &self,
        plan: &mut Plan,
        call: DataCall,
        pairs: &RowPairs<'_>,
    ) -> Result<()> {
        self.check_call(call)?;
        self.find(call.name(), pairs.rows.keys.iter().copied())?;
        let part =
            if call == DataCall::PushRows { plan::TensorUse::Value } else { plan::TensorUse::Out };
        let patience = self.local.patience();
        plan.build_rows(&self.local.keys.scene(call.name()).within(&patience), pairs, part)?;
        if call == DataCall::PushRows {
            self.check_opaque(call, plan)?;
            self.check_counts(call, plan)?;
            self.check_clipping(call, plan)?;
            self.local.weigh(call.name(), plan, self.is_asynchronous())?;
            self.leave_unfinished();
        }
        Ok(())
    }

    /// Refuses values of opaque dtypes in a job whose rounds add those of several workers up.
    fn check_opaque(&self, call: DataCall, plan: &Plan) -> Result<()> {
        if self.workers == 1 || self.kind.is_asynchronous() {
            return Ok(());
        }
        let pushed = |group: &&KeyGroup| group.slot.dtype.is_opaque() && !group.values.is_empty();
        let Some(opaque) = plan.groups.iter().find(pushed) else { return Ok(()) };
        let why = format!(
            "and a round would add those of {} workers; to replace the value, remove the key and \
             initialise it again",
            self.workers
        );
        Err(plan::refuse_adding(call.name(), &self.local.keys.names, &opaque.slot, &why))
    }

    /// Refuses a call whose gradients cannot be measured.
    fn check_clipping(&self, call: DataCall, plan: &Plan) -> Result<()> {
        self.local.check_merge(call, plan, &self.local.handling.read())
    }

    /// Refuses a push with a ticket whose gradients are to be measured: it would wait for other workers.
    pub(super) fn check_unclipped(&self, call: DataCall, plan: &Plan) -> Result<()> {
        if self.local.handling.read().first_clipped(&plan.groups).is_none() {
            return Ok(());
        }
        Err(fail!(
            Unsupported,
            "{}: in a job a push with a ticket is not clipped: workers measure its gradients together before it is \
             queued; use the call that waits, or end clipping (set_clipping with 0)",
            call.name()
        ))
    }

    /// Refuses numbers of values with which this worker's sum is no subtree of the tree over all workers.
    fn check_counts(&self, call: DataCall, plan: &Plan) -> Result<()> {
        let is_subtree = |group: &&KeyGroup| {
            let count = group.values.len();
            count == 0 || count.is_power_of_two()
        };
        if self.sums != WorkerSums::Subtrees {
            return Ok(());
        }
        let Some(odd) = plan.groups.iter().find(|group| !is_subtree(group)) else { return Ok(()) };
        let (key, count) = (self.local.keys.names.label(odd.slot.key), odd.values.len());
        Err(fail!(
            Option,
            "{}: {key} has {count} values; with sum_order=tree and {} workers their number must be a \
             power of two, so that the sum of one worker is a subtree of the sum of all",
            call.name(),
            self.workers
        ))
    }

    /// The part of this worker in the tree of a round, if its sums are subtrees of one.
    fn part_of_tree(&self, values: usize) -> u64 {
        match u32::try_from(values) {
            Ok(leaves) if self.sums == WorkerSums::Subtrees => {
                round_info::part_of(self.rank, leaves)
            }
            _ => 0,
        }
    }

    /// Submits a planned call on rows.
    pub(super) fn send_rows(
        &self,
        memory: &mut CallMemory,
        mut plan: Plan,
        priority: i32,
        ticket: Option<u64>,
        deadline: Deadline,
    ) -> Result<Arc<PendingCall>> {
        // Those of an attempt that failed.
        memory.requests.clear();
        let mut groups = std::mem::take(&mut plan.groups);
        let mut parts = std::mem::take(&mut memory.parts);
        for KeyGroup { slot, values, outs } in groups.drain(..) {
            let (place, key) = (self.place(slot.key)?, slot.key.id());
            let part = self.part_of_tree(values.len());
            let (target, what) = if outs.is_empty() {
                let pushed = values.map(|index| plan.rows.of(index, &plan.values[index]));
                let (team, blocks) = (self.local.keys.team, &self.driver.blocks);
                let sums = (&*slot, self.sum_dtype(slot.dtype));
                let value = memory.rows.push(team, sums, &place, pushed, blocks)?;
                (PullTarget::Nowhere, KeyOperation::Push(OutgoingValue::Made(value)))
            } else {
                let lists = outs.clone().map(|index| plan.rows.of(index, &plan.outs[index].lent));
                let pull = memory.rows.pull(&slot, &place, lists, &self.driver.blocks)?;
                let Some((wanted, asked)) = pull else { continue };
                (PullTarget::Rows(wanted), KeyOperation::Want(asked, PullDependency::Own))
            };
            parts.push(PendingKey::new(slot, target, outs));
            memory.requests.push_back(KeyRequest { key, part, scale: 0, what });
        }
        plan.groups = groups;
        memory.values = std::mem::take(&mut plan.values);
        let inputs = CallInputs { weight: plan.divisor, ..CallInputs::default() };
        let call = memory.begin(self.group.clone(), ticket, plan, parts);
        self.launch(memory, call, inputs, priority, deadline)
    }

    /// Checks the lists of calls that repeat, as their pushpull.
    pub(super) fn check_bound(&self, values: &Pairs<'_>, outs: &Pairs<'_>) -> Result<()> {
        self.find("bind", values.keys.iter().chain(outs.keys).copied())?;
        let patience = self.local.patience();
        Plan::default().build(&self.local.keys.scene("bind").within(&patience), values, outs)
    }

    /// Checks a call, and fills its empty plan. A broadcast initialises here, and is then submitted as a pull.
    pub(super) fn plan(
        &self,
        plan: &mut Plan,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<DataCall> {
        let name = call.name();
        self.check_call(call)?;
        let patience = self.local.patience();
        if call == DataCall::Broadcast {
            self.create(name, values)?;
            self.find(name, outs.keys.iter().copied())?;
            plan.build(&self.local.keys.scene(name).within(&patience), &Pairs::NONE, outs)?;
            return Ok(DataCall::Pull);
        }
        self.find(name, values.keys.iter().chain(outs.keys).copied())?;
        plan.build(&self.local.keys.scene(name).within(&patience), values, outs)?;
        if call != DataCall::Pull {
            self.check_opaque(call, plan)?;
            self.check_counts(call, plan)?;
            self.check_clipping(call, plan)?;
            self.local.weigh(name, plan, self.is_asynchronous())?;
            self.leave_unfinished();
        }
        Ok(call)
    }

    /// Submits a planned call, whose gradients are multiplied by `scale` on the servers.
    pub(super) fn send(
        &self,
        memory: &mut CallMemory,
        mut plan: Plan,
        (priority, scale): (i32, Option<f64>),
        ticket: Option<u64>,
        deadline: Deadline,
    ) -> Result<Arc<PendingCall>> {
        let mut groups = std::mem::take(&mut plan.groups);
        // The values stay borrowed until the call ends, which is after the submission of all keys.
        let values = std::mem::take(&mut plan.values);
        let codec = self.local.handling.read().codec.clone();
        let scale_of = |slot: &Slot| {
            let scale = scale?;
            self.local.handling.read().rescale_of(slot.key, slot.dtype).map(|_| scale)
        };
        let mut parts = std::mem::take(&mut memory.parts);
        // At once: lists that grow step by step leave holes in the heap, which stay in the process.
        parts.reserve_exact(groups.len());
        memory.requests.reserve_exact(groups.len());
        let mut tally = CallTally::default();
        for group in groups.drain(..) {
            tally.add(&CallTally::of(group.values.len(), group.outs.len(), group.slot.bytes()));
            let (key, draft) = (group.slot.key.id(), self.draft(&group, &values, codec.is_some())?);
            let part = self.part_of_tree(group.values.len());
            let scale = round_info::bits_of(scale_of(&group.slot));
            let what = match draft {
                Some(value) if group.outs.is_empty() => KeyOperation::Push(value),
                Some(value) => KeyOperation::PushPull(value),
                None => KeyOperation::Pull,
            };
            parts.push(part_of(group, &plan.outs)?);
            memory.requests.push_back(KeyRequest { key, part, scale, what });
        }
        plan.groups = groups;
        let mut unsent = codec.map(|codec| (codec, self.unsent.lock()));
        let coding = unsent.as_mut().map(|(codec, unsent)| (&**codec, &mut **unsent));
        let inputs = CallInputs { lent: &values, coding, weight: plan.divisor };
        let call = memory.begin(self.group.clone(), ticket, plan, parts);
        let sent = self.launch(memory, call, inputs, priority, deadline);
        memory.values = values;
        drop(unsent);
        self.local.applier.counters.add(&tally);
        sent
    }

    /// Submits the requests of a call, which are in the memory, in batches: the first is on the network before
    /// the last is prepared. An error means that no request has begun.
    pub(super) fn launch(
        &self,
        memory: &mut CallMemory,
        call: Arc<PendingCall>,
        mut values: CallInputs<'_>,
        priority: i32,
        deadline: Deadline,
    ) -> Result<Arc<PendingCall>> {
        let CallMemory { requests, made, lent, loans, .. } = memory;
        let (end, mut first) = (self.moment(deadline), 0);
        while !requests.is_empty() {
            let (mut bytes, mut next) = (0, first);
            let some = std::iter::from_fn(|| {
                bytes += requests.front()?.bytes();
                let fits = next < first + AT_ONCE.0 && bytes <= AT_ONCE.1;
                next += 1;
                let request = if fits || next - 1 == first { requests.pop_front() } else { None };
                request.map(|request| (next - 1, request))
            });
            let some = some.map(|(part, request)| {
                request.make(|draft| self.make(call.part(part), draft, &mut values, (loans, lent)))
            });
            // Values prepared before an error are sent: the codec's residual counts them as sent.
            let failure = until_error(some, made);
            call.lend(lent);
            let behind = first + made.len();
            let of_call = (priority, round_info::bits_of(values.weight));
            let started = self.start(&call, first, made.drain(..), of_call, end);
            let all = started.map_err(|error| (first, error));
            match all.and(failure.map_or(Ok(()), |error| Err((behind, error)))) {
                Ok(()) => first = behind,
                Err((0, error)) => return Err(error),
                Err((part, error)) => {
                    call.fail(part, error);
                    break;
                }
            }
        }
        self.driver.host.settle(&call, 1, &self.driver.blocks);
        Ok(call)
    }

    /// Submits one batch of requests, beginning with a part of the call. An error means that none of the
    /// batch has begun.
    fn start(
        &self,
        call: &Arc<PendingCall>,
        first: usize,
        requests: impl Iterator<Item = KeyRequest<Bytes>>,
        (priority, weight): (i32, u64),
        end: Time,
    ) -> Result<()> {
        let mut operations = SmallVec::<[(OpId, usize); AT_ONCE.0]>::new();
        self.step_with(|worker, open, now| {
            worker.weigh(weight);
            for (part, request) in (first..).zip(requests) {
                let KeyRequest { key, part: of_tree, scale, what } = request;
                worker.set_part(of_tree);
                worker.scale(scale);
                let operation = match what {
                    KeyOperation::PushPull(value) => {
                        worker.pushpull(key, value, priority, now, end)
                    }
                    KeyOperation::Push(value) => worker.push(key, value, priority, now, end),
                    KeyOperation::Pull => worker.pull(key, priority, now, end),
                    KeyOperation::Want(wanted, after) => {
                        worker.pull_wanted(key, wanted, (after, priority), now, end)
                    }
                    KeyOperation::Restore(slices) => worker.restore(key, slices, now, end),
                };
                match operation {
                    Ok(operation) => operations.push((operation, part)),
                    // No request has begun: the machine refuses either the first of a call or none.
                    Err(failure) if part == 0 => return Err(self.error(&failure)),
                    Err(failure) => call.fail(part, self.error(&failure)),
                }
            }
            open.enter(&operations, call);
            Ok(())
        })?
    }
}

/// Adds the results before the first error to a list; gives the error.
fn until_error<T>(results: impl Iterator<Item = Result<T>>, good: &mut Vec<T>) -> Option<Error> {
    let mut failure = None;
    good.extend(results.map_while(|result| result.map_err(|error| failure = Some(error)).ok()));
    failure
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_made_before_an_error_is_kept_and_nothing_is_made_behind_it() {
        let mut asked = 0;
        let results = (0..9).map(|at| {
            asked += 1;
            if at == 4 { Err(fail!(OutOfMemory, "no memory")) } else { Ok(at) }
        });
        let mut made = Vec::new();
        assert!(until_error(results, &mut made).is_some());
        assert_eq!((&made[..], asked), (&[0, 1, 2, 3][..], 5));
        assert!(until_error([Ok(1)].into_iter(), &mut made).is_none());
    }
}
