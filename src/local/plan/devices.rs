//! The device of a call: which one it is, and whether the call may use its tensors there.

use std::sync::Arc;

use super::{CallContext, KeyGroup, Pairs, Plan, PlannedOut, TensorUse};
use crate::config::DeviceSettings;
use crate::device::{self, CallQueue, CallQueues, Device, KeyMemory, MemoryBudget};
use crate::error::{Result, fail};
use crate::local::table::Slot;
use crate::tensor::{Buffer, Lent, Memory};

/// How a store uses devices.
#[derive(Debug, Clone)]
pub(crate) struct DeviceAccess {
    pub(crate) settings: DeviceSettings,
    /// Whether values stay on the device of the tensor that initialises them.
    pub(crate) keeps_values: bool,
    /// Whether sums are those of a binary tree, which devices do not have.
    pub(crate) adds_by_tree: bool,
    /// Of the memory of its keys.
    pub(crate) budget: Arc<MemoryBudget>,
}

impl DeviceAccess {
    pub(crate) fn open(&self, ordinal: u16) -> Result<&'static Device> {
        if self.adds_by_tree {
            return Err(fail!(
                Unsupported,
                "is in the memory of GPU {ordinal}, and GPUs do not add by sum_order=tree; copy the \
                 tensor to host memory first, or use sum_order=linear"
            ));
        }
        let DeviceSettings { cuda, allowed, .. } = &self.settings;
        if allowed.as_ref().is_some_and(|allowed| !allowed.contains(&ordinal)) {
            return Err(fail!(
                InvalidArgument,
                "is in the memory of GPU {ordinal}, which the option devices leaves out"
            ));
        }
        device::open(cuda, ordinal)
    }

    /// Gives a new key memory for its value, which is to be copied from a device.
    pub(crate) fn give_memory(&self, mut slot: Slot, ordinal: u16) -> Result<Slot> {
        let bytes = slot.bytes();
        if self.keeps_values {
            let queue = CallQueue::of_caller(self.open(ordinal)?)?;
            let _scope = queue.begin()?;
            let memory = KeyMemory::new(queue.device, &self.budget, bytes, &queue.stream)?;
            slot.value.get_mut().give(memory);
            slot.note_device(ordinal);
        } else {
            slot.value.get_mut().buffer = Buffer::new(bytes)?;
        }
        Ok(slot)
    }
}

impl KeyGroup {
    /// The key's tensors among those of a plan.
    pub(crate) fn tensors<'a>(
        &self,
        values: &'a [Lent],
        outs: &'a [PlannedOut],
    ) -> impl Iterator<Item = (&'a Lent, TensorUse)> {
        let values = values[self.values.clone()].iter().map(|it| (it, TensorUse::Value));
        let outs = outs[self.outs.clone()].iter().map(|it| (&it.lent, TensorUse::Out));
        values.chain(outs)
    }

    /// The device on which the values of the key are merged: that of its value, else the first among
    /// its tensors.
    pub(crate) fn home(&self, values: &[Lent], outs: &[PlannedOut]) -> Option<u16> {
        let of_tensors = || self.tensors(values, outs).find_map(|(lent, _)| lent.memory().device());
        self.slot.device().or_else(of_tensors)
    }
}

impl Plan {
    /// A plan that copies values on devices into new keys; None if all values are in host memory.
    pub(crate) fn of_first_values(
        scene: &CallContext<'_>,
        slots: &[Arc<Slot>],
        values: &Pairs<'_>,
    ) -> Result<Option<Self>> {
        let mut plan = Self::default();
        for (index, slot) in slots.iter().enumerate() {
            let tensor = values.tensor(index, scene, TensorUse::Value)?;
            if tensor.memory() != Memory::Host {
                let first = plan.values.len();
                plan.values.push(Lent::new(&tensor));
                plan.add(Arc::clone(slot), first..first + 1, 0..0);
            }
        }
        plan.find_queues(scene)?;
        Ok((!plan.queues.is_empty()).then_some(plan))
    }

    /// Finds where the work of the call is queued, if a tensor or a key is on a device, and checks
    /// the tensors that are.
    pub(super) fn find_queues(&mut self, scene: &CallContext<'_>) -> Result<()> {
        let Some(access) = scene.devices else { return Ok(()) };
        let mut queues = CallQueues::new();
        for group in &self.groups {
            let key = group.slot.key;
            let own = group.slot.device().map(|ordinal| (ordinal, None));
            let tensors = group.tensors(&self.values, &self.outs);
            let tensors =
                tensors.filter_map(|(it, part)| Some((it.memory().device()?, Some(part))));
            for (ordinal, part) in own.into_iter().chain(tensors) {
                if queues.iter().any(|queue| queue.device.ordinal == ordinal) {
                    continue;
                }
                let opened = access.open(ordinal).and_then(CallQueue::of_caller);
                queues.push(opened.map_err(|error| match part {
                    Some(part) => scene.refuse(key, part, &error),
                    None => error.at(format_args!("{}: {}", scene.call, scene.names.label(key))),
                })?);
            }
        }
        if access.settings.checks {
            self.check_tensors(scene, &queues)?;
        }
        self.queues = queues;
        Ok(())
    }

    /// Refuses tensors that are said to be on a device and reach beyond its memory.
    fn check_tensors(&self, scene: &CallContext<'_>, queues: &[CallQueue]) -> Result<()> {
        // The allocation of the last tensor: those of a framework share large ones.
        let mut known = (0, (0, 0));
        let mut scope = None;
        for group in self.groups.iter().filter(|group| group.slot.count > 0) {
            let slot = &*group.slot;
            for (lent, part) in group.tensors(&self.values, &self.outs) {
                let Some(ordinal) = lent.memory().device() else { continue };
                let range = lent.byte_range(&slot.shape);
                let (start, end) = known.1;
                let is_known = known.0 == ordinal && range.0 >= start && range.1 <= end;
                let device = queues.iter().map(|it| it.device).find(|it| it.ordinal == ordinal);
                if let Some(device) = device.filter(|_| !is_known) {
                    if scope.as_ref().is_none_or(|(entered, _)| *entered != ordinal) {
                        // Scopes end before others begin.
                        drop(scope.take());
                        scope = Some((ordinal, device.enter()?));
                    }
                    let checked = device.check_range(range);
                    known = (ordinal, checked.map_err(|it| scene.refuse(slot.key, part, &it))?);
                }
            }
        }
        Ok(())
    }
}
