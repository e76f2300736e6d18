//! How pushed values merge in a local store: an updater, an optimizer, or the sum alone. Also
//! called: merge policy.

use std::borrow::Borrow;
use std::cell::Cell;
use std::sync::Arc;

use super::Local;
use super::call::DataCall;
use super::merger::{Clipping, Handling, Merger, rule_of_keys};
use super::plan::{KeyGroup, Plan};
use super::table::Slot;
#[cfg(feature = "cuda")]
use crate::error::Error;
use crate::error::{Result, fail};
use crate::kernel::SumOrder;
use crate::key::Key;
use crate::optim::Optimizer;

impl Handling {
    /// The first key of a call that is pushed in a transaction.
    #[cfg(feature = "cuda")]
    pub(crate) fn first_kept<'a>(&self, groups: &'a [KeyGroup]) -> Option<&'a KeyGroup> {
        self.transaction.as_ref()?;
        groups.iter().find(|group| !group.values.is_empty())
    }

    /// The first key of a call whose gradient is to be clipped.
    pub(crate) fn first_clipped<'a>(&self, groups: &'a [KeyGroup]) -> Option<&'a KeyGroup> {
        self.clipping?;
        groups.iter().find(|group| {
            !group.values.is_empty() && self.rescale_of(group.slot.key, group.slot.dtype).is_some()
        })
    }
}

impl Local {
    pub(crate) fn set_merger(&self, call: &str, merger: Merger) -> Result<()> {
        self.change_handling(call, |handling| handling.merger = merger, |_| Ok(()))
    }

    /// Changes how pushes merge from now on, unless `check` refuses; no key is added meanwhile.
    pub(crate) fn change_handling(
        &self,
        call: &str,
        change: impl FnOnce(&mut Handling),
        check: impl FnOnce(&Handling) -> Result<()>,
    ) -> Result<()> {
        self.change_handling_if(call, change, |handling| check(handling).map(|()| true)).map(drop)
    }

    /// Like [`Self::change_handling`], but `check` may also return false: nothing changes then, and
    /// this returns false. `check` must not wait: every push would wait with it, beyond its
    /// deadline.
    pub(crate) fn change_handling_if(
        &self,
        call: &str,
        change: impl FnOnce(&mut Handling),
        check: impl FnOnce(&Handling) -> Result<bool>,
    ) -> Result<bool> {
        let is_begun = Cell::new(false);
        let change = |handling: &mut Handling| {
            is_begun.set(handling.transaction.is_some());
            change(handling);
        };
        self.replace_handling(change, |handling| {
            if is_begun.get() {
                return Err(fail!(
                    InvalidArgument,
                    "{call}: a transaction has begun, and its pushes merge alike; end it first (commit or \
                     rollback)"
                ));
            }
            check(handling)
        })
    }

    /// Like [`Self::change_handling_if`], also in a transaction.
    pub(super) fn replace_handling(
        &self,
        change: impl FnOnce(&mut Handling),
        check: impl FnOnce(&Handling) -> Result<bool>,
    ) -> Result<bool> {
        let old = {
            let mut current = self.handling.write();
            let mut changed = current.clone();
            change(&mut changed);
            changed.version = current.version + 1;
            if !check(&changed)? {
                return Ok(false);
            }
            self.set_short_merge(&changed);
            std::mem::replace(&mut *current, changed)
        };
        // Outside the lock: it may run the user's drop function.
        drop(old);
        Ok(true)
    }

    /// Merges as a job has decided from now on.
    #[cfg(feature = "dist")]
    pub(crate) fn adopt(&self, decided: Handling) -> Result<()> {
        self.change_handling("adopt", |handling| *handling = decided, |_| Ok(()))
    }

    /// How the values of a call merge; empty for a call that pushes nothing.
    pub(crate) fn handling_of(&self, plan: &Plan) -> Handling {
        if plan.values.is_empty() {
            return Handling::PLAIN;
        }
        Handling { divisor: plan.divisor, ..self.handling.read().clone() }
    }

    /// Clips the gradients of each call by their norm from now on, or not.
    pub(crate) fn set_clipping(&self, clipping: Option<Clipping>) -> Result<()> {
        let none: [Arc<Slot>; 0] = [];
        self.change_handling(
            "set_clipping",
            |handling| handling.clipping = clipping,
            |handling| self.check_keys("set_clipping", handling, &none),
        )
    }

    /// Refuses a call whose gradients cannot be measured, or whose keys cannot be kept in a transaction.
    pub(crate) fn check_merge(
        &self,
        call: DataCall,
        plan: &Plan,
        handling: &Handling,
    ) -> Result<()> {
        #[cfg(feature = "cuda")]
        if !plan.queues.is_empty()
            && let Some(group) = handling.first_kept(&plan.groups)
        {
            let key = self.applier.names.label(group.slot.key);
            return Err(no_transaction_on_a_gpu(call.name(), &key));
        }
        let Some(group) = handling.first_clipped(&plan.groups) else { return Ok(()) };
        let (name, key) = (call.name(), self.applier.names.label(group.slot.key));
        if call == DataCall::PushRows {
            return Err(fail!(
                Unsupported,
                "{name}: {key}: rows are not clipped: they are pushed without the other gradients of the \
                 model, by whose norm they would be scaled; push the dense gradients of all keys by one \
                 push, or clip before the call and end clipping (set_clipping with 0)"
            ));
        }
        #[cfg(feature = "cuda")]
        if !plan.queues.is_empty() {
            return Err(no_clipping_on_a_gpu(name, &key));
        }
        Ok(())
    }

