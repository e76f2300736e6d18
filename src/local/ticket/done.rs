//! Registrations for the end of operations.

use super::calls::{DoneCall, DoneCallback};
use super::listeners::Listener;
use super::state::TicketState;
use super::{TicketWork, Tickets};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::sys::sync::{Arc, MutexGuard};

impl<W: TicketWork> Tickets<W> {
    /// Has `callback` called when the operation has ended: on the calling thread, now, if it has.
    pub(crate) fn on_done(&self, ticket: u64, callback: DoneCallback) -> Result<()> {
        let sequence = self.sequence_of(ticket)?;
        let mut state = self.state.lock();
        state.refuse_if_unknown(sequence)?;
        if state.is_pending(sequence) {
            state.listeners.calls.start()?;
            state.listeners.add(sequence, Listener::Call(callback));
            return Ok(());
        }
        let call = DoneCall { ticket, result: state.outcomes.result(sequence), callback };
        let calls = Arc::clone(&state.listeners.calls);
        drop(state);
        calls.run(call)
    }

    /// Has the operation in the list of [`Tickets::next_done`] when it has ended.
    pub(crate) fn watch(&self, ticket: u64) -> Result<()> {
        let sequence = self.sequence_of(ticket)?;
        let mut state = self.state.lock();
        state.refuse_if_unknown(sequence)?;
        if state.is_pending(sequence) {
            state.listeners.add(sequence, Listener::List);
        } else {
            let result = state.outcomes.look(sequence);
            state.listeners.ended.push(ticket, result);
        }
        Ok(())
    }

    /// Takes the first of the watched operations that have ended, which counts as reported.
    pub(crate) fn next_done(&self) -> Option<(u64, Result<()>)> {
        let mut state = self.state.lock();
        let (ticket, result) = state.listeners.ended.take()?;
        if let Ok(sequence) = self.sequence_of(ticket) {
            let _ = state.outcomes.result(sequence);
        }
        Some((ticket, result))
    }

    /// A descriptor that is readable while [`Tickets::next_done`] has something to give.
    pub(crate) fn descriptor(&self) -> Result<i32> {
        self.state.lock().listeners.ended.descriptor()
    }

    /// Waits until all callbacks of operations that have ended have returned, and ends their thread; no
    /// operation is at work.
    pub(crate) fn end_calls(&self, deadline: Deadline) {
        let calls = Arc::clone(&self.state.lock().listeners.calls);
        calls.end(deadline);
    }

    /// Closes the descriptor.
    pub(crate) fn close_descriptor(&self) {
        self.state.lock().listeners.ended.close();
    }

    /// Waits, with the state unlocked, until no callback is queued or running.
    pub(super) fn wait_calls<'a>(
        &'a self,
        state: &mut MutexGuard<'a, TicketState<W>>,
        deadline: Deadline,
    ) -> Result<()> {
        let calls = Arc::clone(&state.listeners.calls);
        if self.state.unlocked(state, || calls.wait_idle(deadline)) {
            return Ok(());
        }
        Err(fail!(Timeout, "close: a callback of on_done has not returned; it goes on"))
    }
}
