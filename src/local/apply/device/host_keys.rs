//! Calls on keys whose values are in host memory, with tensors on the device.

use std::sync::Arc;

use smallvec::SmallVec;

use super::DeviceCall;
use super::staging::Staging;
use crate::device::Mark;
use crate::error::Result;
use crate::local::apply::{Applier, HostWork, KeyEnd, KeyPush};
use crate::local::counters::CallTally;
use crate::local::plan::{KeyGroup, PlannedOut};
use crate::local::table::Slot;
use crate::sys::DefaultFloats;
use crate::tensor::{LINE, Lent, Memory};

/// The download of the sum of a key's values; None if all its values are in host memory.
type StagedSum = Option<usize>;

/// The outs of a key, by where they are.
struct SplitOuts {
    host: Vec<PlannedOut>,
    /// Addresses on the device of the call that get the result: of outs, or of memory from which they
    /// are filled.
    device: SmallVec<[u64; 4]>,
}

impl Applier {
    /// Merges values into keys in host memory, and fills their outs.
    pub(super) fn run_host_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &mut [PlannedOut],
        tally: &mut CallTally,
    ) -> Result<()> {
        let mut sums = self.staging(work);
        let staged = self.add_sums(work, groups, &mut sums)?;
        let naming = self.naming(work, &groups[0].slot);
        sums.prepare().map_err(&naming)?;
        let mut results = self.staging(work);
        let targets = self.add_results(work, groups, outs, &mut results)?;
        results.prepare().map_err(&naming)?;
        if staged.iter().any(Option::is_some) {
            sums.queue().map_err(&naming)?;
        }
        for ((group, staged), targets) in groups.iter().zip(staged).zip(targets) {
            if work.limits.is_cancelled() {
                return Err(self.cancelled(work.name, &group.slot));
            }
            let (slot, mut own) = (&*group.slot, None);
            let wait =
                |mark: &Mark| self.wait_for(work, slot, mark, "it and keys after it are unchanged");
            let of_key = (slot.bytes(), slot.dtype);
            let sum = staged.map(|index| sums.fetch_whole(index, of_key, &mut own, &wait));
            let sum = sum.transpose()?;
            let values = match &sum {
                Some(sum) => std::slice::from_ref(sum),
                None => &work.values[group.values.clone()],
            };
            self.fill_results(work, group, values, targets, &mut results, tally)?;
        }
        if !results.is_empty() {
            results.queue().map_err(naming)?;
        }
        Ok(())
    }

    /// Merges the values of a key, and fills its outs.
    fn fill_results(
        &self,
        work: &DeviceCall<'_>,
        group: &KeyGroup,
        values: &[Lent],
        SplitOuts { mut host, device }: SplitOuts,
        results: &mut Staging<'_>,
        tally: &mut CallTally,
    ) -> Result<()> {
        let slot = &*group.slot;
        let mut room = None;
        if !device.is_empty() {
            let own = results.host_room(slot.bytes()).map_err(self.naming(work, slot))?;
            let lent = results.lent(&own, slot.dtype);
            host.push(PlannedOut { lent, shadowed: false });
            room = Some(own);
        }
        let push = KeyPush {
            call: work.name,
            slot,
            values,
            outs: &host,
            limits: work.limits,
            touched: work.touched,
            digester: None,
            divisor: None,
            scale: 1.0,
            keeping: None,
        };
        self.run_host_key(work, &push, &group.slot, tally)?;
        results.rest = "it is applied, keys after it are unchanged, and outs are undefined";
        let sent = room.map(|room| results.upload_room(&room, slot.bytes(), &device));
        sent.unwrap_or(Ok(())).map_err(self.naming(work, slot))
    }

    /// Adds the copies of results to outs on devices. Gives the outs of each key.
    fn add_results(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &mut [PlannedOut],
        results: &mut Staging<'_>,
    ) -> Result<Vec<SplitOuts>> {
        let (mut all, mut bytes) = (Vec::with_capacity(groups.len()), 0);
        for group in groups {
            let slot = &*group.slot;
            let (host, on_device) = split(&mut outs[group.outs.clone()], slot);
            bytes += if on_device.is_empty() { 0 } else { slot.bytes().next_multiple_of(LINE) };
            let device = on_device.iter().map(|out| add_out(results, slot, out));
            let device = device.collect::<Result<_>>().map_err(self.naming(work, slot))?;
            all.push(SplitOuts { host, device });
        }
        results.reserve(bytes).map_err(self.naming(work, &groups[0].slot))?;
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
        let values_of = |group: &KeyGroup| &work.values[group.values.clone()];
        let is_staged =
            |group: &KeyGroup| values_of(group).iter().any(|value| value.memory() != Memory::Host);
        let with_sums = groups.iter().filter(|group| is_staged(group));
        let here = with_sums.map(|group| Staging::bytes_here(&group.slot, values_of(group))).sum();
        staging.reserve(here).map_err(self.naming(work, &groups[0].slot))?;
        for group in groups {
            let (slot, values) = (&*group.slot, values_of(group));
            if !is_staged(group) {
                staged.push(None);
                continue;
            }
            let mut add = || -> Result<usize> {
                let sum = staging.sum(slot, values)?;
                Ok(staging.download(sum, slot.bytes()))
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
        let ours = !work.handling.has_updater();
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
                let &KeyPush { values, outs, limits, touched, scale, .. } = push;
                let (call, handling) = (work.call, work.handling);
                let work = HostWork { call, handling, limits, values, outs, touched, scale };
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

/// The address on the device of the call to which a result is copied for an out on a device.
fn add_out(results: &mut Staging<'_>, slot: &Slot, out: &Lent) -> Result<u64> {
    if out.is_plain(slot.dtype) && results.is_own(out.memory()) {
        return Ok(out.data().addr() as u64);
    }
    let plain = results.span(slot.bytes())?;
    if results.is_own(out.memory()) {
        results.scatter(slot, plain, out)?;
    } else {
        results.send(slot, plain, out)?;
    }
    Ok(plain)
}
