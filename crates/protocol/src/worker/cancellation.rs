//! Cancellation (also: timeouts, abandonment): operations whose deadline has passed, or that were cancelled.
//! No later call waits for them. A started one takes effect or is withdrawn; any other has no effect.

use super::errors;
use super::operation::{OpId, Operation, OperationKind, RemovalRollback};
use super::{DIRECTORY, Worker, WorkerAction, WorkerKey};
use crate::bit_set::BitSet;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Peer, Time};
use crate::message::kinds::{Declare, Remove, Removed};
use crate::message::{COLLECTIVE, Proposal};

impl<D: Data> Worker<D> {
    /// Cancels an operation: it does not finish for the driver. A push that has begun still takes effect.
    pub fn abandon(&mut self, id: OpId) {
        if self.ops.get(id).is_some_and(|op| !op.abandoned) {
            self.give_up(id);
            self.go_on();
        }
    }

    /// Withdraws an init that has ended, because a list of keys was not initialised as a whole: the worker
    /// may initialise the key again.
    pub fn disown(&mut self, init: OpId, key: u64) {
        if self.keys.get(&key).is_some_and(|key| key.is_made_by(init)) {
            self.withdraw_init(init, key);
        }
    }

    /// The deadline of an operation has passed.
    pub(super) fn overdue(&mut self, id: OpId, now: Time) {
        let Some(op) = self.ops.get(id) else { return };
        let blocker = self.blocker(id).map(|blocker| errors::earlier(blocker, now));
        let failure = errors::overdue(op, self.keys.get(&op.key), blocker);
        let ended = self.tally.ended(op, false);
        let gives_up = matches!(op.what, OperationKind::Close);
        self.actions.push(WorkerAction::Finished { op: id, ended, result: Err(failure) });
        self.give_up(id);
        if gives_up {
            self.ended = true;
        }
    }

    /// Before the deadline: queries the members that an operation waits for, or withdraws a removal.
    pub(super) fn look_after(&mut self, id: OpId, now: Time) {
        let Some(op) = self.ops.get_mut(id) else { return };
        if matches!(op.what, OperationKind::Meet { .. }) {
            return self.ask_for_workers(id, now);
        }
        if !op.asked {
            op.asked = true;
            return self.ask(id);
        }
        if op.back_moment() <= now {
            self.take_back(id);
        }
    }

