//! Transactions of a local store: pushes that can be taken back. Also called: speculation, undo.
//!
//! Each push in a transaction keeps what its key was before the first one. The setting of the store and each call
//! that is made under it have a share in the transaction, which ends when only the setting has one.

pub(crate) mod kept;
pub(crate) mod share;
mod value;

use std::sync::Arc;

use kept::KeptValue;
use share::TransactionShare;

use super::Local;
use super::apply::{CallLimits, GlobalNorm};
use super::lock::WriteGuard;
use super::merger::Handling;
use super::table::{Slot, Value};
use crate::error::{Result, fail};
use crate::log::{Level, log};

/// How a transaction has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Commit {
    /// Its pushes are kept.
    Kept,
    /// The norm of its gradients is above that of [`crate::Store::set_clipping`]: all keys are as they were before
    /// it. Push the gradients again, by one call, which scales them.
    Exceeded,
    /// The norm of its gradients is not finite: all keys are as they were before it, and it counts as a skipped
    /// push.
    Skipped,
}

/// The keys of a transaction, locked, in processing order.
type Pushed<'a> = [(&'a Slot, WriteGuard<'a, Value>)];

impl Local {
    /// Begins a transaction.
    pub(crate) fn begin(&self) -> Result<()> {
        let none: [Arc<Slot>; 0] = [];
        self.change_handling(
            "begin",
            |handling| handling.transaction = Some(TransactionShare::begin()),
            |handling| self.check_keys("begin", handling, &none),
        )
    }

    /// Ends the transaction, and keeps its pushes unless their norm is above that of clipping.
    pub(crate) fn commit(&self) -> Result<Commit> {
        self.end_transaction("commit", |handling, number, pushed| {
            let Some(clipping) = handling.clipping else { return Ok(Commit::Kept) };
            let mut norm = GlobalNorm::default();
            for (slot, value) in pushed.iter() {
                if let Some(squares) = value.kept_in(number).and_then(KeptValue::squares) {
                    norm.add(slot.key, 1.0, squares);
                }
            }
            let commit = match self.applier.factor("commit", &norm, clipping) {
                Ok(Some(factor)) if factor < 1.0 => Ok(Commit::Exceeded),
                Ok(Some(_)) => return Ok(Commit::Kept),
                Ok(None) => Ok(Commit::Skipped),
                Err(error) => Err(error),
            };
            put_back(number, pushed);
            commit
        })
    }

    /// Ends the transaction, and takes its pushes back.
    pub(crate) fn rollback(&self) -> Result<()> {
        self.end_transaction("rollback", |_, number, pushed| {
            put_back(number, pushed);
            Ok(())
        })
    }

    /// Ends the transaction: `end` gets the setting, the transaction's number, and its keys. An error before that
    /// leaves it as it is.
    fn end_transaction<T>(
        &self,
        call: &'static str,
        end: impl Fn(&Handling, u64, &mut Pushed<'_>) -> Result<T>,
    ) -> Result<T> {
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        loop {
            let begun =
                self.handling.read().transaction.as_ref().map(TransactionShare::transaction);
            let transaction = begun.ok_or_else(|| {
                fail!(InvalidArgument, "{call}: no transaction has begun; call begin first")
            })?;
            let keys = limits.patiently(|until| transaction.alone(until)).ok_or_else(|| {
                fail!(
                    Timeout,
                    "{call}: a push of the transaction has not ended; nothing has changed, and the \
                     transaction goes on"
                )
            })?;
            let mut slots: Vec<_> =
                keys.iter().filter_map(|&key| self.keys.table.get(key)).collect();
            slots.sort_unstable_by_key(|slot| slot.order);
            // A key that was removed and initialised again was pushed for the first time twice.
            slots.dedup_by_key(|slot| slot.order);
            let mut pushed = Vec::with_capacity(slots.len());
            for slot in &slots {
                pushed.push((&**slot, self.applier.take(call, slot, limits)?));
            }
            let mut result = None;
            self.replace_handling(
                |handling| handling.transaction = None,
                |handling| {
                    // A thread may have pushed since, or ended the transaction.
                    let goes_on = handling.transaction.is_none();
                    let is_alone = goes_on && transaction.is_alone_with(keys.len());
                    if is_alone {
                        result = Some(end(handling, transaction.number(), &mut pushed));
                    }
                    Ok(is_alone)
                },
            )?;
            if let Some(result) = result {
                log(Level::Debug, || format!("{call}: a transaction of {} keys", keys.len()));
                return result;
            }
        }
    }
}

/// Makes keys what they were before a transaction.
fn put_back(number: u64, pushed: &mut Pushed<'_>) {
    for (slot, value) in pushed {
        value.put_back(number);
        if let Some(state) = &value.state {
            slot.note_state(state);
        }
    }
}