    /// Merges by a rule from now on.
    pub(crate) fn set_optimizer(&self, name: &str, params: &str) -> Result<()> {
        let call = "set_optimizer";
        let optimizer = Optimizer::new(name, params).map_err(|error| error.at(call))?;
        let merger = Merger::Optimizer(Arc::new(optimizer));
        self.change_handling(
            call,
            |handling| handling.merger = merger,
            |handling| self.check_keys(call, handling, &self.keys.table.slots()),
        )
    }

    /// Merges some keys by a rule of their own from now on, or again as the store does.
    pub(crate) fn set_optimizer_for(&self, keys: &[Key], name: &str, params: &str) -> Result<()> {
        let call = "set_optimizer_for";
        let merger = rule_of_keys(name, params).map_err(|error| error.at(call))?;
        self.change_handling(
            call,
            |handling| handling.rules = handling.rules.with(keys, merger.as_ref()),
            |handling| {
                let slots: Vec<_> =
                    keys.iter().filter_map(|&key| self.keys.table.get(key)).collect();
                self.check_keys(call, handling, &slots)
            },
        )
    }

    /// Changes a number of one key: an option of its own rule, or a multiplier of the store's.
    pub(crate) fn set_key_option(
        &self,
        call: &str,
        key: Key,
        name: &str,
        value: f64,
    ) -> Result<()> {
        let mut handling = self.handling.write();
        let own = handling.rules.changed(key, |rule| rule.with_own(key, name, value));
        if let Some(rules) = own {
            handling.rules = rules.map_err(|error| error.at(call))?;
            handling.version += 1;
            return Ok(());
        }
        drop(handling);
        self.change_optimizer(call, |optimizer| optimizer.with_key(key, name, value))
    }

    /// Changes an option of the optimizer, for all keys or for one.
    pub(crate) fn change_optimizer(
        &self,
        call: &str,
        change: impl FnOnce(&Optimizer) -> Result<Optimizer>,
    ) -> Result<()> {
        let mut handling = self.handling.write();
        let Merger::Optimizer(optimizer) = &mut handling.merger else {
            return Err(fail!(InvalidArgument, "{call}: no optimizer is set; set one first"));
        };
        *optimizer = Arc::new(change(optimizer).map_err(|error| error.at(call))?);
        handling.version += 1;
        self.set_short_merge(&handling);
        Ok(())
    }

    /// Short calls merge as others, and not at all if the digest log needs a record of each push, or pushes have
    /// weights.
    pub(super) fn set_short_merge(&self, handling: &Handling) {
        let needs_plan = self.applier.logs_digests() || self.weight.get().is_some();
        let short = handling.short().filter(|_| !needs_plan);
        self.keys.table.set_short_merge(short.as_ref());
    }

    /// Refuses keys with elements that an optimizer cannot change or a codec cannot take.
    pub(crate) fn check_keys(
        &self,
        call: &str,
        handling: &Handling,
        slots: &[impl Borrow<Slot>],
    ) -> Result<()> {
        if let (Some(codec), SumOrder::Tree) = (&handling.codec, self.settings.sum_order) {
            return Err(fail!(
                Unsupported,
                "{call}: the codec {} and sum_order=tree exclude each other: a codec rounds each \
                 worker's sum, so results would depend on the number of workers; use sum_order=linear",
                codec.name()
            ));
        }
        if let (Some(codec), Some(_)) = (&handling.codec, &handling.transaction) {
            return Err(fail!(
                Unsupported,
                "{call}: the codec {} is set, whose residuals a transaction cannot take back; end it first \
                 (set_compression with none)",
                codec.name()
            ));
        }
        if let (Some(codec), Some(_)) = (&handling.codec, handling.clipping) {
            return Err(fail!(
                Unsupported,
                "{call}: the codec {} and clipping exclude each other: a codec changes its residuals before \
                 the norm of what it sends is known; use one of them (set_compression with none, \
                 set_clipping with 0)",
                codec.name()
            ));
        }
        slots.iter().map(Borrow::borrow).try_for_each(|slot: &Slot| {
            handling.check(slot.key, slot.dtype).map_err(|why| {
                let key = self.applier.names.label(slot.key);
                fail!(DtypeMismatch, "{call}: {key} is {}: {why}", slot.text())
            })
        })
    }
}

/// The refusal of a push that would be clipped in GPU memory.
#[cfg(feature = "cuda")]
pub(crate) fn no_clipping_on_a_gpu(call: &str, key: &str) -> Error {
    fail!(
        Unsupported,
        "{call}: {key}: gradients on GPUs are not clipped yet; clip them before the call and end clipping \
         (set_clipping with 0), or use tensors and keys in host memory"
    )
}

/// The refusal of a push in a transaction to GPU memory, or from it.
#[cfg(feature = "cuda")]
pub(crate) fn no_transaction_on_a_gpu(call: &str, key: &str) -> Error {
    fail!(
        Unsupported,
        "{call}: {key}: a transaction keeps keys in host memory alone; push tensors in host memory to such keys, or \
         push without a transaction"
    )
}
