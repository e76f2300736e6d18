//! Asynchronous operations of Rust programs, with a ticket (also called: futures). The operation's handle
//! owns the buffers, or they are borrowed for a scope that does not end before the operations do.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::data::{pair, pair_outs};
use super::{DataCall, Store};
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result};
use crate::key::Key;
use crate::local::plan::{Pairs, RowPairs};
use crate::sys::sync::Mutex;
use crate::tensor::{Element, Tensor, TensorMut};

/// An operation that owns its buffer until it has finished; `await` gives the buffer back. Dropping it
/// cancels the operation.
#[must_use = "dropping it cancels the operation"]
pub struct Pending<'a, T> {
    store: &'a Store,
    ticket: u64,
    buffer: ManuallyDrop<Vec<T>>,
    /// What to wake at the end, once a task has waited for it.
    waker: Option<Arc<Mutex<Option<Waker>>>>,
}

impl<T: Element> Pending<'_, T> {
    /// Waits for the operation and gives the buffer back.
    ///
    /// # Errors
    /// The operation's own. After a `Timeout` the operation has been cancelled, and the buffer is freed if
    /// that ended the loan. If not (an updater that does not return), the buffer is never freed.
    pub fn wait(mut self, deadline: impl Into<Deadline>) -> Result<Vec<T>> {
        self.store.wait_ticket(self.ticket, deadline.into())?;
        let buffer = std::mem::take(&mut *self.buffer);
        Ok(buffer)
    }

    /// Has a function called with the result, once, when the operation has ended: also when it is
    /// cancelled, by a drop too, and when the store is aborted or dropped. No thread waits for it.
    ///
    /// If the operation has ended already, the function is called at once, on this thread; otherwise on a
    /// thread of the store, which calls one function after the other. Inside of it the store refuses calls
    /// that could wait with `Reentrant`.
    ///
    /// # Errors
    /// `OutOfMemory` if no thread can be started, and the errors of a poisoned store. The function is then
    /// not called.
    pub fn on_done(&self, function: impl FnOnce(&Result<()>) + Send + 'static) -> Result<()> {
        self.store.on_done(self.ticket, Box::new(move |_, result| function(result)))
    }

    /// Whether it has finished, in success or not.
    #[must_use]
    pub fn is_done(&self) -> bool {
        !is_timeout(&self.store.wait_ticket(self.ticket, Deadline::after(Duration::ZERO)))
    }
}

impl<T> Drop for Pending<'_, T> {
    fn drop(&mut self) {
        if loan_has_ended(self.store, self.ticket) {
            drop(std::mem::take(&mut *self.buffer));
        }
    }
}

impl<T: Element + Unpin> Future for Pending<'_, T> {
    /// The buffer. Without a deadline: the executor's own stops the waiting.
    type Output = Result<Vec<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let is_new = self.waker.is_none();
        let waker = Arc::clone(self.waker.get_or_insert_default());
        *waker.lock() = Some(context.waker().clone());
        if is_new {
            self.on_done(move |_| {
                if let Some(waker) = waker.lock().take() {
                    waker.wake();
                }
            })?;
        }
        let result = self.store.wait_ticket(self.ticket, Deadline::after(Duration::ZERO));
        if is_timeout(&result) {
            return Poll::Pending;
        }
        Poll::Ready(result.map(|()| std::mem::take(&mut *self.buffer)))
    }
}

/// Ends a loan; false if the memory may still be used.
fn loan_has_ended(store: &Store, ticket: u64) -> bool {
    match store.cancel_ticket(ticket) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::Timeout => false,
        // In the child of a fork no thread works on the operation; a stale ticket has long finished. A
        // poisoned store starts no more operations, but running ones continue.
        Err(error) if error.kind() == ErrorKind::Poisoned => store.comes_to_rest(),
        Err(error) => error.kind() != ErrorKind::Reentrant,
    }
}

fn is_timeout(result: &Result<()>) -> bool {
    result.as_ref().is_err_and(|error| error.kind() == ErrorKind::Timeout)
}

/// Operations that borrow buffers for `'env`; made by [`Store::scope`].
pub struct Scope<'store, 'env> {
    store: &'store Store,
    tickets: RefCell<Vec<u64>>,
    /// Invariant: a buffer borrowed for longer must not be taken for one borrowed for less.
    env: PhantomData<&'env mut &'env ()>,
}

