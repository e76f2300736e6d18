//! Calls on keys whose values are in host memory, with tensors on the device.

use std::sync::Arc;

use super::DeviceCall;
use super::staging::Staging;
use crate::error::Result;
use crate::local::apply::{Applier, HostWork, KeyEnd, KeyPush};
use crate::local::counters::CallTally;
use crate::local::merger::Merger;
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::Slot;
use crate::sys::DefaultFloats;
use crate::tensor::{Lent, Memory};

/// The sum of a key's values, in a pinned block; None if all its values are in host memory.
type StagedSum = Option<usize>;

impl Applier {
    /// Merges values into keys in host memory, and fills their outs.
    pub(super) fn run_host_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &mut [PlannedOut],
        tally: &mut CallTally,
    ) -> Result<()> {
        let mut sums = Staging::new(work.queue, work.queues);
        let staged = self.add_sums(work, groups, &mut sums)?;
        let naming = self.naming(work, &groups[0].slot);
        sums.prepare().map_err(&naming)?;
        let mut results = Staging::new(work.queue, work.queues);
        let targets = self.add_results(work, groups, outs, &mut results)?;
        results.prepare().map_err(&naming)?;
        if staged.iter().any(Option::is_some) {
            let mark = sums.queue().map_err(&naming)?;
            self.wait_for(work, &groups[0].slot, &mark, "it and keys after it are unchanged")?;
        }
        for ((group, staged), targets) in groups.iter().zip(staged).zip(targets) {
            if work.limits.is_cancelled() {
                return Err(self.cancelled(work.name, &group.slot));
            }
            let slot = &*group.slot;
            let sum = staged.map(|block| [sums.content(block, slot.dtype)]);
            let values = match &sum {
                Some(sum) => sum.as_slice(),
                None => &work.values[group.values.clone()],
            };
            let push = KeyPush {
                call: work.name,
                slot,
                values,
                outs: &targets,
                limits: work.limits,
                touched: work.touched,
            };
            self.run_host_key(work, &push, &group.slot, tally)?;
        }
        if !results.is_empty() {
            results.queue().map_err(naming)?;
        }
        Ok(())
    }

    /// Adds the copies of results to outs on devices. Gives the outs of each key in host memory: the
    /// caller's, and a block for those on devices.
    fn add_results(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &mut [PlannedOut],
        results: &mut Staging<'_>,
    ) -> Result<Vec<Vec<PlannedOut>>> {
        let mut all = Vec::with_capacity(groups.len());
        for group in groups {
            let slot = &*group.slot;
            let (mut targets, on_device) = split(&mut outs[group.outs.clone()], slot);
            let mut add = || -> Result<()> {
                let Some(_) = on_device.first() else { return Ok(()) };
                let block = results.block(slot.bytes())?;
                let lent = results.content(block, slot.dtype);
                targets.push(PlannedOut { lent, shadowed: false });
                on_device.iter().try_for_each(|out| add_out(results, slot, block, out))
            };
            add().map_err(self.naming(work, slot))?;
            all.push(targets);
        }
        Ok(all)
    }

    /// Adds the sums of keys with values on the device.
    fn add_sums(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        staging: &mut Staging<'_>,
    ) -> Result<Vec<StagedSum>> {
        let mut staged = Vec::with_capacity(groups.len());
        for group in groups {
            let (slot, values) = (&*group.slot, &work.values[group.values.clone()]);
            let is_on_device = values.iter().any(|it| it.memory() != Memory::Host);
            if !is_on_device {
                staged.push(None);
                continue;
            }
            let mut add = || -> Result<usize> {
                let sum = staging.sum(self.team, slot, values)?;
                let block = staging.block(slot.bytes())?;
                staging.download(block, sum, slot.bytes());
                Ok(block)
            };
            staged.push(Some(add().map_err(self.naming(work, slot))?));
        }
        Ok(staged)
    }

    /// The part of a key that the processor does.
    fn run_host_key(
        &self,
        work: &DeviceCall<'_>,
        push: &KeyPush<'_>,
        slot: &Arc<Slot>,
        tally: &mut CallTally,
    ) -> Result<()> {
        let ours = !matches!(work.handling.merger, Merger::Updater(_));
        let _floats = ours.then(DefaultFloats::enter);
        let finished = if push.values.is_empty() {
            self.pull(push, tally)?
        } else {
            self.push(push, work.handling, tally)?
        };
        match finished {
            KeyEnd::Done => Ok(()),
            KeyEnd::Stopped => Err(self.stopped(work.call, slot)),
            KeyEnd::Elsewhere => {
                let &KeyPush { values, outs, limits, touched, .. } = push;
                let (call, handling) = (work.call, work.handling);
                let work = HostWork { call, handling, limits, values, outs, touched };
                let (slot, values, outs) = (Arc::clone(slot), 0..values.len(), 0..outs.len());
                self.apply_elsewhere(&work, &[KeyGroup { slot, values, outs }], tally)
            }
        }
    }
}

/// Takes a key's outs apart: those in host memory, and those on the device that no later out
/// overwrites.
fn split(outs: &mut [PlannedOut], slot: &Slot) -> (Vec<PlannedOut>, Vec<Lent>) {
    let (mut host, mut device) = (Vec::new(), Vec::new());
    for out in outs {
        let gone = Lent::plain(std::ptr::null_mut(), slot.dtype);
        let out = std::mem::replace(out, PlannedOut { lent: gone, shadowed: true });
        if out.lent.memory() == Memory::Host {
            host.push(out);
        } else if !out.shadowed && slot.count > 0 {
            device.push(out.lent);
        }
    }
    (host, device)
}

/// Adds the copy of a result to an out on the device.
fn add_out(results: &mut Staging<'_>, slot: &Slot, block: usize, out: &Lent) -> Result<()> {
    if out.is_plain(slot.dtype) && results.is_own(out.memory()) {
        results.upload(block, out.data().addr() as u64, slot.bytes());
        return Ok(());
    }
    let plain = results.span(slot.bytes())?;
    results.upload(block, plain, slot.bytes());
    if results.is_own(out.memory()) {
        return results.scatter(slot, plain, out);
    }
    results.send(slot, plain, out)
}
