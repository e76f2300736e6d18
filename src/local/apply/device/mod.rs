//! Executes plans that use a device: the work is queued in stream order, under the locks of the keys.
//!
//! Keys whose values are on the device are one launch. Those in host memory have their values summed
//! on the device, and one copy for each sum.

mod files;
mod homes;
mod host_keys;
mod keys;
mod peers;
mod spans;
mod staging;
mod updated;

use super::{Applier, CallLimits, Team};
use crate::device::{CallQueue, Mark};
use crate::error::{Error, Result, fail};
use crate::local::call::DataCall;
use crate::local::counters::CallTally;
use crate::local::handling::{no_clipping_on_a_gpu, no_transaction_on_a_gpu};
use crate::local::merger::{Handling, Merger};
use crate::local::plan::{KeyGroup, Plan, PlannedOut};
use crate::local::table::Slot;
use crate::local::weight::no_weight_on_a_gpu;
use crate::tensor::Lent;
use staging::Staging;

/// What a place relies on that uses the memory of a key on a device.
const EMPTY: &str = "a key on a device has memory there";

/// A call that uses devices.
#[derive(Clone, Copy)]
struct DeviceCall<'a> {
    call: DataCall,
    /// Its name in errors.
    name: &'static str,
    handling: &'a Handling,
    limits: CallLimits<'a>,
    /// Of the device on which values are merged.
    queue: &'a CallQueue,
    /// Of all devices that have a tensor or a key.
    queues: &'a [CallQueue],
    values: &'a [Lent],
    /// Bytes that the whole call touches.
    touched: usize,
}

impl Applier {
    /// Executes a plan whose work goes to queues; `name` is that of the call in errors.
    pub(crate) fn apply_on_devices(
        &self,
        (call, name): (DataCall, &'static str),
        plan: &mut Plan,
        queues: &[CallQueue],
        handling: &Handling,
        limits: CallLimits<'_>,
        tally: &mut CallTally,
    ) -> Result<()> {
        let (touched, queue) = (plan.touched(), &queues[0]);
        let Plan { groups, values, outs, .. } = plan;
        let work = DeviceCall { call, name, handling, limits, queue, queues, values, touched };
        self.check_codec(&work, groups)?;
        queues.iter().try_for_each(|queue| queue.begin().map(drop))?;
        self.settle(&work, groups, outs)?;
        let mut rest = &groups[..];
        while let Some(first) = rest.first() {
            let ordinal = first.home(values, outs);
            let is_there = |group: &&KeyGroup| group.home(values, outs) == ordinal;
            let count = 1 + rest[1..].iter().take_while(is_there).count();
            let (of_device, others) = rest.split_at(count);
            rest = others;
            let home = queues.iter().find(|queue| Some(queue.device.ordinal) == ordinal);
            // Since the call was planned the key may have moved to a device without a tensor.
            let own = match (home, ordinal) {
                (None, Some(_)) => Some(self.own_queue(name, &of_device[0].slot, limits)?),
                _ => None,
            };
            let work = DeviceCall { queue: home.or(own.as_ref()).unwrap_or(queue), ..work };
            let _scope = work.queue.device.enter()?;
            let kind = |group: &KeyGroup| {
                let is_kept = group.slot.device().is_some();
                (is_kept, matches!(work.handling.merger_of(group.slot.key), Merger::Updater(_)))
            };
            for run in of_device.chunk_by(|a, b| kind(a) == kind(b)) {
                if kind(&run[0]).0 {
                    self.run_kept_keys(&work, run, outs, tally)?;
                } else {
                    self.run_host_keys(&work, run, outs, tally)?;
                }
            }
        }
        let waits = self.devices.settings.waits;
        for queue in queues.iter().filter(|queue| waits && !queue.has_ticket()) {
            let ended = queue.mark().and_then(|it| it.wait(|| limits.patience.end().is_over()));
            if !ended.map_err(|error| error.at(name))? {
                let (key, gpu) = (self.names.label(groups[0].slot.key), queue.device.ordinal);
                return Err(fail!(
                    Timeout,
                    "{name}: {key}: GPU {gpu} has not done it in time; work queued before it takes \
                     longer; it uses the tensors until then"
                ));
            }
        }
        Ok(())
    }

    /// Makes a call on keys on the device, which all merge by an updater, or none.
    fn run_kept_keys(
        &self,
        work: &DeviceCall<'_>,
        groups: &[KeyGroup],
        outs: &[PlannedOut],
        tally: &mut CallTally,
    ) -> Result<()> {
        match work.handling.merger_of(groups[0].slot.key) {
            Merger::Updater(updater) => self.run_updated_keys(work, groups, outs, updater, tally),
            _ => self.run_keys(work, groups, outs, tally),
        }
    }

    /// Refuses what cannot be done on a device yet, before anything is queued.
    fn check_codec(&self, work: &DeviceCall<'_>, groups: &[KeyGroup]) -> Result<()> {
        let mut pushed = groups.iter().filter(|group| !group.values.is_empty());
        let Handling { codec, divisor, .. } = work.handling;
        if let Some(group) = work.handling.first_kept(groups) {
            return Err(no_transaction_on_a_gpu(work.name, &self.names.label(group.slot.key)));
        }
        if let Some(group) = work.handling.first_clipped(groups) {
            return Err(no_clipping_on_a_gpu(work.name, &self.names.label(group.slot.key)));
        }
        let is_plain = codec.is_none() && divisor.is_none();
        let Some(group) = pushed.next().filter(|_| !is_plain) else {
            return Ok(());
        };
        let (call, key) = (work.name, self.names.label(group.slot.key));
        if divisor.is_some() {
            return Err(no_weight_on_a_gpu(call, &key));
        }
        Err(fail!(
            Unsupported,
            "{call}: {key}: compression of values on a GPU is not served yet; push values in host \
             memory (tensor.cpu()) to keys in host memory"
        ))
    }

    /// Names the call and a key in an error.
    fn naming(&self, work: &DeviceCall<'_>, slot: &Slot) -> impl Fn(Error) -> Error {
        move |error| error.at(format_args!("{}: {}", work.name, self.names.label(slot.key)))
    }

    /// Waits until the device has done what was queued before a mark.
    fn wait_for(&self, work: &DeviceCall<'_>, slot: &Slot, mark: &Mark, rest: &str) -> Result<()> {
        let limits = work.limits;
        let is_over = || limits.is_cancelled() || limits.patience.end().is_over();
        if mark.wait(is_over).map_err(self.naming(work, slot))? {
            return Ok(());
        }
        if limits.is_cancelled() {
            return Err(self.cancelled(work.name, slot));
        }
        Err(self.naming(work, slot)(too_late(work.queue.device.ordinal, rest)))
    }

    /// The work of a call on one device, which is to be collected.
    fn staging<'a>(&self, work: &DeviceCall<'a>) -> Staging<'a> {
        let team = Team { touched: work.touched, ..self.team };
        Staging::new((work.queue, work.queues), team, work.limits)
    }
}

/// The error of a wait that has come to its deadline.
fn too_late(gpu: u16, rest: &str) -> Error {
    fail!(
        Timeout,
        "GPU {gpu} has not come to it in time; work queued before it on your stream takes longer; \
         {rest}"
    )
}

/// The outs of a key.
fn outs_of<'a>(group: &KeyGroup, outs: &'a [PlannedOut]) -> &'a [PlannedOut] {
    &outs[group.outs.clone()]
}
