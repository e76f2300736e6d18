//! The group of a worker's machine, as its servers learn of it.

use super::Worker;
use super::operation::{OpId, OperationKind};
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Failure, Peer, Time};
use crate::message::kinds::Form;
use crate::stream::CONTROL;

impl<D: Data> Worker<D> {
    /// Makes the group of this machine known to all servers. Other requests come after it has ended.
    ///
    /// # Errors
    /// The worker is closed, or has ended.
    pub fn form(&mut self, now: Time, deadline: Time) -> Result<OpId, Failure> {
        self.request(OperationKind::Form, 0, now, deadline)
    }

    pub(super) fn start_forming(&mut self, id: OpId) {
        let Some(terms) = self.group.clone() else { return };
        for server in 0..self.limits.servers {
            if let Some(op) = self.ops.get_mut(id) {
                op.unanswered.insert(server);
            }
            let form = Form { request: id, terms: terms.clone() };
            self.send_awaited(id, Peer::server(server), form, CONTROL);
        }
    }

    /// A server knows the group.
    pub(super) fn formed(&mut self, from: Peer, request: OpId) -> Handled {
        let op = self.ops.get_mut(request).ok_or(DropReason::Late)?;
        if !matches!(op.what, OperationKind::Form) {
            return Err(DropReason::Misfit);
        }
        op.unanswered.remove(from.rank);
        self.finish_if_complete(request);
        Ok(())
    }
}
