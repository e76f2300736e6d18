//! Initialisation of keys in the local table and on the servers.

use std::sync::Arc;

use super::call::{PendingCall, PendingKey, PullTarget};
use super::inputs::{CallInputs, OutgoingValue, SpareLoans};
use super::lookup::spec_of;
use super::submit::AT_ONCE;
use super::{WorkerMachine, WorkerStore, internal};
use crate::error::Result;
use crate::key::Key;
use crate::local::plan::{CallContext, Pairs, Plan};
use crate::local::table::Slot;
use crate::runtime::Bytes;
use crate::tensor::{Buffer, Lent, Tensor};
use kvstore_protocol::Time;

/// Maximum keys of a list that are being initialised, twice: while the first ones are awaited, the next ones are
/// requested.
pub(super) const INITS_AT_ONCE: usize = 16_384;

/// A new key that no table has yet, and its value.
struct FreshKey {
    slot: Arc<Slot>,
    value: Option<OutgoingValue>,
}

impl WorkerStore {
    /// Initialises keys in the local table and on the servers.
    pub(super) fn create(&self, call: &'static str, values: &Pairs<'_>) -> Result<()> {
        self.check_writes(call)?;
        let local = &self.local;
        self.check_messages(call, *self.whole.lock(), &local.handling.read(), values.sizes())?;
        let adopted = self.let_go_of_found(values.keys)?;
        let result = self.fresh_keys(call, values).and_then(|(slots, fresh)| {
            local.check_keys(call, &local.handling.read(), &slots)?;
            self.leave_unfinished();
            self.declare(fresh)?;
            local.keys.add("init", &slots)
        });
        if result.is_err() {
            // Keys that were usable before remain so.
            let _ = local.keys.add(call, &adopted);
            self.found.lock().extend(adopted.iter().map(|slot| slot.key));
        }
        result
    }

    /// Removes keys from the table that were only looked up: this worker may initialise them as well.
    fn let_go_of_found(&self, keys: &[Key]) -> Result<Vec<Arc<Slot>>> {
        let mut found = self.found.lock();
        let known: Vec<Key> = keys.iter().copied().filter(|key| found.remove(key)).collect();
        let slots: Vec<_> =
            known.iter().filter_map(|key| self.local.keys.table.get(*key)).collect();
        self.local.keys.table.remove(&slots, || Ok(()))?;
        Ok(slots)
    }

    /// Checks new keys.
    fn fresh_keys(
        &self,
        call: &'static str,
        values: &Pairs<'_>,
    ) -> Result<(Vec<Arc<Slot>>, Vec<FreshKey>)> {
        let keys = &self.local.keys;
        let scene = keys.scene(call);
        let tensors = keys.check_new(&scene, values)?;
        let fresh = values.keys.iter().zip(&tensors);
        let fresh = fresh.map(|(&key, tensor)| self.fresh_key(&scene, key, tensor));
        let fresh = fresh.collect::<Result<Vec<_>>>()?;
        Ok((fresh.iter().map(|key| Arc::clone(&key.slot)).collect(), fresh))
    }

    /// A plain value is lent until the call ends; another one is copied.
    fn fresh_key(
        &self,
        scene: &CallContext<'_>,
        key: Key,
        tensor: &Tensor<'_>,
    ) -> Result<FreshKey> {
        let (lent, dtype) = (Lent::new(tensor), tensor.dtype());
        if lent.is_plain(dtype) {
            let order = self.local.keys.table.next_order(key);
            let slot = Slot::new(key, order, dtype, tensor.shape(), tensor.count())?;
            let value = OutgoingValue::Lent { start: lent.data(), bytes: slot.bytes() };
            return Ok(FreshKey { slot: Arc::new(slot), value: Some(value) });
        }
        let mut slot = self.local.keys.make_one(scene, key, tensor)?;
        let new = Arc::get_mut(&mut slot).ok_or_else(|| internal("a new key is in use"))?;
        let buffer = std::mem::replace(&mut new.value.get_mut().buffer, Buffer::new(0)?);
        let block = self.driver.blocks.wrap(buffer, slot.bytes());
        Ok(FreshKey { slot, value: Some(OutgoingValue::Made(Bytes::of_block(block))) })
    }

    /// Requests the initialisation of keys, and waits for it. Of a long list some keys are requested at a
    /// time: requests, values and messages take memory on all sides. The worker that provides the values
    /// waits for no other, so workers may have the keys in any order.
    fn declare(&self, mut fresh: Vec<FreshKey>) -> Result<()> {
        let end = self.moment(self.local.deadline());
        let (mut operations, mut under_way, mut result) = (Vec::new(), None, Ok(()));
        for some in fresh.chunks_mut(INITS_AT_ONCE) {
            let call = match self.begin_inits(some, end) {
                Ok(call) => call,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            operations.push(call.operations());
            // Behind it the next ones are on their way.
            if let Some(before) = under_way.replace(call) {
                result = self.wait(&before);
            }
            if result.is_err() {
                break;
            }
        }
        if let Some(last) = under_way {
            let ended = self.wait(&last);
            result = result.and(ended);
        }
        if result.is_err() {
            let some = operations.into_iter().zip(fresh.chunks(INITS_AT_ONCE));
            let made = some.flat_map(|(operations, some)| operations.into_iter().zip(some));
            let made: Vec<_> = made.collect();
            for some in made.chunks(AT_ONCE.0) {
                // A stopped machine has failed the call already.
                let _ = self.step(|worker, _| {
                    some.iter().for_each(|(init, key)| worker.disown(*init, key.slot.key.id()));
                });
            }
        }
        result
    }

    /// Requests the initialisation of some keys.
    fn begin_inits(&self, keys: &mut [FreshKey], end: Time) -> Result<Arc<PendingCall>> {
        let part =
            |key: &FreshKey| PendingKey::new(Arc::clone(&key.slot), PullTarget::Nowhere, 0..0);
        let parts = keys.iter().map(part).collect();
        let call = PendingCall::new(self.group.clone(), None, Plan::default(), parts);
        let (whole, mut spare, mut lent) =
            (*self.whole.lock(), SpareLoans::default(), Vec::with_capacity(keys.len()));
        let mut orders = Vec::with_capacity(keys.len());
        for (at, FreshKey { slot, value }) in keys.iter_mut().enumerate() {
            let value = value.take().ok_or_else(|| internal("a key is initialised twice"))?;
            let (inputs, loans) = (&mut CallInputs::default(), (&mut spare, &mut lent));
            let data = self.make(call.part(at), value, inputs, loans)?;
            orders.push((slot.key.id(), spec_of(slot, whole), data));
        }
        call.lend(&mut lent);
        self.begin_each(&call, orders, |worker: &mut WorkerMachine, (key, spec, data), now| {
            worker.init(key, spec, data, now, end)
        });
        Ok(call)
    }
}
