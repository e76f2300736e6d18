//! Catch-up of a worker that is done (also called: learner): the other workers do not wait for it, and it
//! takes no part in their decisions.

use std::collections::HashSet;
use std::sync::Arc;

use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result, fail};
use crate::job::settings::Change;
use crate::key::Key;
use crate::local::table::Slot;
use crate::worker::lookup::spec_of;
use crate::worker::{WorkerMachine, WorkerStore};
use kvstore_protocol::{Failure, OpId, Time};

impl WorkerStore {
    /// Fetches the present settings and keys.
    pub(super) fn catch_up(&self, deadline: Deadline) -> Result<()> {
        self.learn_settings(deadline)?;
        self.learn_keys(deadline)
    }

    /// Fetches the present settings.
    pub(super) fn learn_settings(&self, deadline: Deadline) -> Result<()> {
        while let Some(fields) = self.learn(deadline, WorkerMachine::learn_setting)? {
            // Empty if no worker was left to decide.
            if !fields.is_empty() {
                let after = Change::decode(&fields)?.apply(&self.local.handling.read().clone())?;
                self.local.adopt(after)?;
            }
        }
        Ok(())
    }

    /// Makes this worker's table equal to the directory of the job.
    fn learn_keys(&self, deadline: Deadline) -> Result<()> {
        let (mut there, mut next) = (HashSet::new(), Some(0));
        while let Some(from) = next
            && let Some(told) =
                self.learn(deadline, |worker, now, end| worker.learn_key(from, now, end))?
        {
            let key = told.first_chunk().map(|id| Key::from(u64::from_le_bytes(*id)));
            let key = key.ok_or_else(|| fail!(Internal, "a bug of this library: which key?"))?;
            if key.is_name() && !self.local.keys.names.knows(key) {
                return Err(fail!(
                    InvalidArgument,
                    "{}: another worker has initialised it; intern its name here as well, for the file",
                    self.local.keys.names.label(key)
                ));
            }
            there.insert(key);
            next = key.id().checked_add(1);
        }
        let table = &self.local.keys.table;
        let mut others = table.slots();
        others.retain(|slot| !there.contains(&slot.key) || !self.is_as_placed(slot));
        table.remove(&others, || Ok(()))?;
        self.find("save", there.into_iter())
    }

    /// Whether the table entry of a key matches its placement.
    fn is_as_placed(&self, slot: &Arc<Slot>) -> bool {
        self.place(slot.key).is_ok_and(|place| place.spec == spec_of(slot, place.spec.whole))
    }

    /// Requests a setting or a key; None if there is none.
    fn learn(
        &self,
        deadline: Deadline,
        ask: impl FnOnce(&mut WorkerMachine, Time, Time) -> std::result::Result<OpId, Failure>,
    ) -> Result<Option<Vec<u8>>> {
        match self.request_told(deadline, ask) {
            (Ok(()), told) => Ok(Some(told)),
            (Err(error), _) if error.kind() == ErrorKind::KeyNotFound => Ok(None),
            (Err(error), _) => Err(error),
        }
    }
}