    fn give_up(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id) else { return };
        op.abandoned = true;
        let (key, started) = (op.key, op.started);
        self.touched.add(key);
        match &op.what {
            // The push takes effect, once; unless no rank has initialised its key.
            OperationKind::Push { .. }
                if started || self.keys.get(&key).and_then(WorkerKey::place).is_some() =>
            {
                op.unanswered = BitSet::default();
                self.finish_if_complete(id);
            }
            OperationKind::Init { .. } if started => self.withdraw_init(id, key),
            OperationKind::Remove { back: RemovalRollback::Kept } => self.finish(id, Ok(())),
            OperationKind::Remove { back: RemovalRollback::No } if started => self.take_back(id),
            OperationKind::Remove { .. } | OperationKind::Restore { .. } if started => {}
            OperationKind::Barrier { number, call } => {
                self.barrier_given_up = Some((*number, *call));
                self.finish(id, Ok(()));
            }
            OperationKind::Set { version, fields } => {
                let given_up = Some((*version, fields.clone()));
                if *version > COLLECTIVE {
                    self.agreement_given_up = given_up;
                } else {
                    self.setting_given_up = given_up;
                }
                if self.changes.remove(&id) {
                    self.touched.add_all();
                }
            }
            // This worker enters it all the same.
            OperationKind::Resume { number } => self.resumption.give_up(*number),
            OperationKind::Done | OperationKind::Close => {}
            _ => self.finish(id, Ok(())),
        }
    }

    /// Ends an abandoned operation, once it has completed the part that other members wait for.
    pub(super) fn finish_if_given_up(&mut self, id: OpId) {
        if self.ops.get(id).is_some_and(|op| op.abandoned) {
            self.finish(id, Ok(()));
        }
    }

    /// First earlier operation that an operation waits for before it starts.
    fn blocker(&self, id: OpId) -> Option<&Operation<D>> {
        let op = self.ops.get(id).filter(|op| !op.started)?;
        let holds = |op: &&Operation<D>| !op.is_over() || op.is_in_transit();
        if op.is_collective() {
            return self.ops.before(id).find(holds);
        }
        let queue = self.keys.get(&op.key)?.queue().take_while(|other| *other != id);
        let before = queue.filter_map(|id| self.ops.get(id)).find(holds);
        before.or_else(|| self.setting_before(id))
    }

    /// Withdraws this worker's wish for a key at the directory.
    fn withdraw_init(&mut self, request: OpId, key: u64) {
        let proposal = Proposal::Key(0, None);
        self.post(
            DIRECTORY,
            Declare { key, setting: 0, request, learn: false, back: true, proposal },
        );
    }

    fn take_back(&mut self, id: OpId) {
        if let Some(OperationKind::Remove { back }) = self.ops.get_mut(id).map(|op| &mut op.what) {
            *back = RemovalRollback::Asked;
            self.send_remove(id, true);
        }
    }

    /// The directory has decided on a removal: the key is removed for all workers, or kept.
    pub(super) fn removed(&mut self, removed: &Removed) -> Handled {
        let Removed { key: id, generation, request, back: is_kept, .. } = *removed;
        if is_kept {
            let Some(OperationKind::Remove { back }) =
                self.ops.get_mut(request).map(|op| &mut op.what)
            else {
                return Err(DropReason::Late);
            };
            *back = RemovalRollback::Kept;
            self.finish_if_given_up(request);
            return Ok(());
        }
        let key = self.keys.get(&id).filter(|key| key.generation() == generation);
        let key = key.filter(|key| key.place().is_some()).ok_or(DropReason::Late)?;
        let (servers, queue) = (key.all_servers(), key.queue().collect::<Vec<_>>());
        let removes = |id: &OpId| {
            self.ops
                .get(*id)
                .is_some_and(|op| op.started && matches!(op.what, OperationKind::Remove { .. }))
        };
        // The loss of a worker may have ended the removal: then the key stays while pulls can succeed.
        if !queue.iter().any(removes) {
            return Err(DropReason::Late);
        }
        for server in servers {
            let (request, at_directory, back) = (0, false, false);
            let remove = Remove { key: id, generation, request, at_directory, back };
            self.post(Peer::server(server), remove);
        }
        self.keys.get_or_default(id).forget();
        self.finish_removed(id, &queue);
        Ok(())
    }

    /// A key is removed: ends the operations on its generation.
    fn finish_removed(&mut self, key: u64, queue: &[OpId]) {
        let mut told = false;
        for &id in queue {
            let Some(op) = self.ops.get(id) else { continue };
            match &op.what {
                // Its servers drop the slices.
                OperationKind::Push { .. } if op.is_over() => {
                    self.flows.iter_mut().for_each(|flow| flow.forget_operation(id));
                    self.finish(id, Ok(()));
                }
                // Also a second call of the removal.
                OperationKind::Remove { .. } => {
                    told |= !op.abandoned;
                    self.finish(id, Ok(()));
                }
                OperationKind::Init { .. } if !op.abandoned => break,
                _ => {}
            }
        }
        if !told {
            self.keys.get_or_default(key).note_gone_unsaid();
        }
    }

    /// Version of a setting, or number of a collective call's agreement: that of the last one, if the program has
    /// given it up and calls again with its fields.
    pub(super) fn version_of(&mut self, fields: &[u8], is_collective: bool) -> u64 {
        let (last, given_up) = if is_collective {
            (self.agreements, &self.agreement_given_up)
        } else {
            (self.settings, &self.setting_given_up)
        };
        let again = |(version, same): &(u64, Vec<u8>)| *version == last && same == fields;
        if !given_up.as_ref().is_some_and(again) {
            return last + 1;
        }
        // The answer belongs to the new operation, unless the old one provides the setting.
        let replaced = |op: &Operation<D>| {
            let same = matches!(op.what, OperationKind::Set { version, .. } if version == last);
            same && op.abandoned && op.undelivered.is_empty()
        };
        self.ids(replaced).into_iter().for_each(|id| self.finish(id, Ok(())));
        last
    }

    /// Operation of an answer about a setting, which may be a second call.
    pub(super) fn setting_of(&self, request: OpId, setting: u64) -> OpId {
        let same = |op: &Operation<D>| matches!(op.what, OperationKind::Set { version, .. } if version == setting);
        match self.ops.get(request) {
            Some(_) => request,
            None => self.ops.iter().find(|(_, op)| same(op)).map_or(request, |(id, _)| id),
        }
    }
}
