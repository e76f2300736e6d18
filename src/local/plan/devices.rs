//! The device of a call: which one it is, and whether the call may use its tensors there.

use std::sync::Arc;

use super::{CallContext, KeyGroup, Pairs, Plan, TensorUse};
use crate::config::CudaChoice;
use crate::device::{self, CallQueue, Device, KeyMemory};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::table::Slot;
use crate::tensor::{Buffer, Lent, Memory};

/// How a store uses devices.
#[derive(Debug, Clone)]
pub(crate) struct DeviceAccess {
    pub(crate) choice: CudaChoice,
    /// Whether values stay on the device of the tensor that initialises them.
    pub(crate) keeps_values: bool,
}

impl DeviceAccess {
    pub(crate) fn open(&self, ordinal: u16) -> Result<&'static Device> {
        device::open(&self.choice, ordinal)
    }

    /// Gives a new key memory for its value, which is to be copied from a device.
    pub(crate) fn give_memory(&self, mut slot: Slot, ordinal: u16) -> Result<Slot> {
        let bytes = slot.bytes();
        if self.keeps_values {
            let queue = CallQueue::of_caller(self.open(ordinal)?)?;
            let _scope = queue.begin()?;
            let memory = KeyMemory::new(queue.device, bytes, &queue.stream)?;
            slot.value.get_mut().device = Some(Box::new(memory));
            slot.device = Some(ordinal);
        } else {
            slot.value.get_mut().buffer = Buffer::new(bytes)?;
        }
        Ok(slot)
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
        plan.find_queue(scene)?;
        Ok(plan.queue.is_some().then_some(plan))
    }

    /// Finds where the work of the call is queued, if a tensor or a key is on a device, and checks
    /// the tensors that are.
    pub(super) fn find_queue(&mut self, scene: &CallContext<'_>) -> Result<()> {
        let Some(access) = scene.devices else { return Ok(()) };
        let mut found: Option<(u16, Key, Option<TensorUse>)> = None;
        for group in &self.groups {
            let key = group.slot.key;
            let own = group.slot.device().map(|ordinal| (ordinal, None));
            let tensors = self.tensors(group).filter_map(|(lent, part)| match lent.memory() {
                Memory::Host => None,
                Memory::Device(ordinal) => Some((ordinal, Some(part))),
            });
            for (ordinal, part) in own.into_iter().chain(tensors) {
                let (first, ..) = *found.get_or_insert((ordinal, key, part));
                if first != ordinal {
                    let checked = access.open(first).and_then(|it| it.driver.check_number(ordinal));
                    checked
                        .map_err(|it| scene.refuse(key, part.unwrap_or(TensorUse::Value), &it))?;
                    let (call, key) = (scene.call, scene.names.label(key));
                    return Err(fail!(
                        Unsupported,
                        "{call}: {key}: a call on GPU {first} and GPU {ordinal} is not served yet; make \
                         a call for each, or copy to one of them"
                    ));
                }
            }
        }
        let Some((ordinal, key, part)) = found else { return Ok(()) };
        let opened = access.open(ordinal).and_then(CallQueue::of_caller);
        let queue = opened.map_err(|error| match part {
            Some(part) => scene.refuse(key, part, &error),
            None => error.at(format_args!("{}: {}", scene.call, scene.names.label(key))),
        })?;
        self.check_ranges(scene, queue.device)?;
        self.queue = Some(queue);
        Ok(())
    }

    /// The tensors of a key.
    fn tensors(&self, group: &KeyGroup) -> impl Iterator<Item = (&Lent, TensorUse)> {
        let values = self.values[group.values.clone()].iter().map(|it| (it, TensorUse::Value));
        let outs = self.outs[group.outs.clone()].iter().map(|it| (&it.lent, TensorUse::Out));
        values.chain(outs)
    }

    /// Refuses tensors that are said to be on the device and reach beyond its memory.
    fn check_ranges(&self, scene: &CallContext<'_>, device: &'static Device) -> Result<()> {
        let _scope = device.enter()?;
        // The allocation of the last tensor: those of a framework share large ones.
        let mut known = (0, 0);
        for group in self.groups.iter().filter(|group| group.slot.count > 0) {
            let of_device = self.tensors(group).filter(|(it, _)| it.memory() != Memory::Host);
            for (lent, part) in of_device {
                let range = lent.byte_range(&group.slot.shape);
                if range.0 < known.0 || range.1 > known.1 {
                    let checked = device.check_range(range);
                    known = checked.map_err(|it| scene.refuse(group.slot.key, part, &it))?;
                }
            }
        }
        Ok(())
    }
}
