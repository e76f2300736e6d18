//! A transaction, and the shares in it: of the setting of a store, and of each call that is made under it. While only
//! the setting has one no push of the transaction is on its way, and none begins, as it would have to read the
//! setting.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::key::Key;
use crate::sys::sync::{Condvar, Mutex};

/// A transaction that has begun.
pub(crate) struct Transaction {
    number: u64,
    state: Mutex<TransactionState>,
    left: Condvar,
}

struct TransactionState {
    shares: usize,
    /// Keys of first pushes.
    pushed: Vec<Key>,
}

/// A share in a transaction.
pub(crate) struct TransactionShare(Arc<Transaction>);

impl Transaction {
    /// Different from that of all other transactions of the process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Notes the first push of a key.
    pub(in crate::local) fn note(&self, key: Key) {
        self.state.lock().pushed.push(key);
    }

    /// The keys, once no call has a share; None if one has until then.
    pub(super) fn alone(&self, until: Instant) -> Option<Vec<Key>> {
        let mut state = self.state.lock();
        while state.shares > 1 {
            if self.left.wait_until(&mut state, until) {
                return None;
            }
        }
        Some(state.pushed.clone())
    }

    /// Whether no call has a share, and no key was pushed behind so many.
    pub(super) fn is_alone_with(&self, keys: usize) -> bool {
        let state = self.state.lock();
        state.shares == 1 && state.pushed.len() == keys
    }
}

impl TransactionShare {
    /// The transaction, without a share in it.
    pub(super) fn transaction(&self) -> Arc<Transaction> {
        Arc::clone(&self.0)
    }

    /// That of a setting, in a new transaction.
    pub(super) fn begin() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // Relaxed: only the number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let state = Mutex::new(TransactionState { shares: 1, pushed: Vec::new() });
        Self(Arc::new(Transaction { number, state, left: Condvar::new() }))
    }
}

impl Deref for TransactionShare {
    type Target = Transaction;

    fn deref(&self) -> &Transaction {
        &self.0
    }
}

impl Clone for TransactionShare {
    fn clone(&self) -> Self {
        self.0.state.lock().shares += 1;
        Self(Arc::clone(&self.0))
    }
}

impl Drop for TransactionShare {
    fn drop(&mut self) {
        self.0.state.lock().shares -= 1;
        self.0.left.notify_all();
    }
}
