//! Bound lists: calls that repeat with the same keys and tensors, which are checked once. Also
//! called: persistent requests (MPI), prepared statements.
//!
//! The plan has addresses, and no lifetimes: its owner keeps the memory of the tensors.

use std::sync::Arc;

use super::bound::BoundLists;
use super::check::Lists;
use crate::deadline::LazyDeadline;
use crate::error::{Result, fail};
use crate::local::apply::CallLimits;
use crate::local::call::DataCall;
use crate::local::lock::{KeyLock, WriteGuard};
use crate::local::merger::{Handling, ShortMerge};
use crate::local::plan::{Pairs, Plan};
use crate::local::{CallMemory, Local};

/// The values and the outs of a bound list, as its owner has them. One of them may be empty.
#[derive(Clone, Copy)]
pub(crate) struct BoundPairs<'a> {
    pub(crate) values: Pairs<'a>,
    pub(crate) outs: Pairs<'a>,
}

impl<'a> BoundPairs<'a> {
    /// The lists of a call, which needs what it pushes and what it pulls.
    pub(crate) fn of(&self, call: DataCall) -> Result<(Pairs<'a>, Pairs<'a>)> {
        let (pushes, pulls) = parts(call);
        let lacks = |is_used: bool, own: &Pairs<'_>, other: &Pairs<'_>| {
            is_used && own.keys.is_empty() && !other.keys.is_empty()
        };
        let missing = if lacks(pushes, &self.values, &self.outs) {
            "values, and can be pulled only"
        } else if lacks(pulls, &self.outs, &self.values) {
            "outs, and can be pushed only"
        } else {
            let part = |is_used, pairs| if is_used { pairs } else { Pairs::NONE };
            return Ok((part(pushes, self.values), part(pulls, self.outs)));
        };
        Err(fail!(InvalidArgument, "{}: the list was bound without {missing}", call.name()))
    }
}

/// Whether a call takes the values and the outs of a list.
fn parts(call: DataCall) -> (bool, bool) {
    (call != DataCall::Pull, call != DataCall::Push)
}

/// What the calls of a bound list share; one call at a time uses it.
pub(crate) struct BoundPlan(KeyLock<BoundState>);

struct BoundState {
    /// Removals of keys before these were looked up: none of them has been removed as long as the
    /// table has counted no more. None in a job, which looks up the keys of each call.
    removals: Option<u64>,
    /// None in a job, and if a tensor needs a conversion, has strides or is not in host memory: such
    /// calls are checked and planned each time.
    lists: Option<BoundLists>,
}

impl BoundPlan {
    /// For calls of a job.
    pub(crate) fn of_job() -> Self {
        Self(KeyLock::new(BoundState { removals: None, lists: None }))
    }
}

impl Local {
    /// Checks a list as its pushpull would be, and plans it.
    pub(crate) fn bind(&self, pairs: &BoundPairs<'_>) -> Result<BoundPlan> {
        let state = self.look_up_bound(pairs);
        if state.lists.is_none() {
            let patience = self.patience();
            let scene = self.scene("bind").within(&patience);
            Plan::default().build(&scene, &pairs.values, &pairs.outs)?;
        }
        Ok(BoundPlan(KeyLock::new(state)))
    }

    fn look_up_bound(&self, pairs: &BoundPairs<'_>) -> BoundState {
        // Before the look-up: a key that is removed meanwhile is looked up again by the next call.
        let removals = self.keys.table.removals();
        let BoundPairs { values, outs } = pairs;
        let mut desk = CallMemory::take();
        let held = self.keys.table.hold();
        let keep = |lists: &Lists<'_>| BoundLists::of(lists, &held);
        let lists = desk.check.with_lists(&held, values, outs, keep).flatten();
        drop(held);
        desk.leave();
        BoundState { removals: Some(removals), lists }
    }

    /// Runs a call of a bound list on this thread, one call of it at a time; `list_call` makes the same
    /// call of lists that are not plain, or of a job.
    pub(crate) fn run_bound(
        self: &Arc<Self>,
        call: DataCall,
        bound: &BoundPlan,
        pairs: &BoundPairs<'_>,
        list_call: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let patience = self.patience();
        let mut state = self.lock_bound(call, bound, &patience)?;
        if state.removals.is_some_and(|seen| seen != self.keys.table.removals()) {
            *state = self.look_up_bound(pairs);
        }
        // Quick checks know of no weight.
        let plain = state.lists.as_ref().filter(|_| self.weight.get().is_none());
        let Some(lists) = plain else { return list_call() };
        self.fault("push");
        let at_once = self.tickets.turn_at_once().is_some();
        let mut desk = CallMemory::take();
        let begun = self.make_bound(call, lists, &mut desk, at_once);
        self.end_call(call, desk, Ok(begun), &patience)
    }

    /// Makes a short call if it may be made `at_once`, and plans what is left of it, to be merged as
    /// given.
    fn make_bound(
        &self,
        call: DataCall,
        bound: &BoundLists,
        desk: &mut CallMemory,
        at_once: bool,
    ) -> Option<Handling> {
        let CallMemory { plan, check, shared } = desk;
        check.with_bound(bound, parts(call), |lists| {
            let mut make = |merge: Option<&ShortMerge>| {
                let merge = merge.filter(|_| at_once);
                let left = match merge {
                    Some(merge) => self.applier.make_lists(lists, merge, shared),
                    None => lists.keys(),
                };
                bound.plan(left, plan);
                merge.cloned().map(ShortMerge::into_handling)
            };
            if call == DataCall::Pull {
                return make(Some(&ShortMerge::Assign));
            }
            // A change of the merge waits for the call, which holds a part of the table.
            let first = bound.first_pushed()?;
            let made = self.keys.table.with(first.key, |_, merge| Some(make(merge)));
            // The first key is gone: the plan fails with its name.
            made.unwrap_or_else(|| make(None))
        })
    }

    /// Waits for the end of another thread's call of the list.
    fn lock_bound<'a>(
        &'a self,
        call: DataCall,
        bound: &'a BoundPlan,
        patience: &LazyDeadline,
    ) -> Result<WriteGuard<'a, BoundState>> {
        let released = &self.applier.released;
        if let Some(state) = bound.0.try_write(released) {
            return Ok(state);
        }
        let limits = CallLimits { patience, cancel: None };
        limits.patiently(|until| bound.0.write_until(released, until)).ok_or_else(|| {
            fail!(
                Timeout,
                "{}: another thread's call of this bound list goes on (an updater that does not \
                 return?); nothing has been applied",
                call.name()
            )
        })
    }
}
