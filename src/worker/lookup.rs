//! Lists of keys: a request for each, and what this worker learns of keys that others have initialised.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use super::call::PendingCall;
use super::submit::AT_ONCE;
use super::{Machinery, WorkerStore};
use crate::error::{ErrorKind, Result, fail};
use crate::key::{Key, KeyNames};
use crate::local::plan::Plan;
use crate::local::table::Slot;
use crate::tensor::{DType, element_count};
use kvstore_protocol::{Failure, KeySpec, Naming, OpId, Time};

/// The names of a store.
pub(super) struct OfStore(pub(crate) Weak<KeyNames>);

impl Naming for OfStore {
    fn name(&self, key: u64) -> Option<String> {
        self.0.upgrade()?.with(Key::from(key), |name| name.to_string_lossy().into_owned())
    }

    fn second_hash(&self, key: u64) -> u64 {
        self.0.upgrade().map_or(0, |names| names.second_hash(Key::from(key)))
    }
}

impl WorkerStore {
    /// Makes a request for each of a list, and waits once, for the end of all. The first in the list that
    /// fails is the result; the call has the operations, in the order of the list.
    pub(super) fn request_each<T>(
        &self,
        list: impl IntoIterator<Item = T>,
        ask: impl Fn(&mut Machinery, T, Time) -> std::result::Result<OpId, Failure>,
    ) -> (Arc<PendingCall>, Result<()>) {
        let call = PendingCall::new(None, Plan::default(), Vec::new());
        let mut list = list.into_iter().enumerate().peekable();
        let mut refused = false;
        // The machine is not kept from everything else while a long list is gone through.
        while list.peek().is_some() && !refused {
            let some = self.step(|worker, desk, now| {
                for (part, item) in list.by_ref().take(AT_ONCE.0) {
                    match ask(worker, item, now) {
                        Ok(operation) => desk.enter(operation, &call, part),
                        Err(failure) => {
                            call.fail(part, self.error(&failure));
                            refused = true;
                            break;
                        }
                    }
                }
                Ok(())
            });
            if let Err(error) = some {
                call.fail(usize::MAX, error);
                refused = true;
            }
        }
        self.driver.host.settle(&call, &self.driver.blocks);
        let result = self.wait(&call);
        (call, result)
    }

    /// Learns what keys are that this worker has not initialised: all that it does not know at once.
    pub(super) fn find(&self, call: &'static str, keys: impl Iterator<Item = Key>) -> Result<()> {
        let table = &self.local.keys.table;
        let mut unknown: Vec<Key> =
            keys.filter(|key| table.with(*key, |_| Some(())).is_none()).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let mut met = HashSet::with_capacity(unknown.len());
        unknown.retain(|key| met.insert(*key));
        let end = self.moment(self.local.deadline());
        let (_, asked) =
            self.request_each(&unknown, |worker, key, now| worker.find(key.id(), now, end));
        let lacking = self.adopt(call, &unknown)?;
        asked.map_err(|error| match (error.kind(), lacking) {
            (ErrorKind::KeyNotFound, Some(key)) => self.local.keys.scene(call).unknown(key),
            _ => error.at(call),
        })
    }

    /// Takes keys of which it is known where they are into this worker's table; gives the first that is
    /// nowhere.
    fn adopt(&self, call: &'static str, keys: &[Key]) -> Result<Option<Key>> {
        let mut lacking = None;
        for some in keys.chunks(AT_ONCE.0) {
            let slots: Vec<Option<Slot>> = self.step(|worker, _, _| {
                let slot = |key: &Key| {
                    let place = worker.place_of(key.id());
                    let order = |key| self.local.keys.table.next_order(key);
                    place.map(|place| slot_of(*key, order(*key), &place.spec)).transpose()
                };
                some.iter().map(slot).collect()
            })?;
            for (key, slot) in some.iter().zip(slots) {
                let Some(slot) = slot else {
                    lacking = lacking.or(Some(*key));
                    continue;
                };
                if self.local.keys.add(call, &[Arc::new(slot)]).is_ok() {
                    self.found.lock().insert(*key);
                }
            }
        }
        Ok(lacking)
    }
}

/// What this worker must know of a key that others have initialised.
fn slot_of(key: Key, order: u64, spec: &KeySpec) -> Result<Slot> {
    let unknown = || fail!(Unsupported, "{} has a dtype that this release does not know", key.id());
    let dtype = DType::from_code(spec.dtype).ok_or_else(unknown)?;
    let shape: Option<Vec<i64>> =
        spec.shape.iter().map(|extent| i64::try_from(*extent).ok()).collect();
    let shape = shape.ok_or_else(unknown)?;
    let count = element_count(&shape).ok_or_else(unknown)?;
    Slot::new(key, order, dtype, &shape, count)
}
