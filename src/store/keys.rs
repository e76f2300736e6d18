//! Keys of a local store come and go.

use std::sync::Arc;

use parking_lot::RwLock;

use super::apply::Limits;
use super::local::Local;
use super::plan::{Pairs, Scene};
use super::table::{Counters, Slot, Value};
use super::ticket::Label;
use crate::error::{Error, Result, fail};
use crate::key::Key;
use crate::sys::DefaultFloats;
use crate::tensor::{Buffer, Lent, Tensor};

impl Local {
    pub(super) fn exists(&self, call: &str, key: Key) -> Error {
        fail!(KeyExists, "{call}: {} has been initialised before", self.names.label(key))
    }

    pub(super) fn init(&self, values: &Pairs<'_>) -> Result<()> {
        let fresh = self.make_slots(&self.scene("init"), values)?;
        self.table.add(fresh.iter().cloned(), |key| self.exists("init", key))
    }

    /// Copies values into slots that are not in the table yet.
    pub(super) fn make_slots(
        &self,
        scene: &Scene<'_>,
        values: &Pairs<'_>,
    ) -> Result<Vec<Arc<Slot>>> {
        let call = scene.call;
        let mut seen = values.keys.to_vec();
        seen.sort_unstable();
        if let Some(pair) = seen.windows(2).find(|pair| pair[0] == pair[1]) {
            let key = self.names.label(pair[0]);
            return Err(fail!(KeyExists, "{call}: {key} stands twice in the list"));
        }
        for &key in values.keys {
            if key.is_name() && !self.names.knows(key) {
                let label = self.names.label(key);
                return Err(fail!(KeyNotFound, "{call}: {label}: intern the name first"));
            }
            if self.table.get(key).is_some() {
                return Err(self.exists(call, key));
            }
        }
        // All tensors are checked before the first one is copied.
        let mut tensors = Vec::with_capacity(values.keys.len());
        for index in 0..values.keys.len() {
            tensors.push(values.tensor(index, scene, "value")?);
        }
        values
            .keys
            .iter()
            .zip(&tensors)
            .map(|(&key, tensor)| self.make_slot(scene, key, tensor))
            .collect()
    }

    fn make_slot(&self, scene: &Scene<'_>, key: Key, tensor: &Tensor<'_>) -> Result<Arc<Slot>> {
        let (call, dtype, count) = (scene.call, tensor.dtype(), tensor.count());
        let name_it = |error: Error| {
            let label = self.names.label(key);
            Error::new(error.kind(), format!("{call}: {label}: {tensor:?}: {}", error.message()))
        };
        let buffer = Buffer::new(count.saturating_mul(dtype.size())).map_err(name_it)?;
        let slot = Slot {
            key,
            order: self.table.next_order(key),
            dtype,
            shape: tensor.shape().into(),
            count,
            value: RwLock::new(Value { buffer, removed: false }),
            counters: Counters::default(),
        };
        let _floats = DefaultFloats::enter();
        self.team.sum(&slot, &[Lent::new(tensor)], &slot.value.read().buffer, &[])?;
        Ok(Arc::new(slot))
    }

    pub(super) fn remove(self: &Arc<Self>, keys: &[Key]) -> Result<()> {
        let scene = self.scene("remove");
        let mut slots: Vec<Arc<Slot>> = Vec::with_capacity(keys.len());
        for &key in keys {
            slots.push(self.table.get(key).ok_or_else(|| scene.unknown(key))?);
        }
        slots.sort_unstable_by_key(|slot| slot.order);
        if let Some(pair) = slots.windows(2).find(|pair| pair[0].key == pair[1].key) {
            let key = self.names.label(pair[0].key);
            return Err(fail!(KeyNotFound, "remove: {key} stands twice in the list"));
        }
        let Some(first) = slots.first() else {
            return Ok(());
        };
        let label = Label { call: "remove", first_key: first.key.id(), keys: slots.len() };
        let limits = Limits { deadline: self.deadline(), cancel: None };
        let visit = |visit: &mut dyn FnMut(u64)| slots.iter().for_each(|slot| visit(slot.key.id()));
        let turn = self.tickets.enter(label, visit, limits.deadline)?;
        let result = self.table.remove(&slots, || {
            let mut values = Vec::with_capacity(slots.len());
            for slot in &slots {
                values.push(self.lock("remove", slot, limits)?);
            }
            for value in &mut values {
                value.removed = true;
                value.buffer = Buffer::new(0)?;
            }
            Ok(())
        });
        self.schedule(self.tickets.leave(turn));
        result
    }
}
