//! The keys of a local store: adding and removing them.

use std::sync::Arc;

use super::lock::WriteGuard;
use super::merge::Team;
use super::plan::{CallContext, Pairs, TensorUse};
use super::table::{KeyTable, Slot, Value};
use crate::error::{Error, Result, fail};
use crate::key::{Key, KeyNames};
use crate::sys::DefaultFloats;
#[cfg(feature = "cuda")]
use crate::tensor::Memory;
use crate::tensor::{Buffer, Lent, PageOffset, Tensor};

pub(crate) struct LocalKeys {
    pub(crate) table: KeyTable,
    pub(crate) names: Arc<KeyNames>,
    pub(crate) team: Team<'static>,
}

impl LocalKeys {
    pub(crate) fn scene(&self, call: &'static str) -> CallContext<'_> {
        CallContext {
            call,
            names: &self.names,
            table: &self.table,
            coming: None,
            patience: None,
            #[cfg(feature = "cuda")]
            devices: None,
        }
    }

    /// Adds slots to the table, all or none.
    pub(crate) fn add(&self, call: &str, slots: &[Arc<Slot>]) -> Result<()> {
        self.table.add(slots.iter().cloned(), |key| self.exists(call, key))
    }

    fn exists(&self, call: &str, key: Key) -> Error {
        fail!(KeyExists, "{call}: {} has been initialised before", self.names.label(key))
    }

    /// Copies values into slots that are not in the table yet.
    pub(crate) fn make(
        &self,
        scene: &CallContext<'_>,
        values: &Pairs<'_>,
    ) -> Result<Vec<Arc<Slot>>> {
        // All tensors are checked before the first one is copied.
        let tensors = self.check_new(scene, values)?;
        let pairs = values.keys.iter().zip(&tensors);
        pairs.map(|(&key, tensor)| self.make_one(scene, key, tensor)).collect()
    }

    /// The values of keys that are not in the table yet.
    pub(crate) fn check_new<'a>(
        &self,
        scene: &CallContext<'_>,
        values: &Pairs<'a>,
    ) -> Result<Vec<Tensor<'a>>> {
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
        (0..values.keys.len()).map(|index| values.tensor(index, scene, TensorUse::Value)).collect()
    }

    pub(crate) fn make_one(
        &self,
        scene: &CallContext<'_>,
        key: Key,
        tensor: &Tensor<'_>,
    ) -> Result<Arc<Slot>> {
        let (call, dtype, count) = (scene.call, tensor.dtype(), tensor.count());
        let name_it =
            |error: Error| error.at(format_args!("{call}: {}: {tensor:?}", self.names.label(key)));
        #[cfg(feature = "cuda")]
        if let (Memory::Device(ordinal), Some(devices)) = (tensor.memory(), scene.devices) {
            let order = self.table.next_order(key);
            let slot = Slot::new(key, order, dtype, tensor.shape(), count)?;
            let made = devices.give_memory(slot, ordinal).map(Arc::new);
            return made.map_err(|error| scene.refuse(key, TensorUse::Value, &error));
        }
        let mut buffer = Buffer::new(count.saturating_mul(dtype.size())).map_err(name_it)?;
        buffer.place(tensor.as_ptr(), PageOffset::Stored);
        let order = self.table.next_order(key);
        let mut slot = Slot::new(key, order, dtype, tensor.shape(), count)?;
        let _floats = DefaultFloats::enter();
        self.team.sum(&slot, &[Lent::new(tensor)], &buffer)?;
        slot.value.get_mut().buffer = buffer;
        Ok(Arc::new(slot))
    }

    /// The slots of different keys, in processing order.
    pub(crate) fn find(&self, scene: &CallContext<'_>, keys: &[Key]) -> Result<Vec<Arc<Slot>>> {
        let slot = |&key: &Key| self.table.get(key).ok_or_else(|| scene.unknown(key));
        let mut slots = keys.iter().map(slot).collect::<Result<Vec<_>>>()?;
        slots.sort_unstable_by_key(|slot| slot.order);
        match slots.windows(2).find(|pair| pair[0].key == pair[1].key) {
            None => Ok(slots),
            Some(pair) => {
                let (call, key) = (scene.call, self.names.label(pair[0].key));
                Err(fail!(KeyNotFound, "{call}: {key} stands twice in the list"))
            }
        }
    }

    /// Removes slots, in processing order, from the table and frees their values, once all of them
    /// could be locked.
    pub(crate) fn remove<'a>(
        &self,
        slots: &'a [Arc<Slot>],
        lock: impl Fn(&'a Slot) -> Result<WriteGuard<'a, Value>>,
    ) -> Result<()> {
        // Before the table: calls on other keys go on while this waits.
        let mut values = slots.iter().map(|slot| lock(slot)).collect::<Result<Vec<_>>>()?;
        self.table.remove(slots, || {
            for value in &mut values {
                value.remove()?;
            }
            Ok(())
        })
    }
}
