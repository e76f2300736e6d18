//! Requests for lists of keys, and key lookup (also called: discovery): metadata of keys that other workers
//! have initialised.

use std::collections::HashSet;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;

use super::call::PendingCall;
use super::submit::AT_ONCE;
use super::{WorkerMachine, WorkerStore};
use crate::error::{ErrorKind, Result, fail};
use crate::key::{Key, KeyNames};
use crate::local::plan::Plan;
use crate::local::table::Slot;
use crate::reentry;
use crate::tensor::{DType, element_count};
use kvstore_protocol::{Failure, KeyNameLookup, KeySpec, OpId, Time};

/// Key names of a store.
pub(super) struct StoreKeyNames(pub(crate) Weak<KeyNames>);

impl KeyNameLookup for StoreKeyNames {
    fn name(&self, key: u64) -> Option<String> {
        self.0.upgrade()?.with(Key::from(key), |name| name.to_string_lossy().into_owned())
    }

    fn second_hash(&self, key: u64) -> u64 {
        self.0.upgrade().map_or(0, |names| names.second_hash(Key::from(key)))
    }
}

impl WorkerStore {
    /// Makes one request for each item, and waits once for all. The result is the first failure in the order
    /// of the list; the call has the operations in that order.
    pub(super) fn request_each<T>(
        &self,
        list: impl IntoIterator<Item = T>,
        ask: impl Fn(&mut WorkerMachine, T, Time) -> std::result::Result<OpId, Failure>,
    ) -> (Arc<PendingCall>, Result<()>) {
        let call = PendingCall::new(self.group.clone(), None, Plan::default(), Vec::new());
        self.begin_each(&call, list, ask);
        let result = self.wait(&call);
        (call, result)
    }

    /// Makes one request of a call for each item.
    pub(super) fn begin_each<T>(
        &self,
        call: &Arc<PendingCall>,
        list: impl IntoIterator<Item = T>,
        ask: impl Fn(&mut WorkerMachine, T, Time) -> std::result::Result<OpId, Failure>,
    ) {
        let mut list = list.into_iter().enumerate().peekable();
        let mut refused = false;
        // Steps are bounded, so that a long list does not block the machine.
        while list.peek().is_some() && !refused {
            let some = self.step_with(|worker, open, now| {
                let mut begun = SmallVec::<[(OpId, usize); AT_ONCE.0]>::new();
                for (part, item) in list.by_ref().take(AT_ONCE.0) {
                    match ask(worker, item, now) {
                        Ok(operation) => begun.push((operation, part)),
                        Err(failure) => {
                            call.fail(part, self.error(&failure));
                            refused = true;
                            break;
                        }
                    }
                }
                open.enter(&begun, call);
            });
            if let Err(error) = some {
                call.fail(usize::MAX, error);
                refused = true;
            }
        }
        self.driver.host.settle(call, 1, &self.driver.blocks);
    }

    /// Looks up all keys that this worker has not used yet, in one batch.
    pub(super) fn find(&self, call: &'static str, keys: impl Iterator<Item = Key>) -> Result<()> {
        let table = &self.local.keys.table;
        let held = table.hold();
        let mut unknown: Vec<Key> = keys.filter(|key| held.get(*key).is_none()).collect();
        drop(held);
        if unknown.is_empty() {
            return Ok(());
        }
        if reentry::inside(self.local.applier.serial).is_some() {
            let key = self.local.keys.names.label(unknown[0]);
            return Err(fail!(
                Reentrant,
                "{call}: {key} has not been used by this worker, and a callback must not wait for its \
                 lookup; use it once outside"
            ));
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

    /// Adds keys with a known placement to this worker's table; gives the first key without one.
    fn adopt(&self, call: &'static str, keys: &[Key]) -> Result<Option<Key>> {
        let mut lacking = None;
        for some in keys.chunks(AT_ONCE.0) {
            let slots: Vec<Option<Slot>> = self.step(|worker, _| {
                let slot = |key: &Key| {
                    let place = worker.place_of(key.id());
                    let order = |key| self.local.keys.table.next_order(key);
                    place.map(|place| slot_of(*key, order(*key), &place.spec)).transpose()
                };
                some.iter().map(slot).collect::<Result<_>>()
            })??;
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

/// Shape of a key, for its initialisation on the servers.
pub(super) fn spec_of(slot: &Slot, whole: bool) -> KeySpec {
    let shape = slot.shape.iter().map(|extent| extent.unsigned_abs()).collect();
    KeySpec { dtype: slot.dtype.code(), shape, whole }
}

/// Table entry for a key that another worker has initialised.
fn slot_of(key: Key, order: u64, spec: &KeySpec) -> Result<Slot> {
    let unknown = || fail!(Unsupported, "{} has a dtype that this release does not know", key.id());
    let dtype = DType::from_code(spec.dtype).ok_or_else(unknown)?;
    let shape: Option<Vec<i64>> =
        spec.shape.iter().map(|extent| i64::try_from(*extent).ok()).collect();
    let shape = shape.ok_or_else(unknown)?;
    let count = element_count(&shape).ok_or_else(unknown)?;
    Slot::new(key, order, dtype, &shape, count)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed test")]

    use std::net::TcpListener;
    use std::sync::{Arc, mpsc};
    use std::thread;
    use std::time::Duration;

    use super::super::long_lists::config;
    use crate::error::{ErrorKind, Result};
    use crate::key::Key;
    use crate::local::call::DataCall;
    use crate::local::plan::Pairs;
    use crate::store::{Store, Tensors};
    use crate::tensor::Tensor;

    const LIMIT: Duration = Duration::from_secs(60);

    /// Lent to operations that nothing waits for.
    static VALUE: [f32; 1] = [1.0];

    #[test]
    fn a_callback_of_an_end_queues_known_keys_and_looks_up_no_others() {
        let root = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let open = |role| Arc::new(Store::open("dist_sync", &config(role, &root, "1")).unwrap());
        let others = ["scheduler", "server"].map(open);
        let serving = others.map(|store| thread::spawn(move || store.serve().unwrap()));
        let worker = open("worker");
        worker.init(1u64, &[0.0f32]).unwrap();
        let (sender, told) = mpsc::channel();
        let store = Arc::clone(&worker);
        let tell = move |_: &Result<()>| {
            let kind = |key: u64| {
                let (keys, values) = ([Key::from(key)], [Tensor::from(&VALUE)]);
                let pairs = Pairs { keys: &keys, tensors: Tensors::Values(&values) };
                store.submit(DataCall::Push, &pairs, &Pairs::NONE, 0).map_err(|error| error.kind())
            };
            let results = (kind(1).is_ok(), kind(2));
            sender
                .send((results, store.push(1u64, &[1.0f32]).map_err(|error| error.kind())))
                .unwrap();
        };
        worker.push_owned(1u64, vec![1.0f32], 0).unwrap().on_done(tell).unwrap();
        let refused = ErrorKind::Reentrant;
        let expected = ((true, Err(refused)), Err(refused));
        assert_eq!(told.recv_timeout(LIMIT).unwrap(), expected);
        worker.close(LIMIT).unwrap();
        serving.into_iter().for_each(|thread| thread.join().unwrap());
    }
}