impl<'env> Scope<'_, 'env> {
    /// Queues a push; the values are borrowed until the scope ends. Larger priorities run earlier.
    ///
    /// # Errors
    /// As [`Store::push_list`]; failures of the operation itself come from [`Store::scope`].
    pub fn push_list(&self, keys: &[Key], values: &[Tensor<'env>], priority: i32) -> Result<()> {
        self.submit(DataCall::Push, &pair("push", keys, values)?, &Pairs::NONE, priority)
    }

    /// Queues a pull; the outs are borrowed until the scope ends. Larger priorities run earlier.
    ///
    /// # Errors
    /// As [`Store::pull_list`]; failures of the operation itself come from [`Store::scope`].
    #[allow(clippy::needless_pass_by_value, reason = "the scope takes the borrows over")]
    pub fn pull_list(&self, keys: &[Key], outs: Vec<TensorMut<'env>>, priority: i32) -> Result<()> {
        self.submit(DataCall::Pull, &Pairs::NONE, &pair_outs("pull", keys, &outs)?, priority)
    }

    /// Queues a push of rows; the rows are borrowed until the scope ends, the ids are copied.
    ///
    /// # Errors
    /// As [`Store::push_rows_list`]; failures of the operation itself come from [`Store::scope`].
    pub fn push_rows_list(
        &self,
        keys: &[Key],
        ids: &[Tensor<'_>],
        rows: &[Tensor<'env>],
        priority: i32,
    ) -> Result<()> {
        let (ids, rows) = (pair("push_rows", keys, ids)?, pair("push_rows", keys, rows)?);
        self.keep(self.store.submit_rows(DataCall::PushRows, &RowPairs { ids, rows }, priority))
    }

    /// Queues a pull of rows; the outs are borrowed until the scope ends, the ids are copied.
    ///
    /// # Errors
    /// As [`Store::pull_rows_list`]; failures of the operation itself come from [`Store::scope`].
    #[allow(clippy::needless_pass_by_value, reason = "the scope takes the borrows over")]
    pub fn pull_rows_list(
        &self,
        keys: &[Key],
        ids: &[Tensor<'_>],
        outs: Vec<TensorMut<'env>>,
        priority: i32,
    ) -> Result<()> {
        let (ids, rows) = (pair("pull_rows", keys, ids)?, pair_outs("pull_rows", keys, &outs)?);
        self.keep(self.store.submit_rows(DataCall::PullRows, &RowPairs { ids, rows }, priority))
    }

    fn submit(
        &self,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<()> {
        self.keep(self.store.submit(call, values, outs, priority))
    }

    /// Records an operation for the end of the scope.
    fn keep(&self, ticket: Result<u64>) -> Result<()> {
        self.tickets.borrow_mut().push(ticket?);
        Ok(())
    }
}

/// Ends every loan of a scope, also while a panic unwinds through it.
struct EndOfScope<'a, 'store, 'env>(&'a Scope<'store, 'env>);

impl Drop for EndOfScope<'_, '_, '_> {
    fn drop(&mut self) {
        // The last operation first: those that wait for an earlier one are cancelled before it lets them
        // begin.
        for &ticket in self.0.tickets.borrow().iter().rev() {
            // The borrow ends when this drop returns, so the loan must end before.
            while !loan_has_ended(self.0.store, ticket) {}
        }
    }
}

impl Store {
    /// Runs `body`, which may queue operations on borrowed buffers, then waits for them.
    ///
    /// # Errors
    /// The error of `body`, else the first failure of an operation, else `Timeout` if operations did not
    /// finish by the deadline. After an error of `body` or a `Timeout`, pending operations are cancelled.
    pub fn scope<'env, T>(
        &self,
        deadline: impl Into<Deadline>,
        body: impl FnOnce(&Scope<'_, 'env>) -> Result<T>,
    ) -> Result<T> {
        let scope = Scope { store: self, tickets: RefCell::default(), env: PhantomData };
        let end = EndOfScope(&scope);
        let value = body(&scope)?;
        let deadline = deadline.into();
        let mut failure: Option<Error> = None;
        for &ticket in scope.tickets.borrow().iter() {
            if let Err(error) = self.wait_ticket(ticket, deadline) {
                failure.get_or_insert(error);
            }
        }
        drop(end);
        failure.map_or(Ok(value), Err)
    }

    /// Queues a push of a buffer that the operation owns until it has finished.
    ///
    /// # Errors
    /// As [`Store::push`].
    pub fn push_owned<T: Element>(
        &self,
        key: impl Into<Key>,
        value: Vec<T>,
        priority: i32,
    ) -> Result<Pending<'_, T>> {
        let keys = [key.into()];
        let info = self.key_info(keys[0])?;
        let ticket = {
            let value = [Tensor::new(&value, &info.shape)?];
            self.submit(DataCall::Push, &pair("push", &keys, &value)?, &Pairs::NONE, priority)?
        };
        Ok(Pending { store: self, ticket, buffer: ManuallyDrop::new(value), waker: None })
    }

    /// Queues a pull into a buffer that the operation owns until it has finished.
    ///
    /// # Errors
    /// As [`Store::pull`].
    pub fn pull_owned<T: Element>(
        &self,
        key: impl Into<Key>,
        mut out: Vec<T>,
        priority: i32,
    ) -> Result<Pending<'_, T>> {
        let keys = [key.into()];
        let info = self.key_info(keys[0])?;
        let ticket = {
            let outs = [TensorMut::new(&mut out, &info.shape)?];
            self.submit(DataCall::Pull, &Pairs::NONE, &pair_outs("pull", &keys, &outs)?, priority)?
        };
        Ok(Pending { store: self, ticket, buffer: ManuallyDrop::new(out), waker: None })
    }
}
