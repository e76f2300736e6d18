//! The ends of operations with a ticket: callbacks, and the list of those that have ended.

use super::{CallClass, Store};
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result, fail};
use crate::local::ticket::DoneCallback;

impl Store {
    /// Has a callback called when an operation has ended: on the calling thread, now, if it has.
    pub(crate) fn on_done(&self, ticket: u64, callback: DoneCallback) -> Result<()> {
        self.enter(CallClass::EndNow, |local| local.tickets.on_done(ticket, callback))
    }

    /// Has an operation in the list of [`Store::next_done`] when it has ended.
    pub(crate) fn watch_ticket(&self, ticket: u64) -> Result<()> {
        self.enter(CallClass::EndNow, |local| local.tickets.watch(ticket))
    }

    /// Takes a watched operation that has ended, with its result.
    pub(crate) fn next_done(&self) -> Result<Option<(u64, Result<()>)>> {
        self.enter(CallClass::EndNow, |local| Ok(local.tickets.next_done()))
    }

    /// A descriptor that is readable while [`Store::next_done`] has something to give.
    pub(crate) fn event_fd(&self) -> Result<i32> {
        self.enter(CallClass::EndNow, |local| local.tickets.descriptor())
    }

    /// A wait inside a callback of an operation's end, which must not wait.
    pub(super) fn look_at_ticket(&self, ticket: u64, deadline: Deadline) -> Result<()> {
        let polls = deadline.has_passed();
        let now = Deadline::At(std::time::Instant::now());
        let result = self.enter(CallClass::EndNow, |local| local.tickets.wait(ticket, now));
        result.map_err(|error| match error.kind() {
            ErrorKind::Timeout if !polls => fail!(
                Reentrant,
                "{}; a callback of on_done must not wait for it: use on_done for that ticket too",
                error.message()
            ),
            _ => error,
        })
    }
}
