//! How pushes merge (also called: merge policy, hyperparameters): updaters, optimizers, compression.

use std::sync::Arc;

use super::{CallClass, Merger, Store, Updater, UpdaterError};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::Local;
use crate::local::counters::LastNorm;
use crate::local::merger::{Clipping, NonFinite};
use crate::log::{Level, log};
use crate::tensor::{Tensor, TensorMut};

impl Store {
    /// Sets the function that merges sums into stored values, for all pushes after this call.
    ///
    /// It may run concurrently for different keys, never for one. An error or a panic makes the
    /// push fail as `Callback`.
    pub fn set_updater(
        &self,
        updater: impl Fn(Key, &Tensor<'_>, &mut TensorMut<'_>) -> std::result::Result<(), UpdaterError>
        + Send
        + Sync
        + 'static,
    ) -> Result<()> {
        self.install_updater(Some(Updater::new(updater)))
    }

    /// Removes the updater: pushes replace the stored value again, as in a new store.
    pub fn clear_updater(&self) -> Result<()> {
        self.install_updater(None)
    }

    pub(crate) fn install_updater(&self, updater: Option<Updater>) -> Result<()> {
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || {
                format!("updater {}", if updater.is_some() { "set" } else { "cleared" })
            });
            if let Some(remote) = &self.remote
                && !remote.updates()?
            {
                return Ok(());
            }
            let call = if updater.is_some() { "set_updater" } else { "clear_updater" };
            let merger = updater.map_or(Merger::Assign, |it| Merger::Updater(Arc::new(it)));
            local.set_merger(call, merger)
        })
    }

    /// Merges by a rule of the library, for all pushes after this call: a name, and options as
    /// `name=value,...`; docs/use/optimizers.md lists them.
    ///
    /// A key's state is made by its first push, in the key's shape. It is replaced with the
    /// optimizer.
    ///
    /// # Errors
    /// `Option` for an unknown name or a bad value, `DtypeMismatch` if a key holds integers or
    /// opaque values; nothing has changed then.
    pub fn set_optimizer(&self, name: &str, params: &str) -> Result<()> {
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("optimizer {name} {params:?}"));
            match &self.remote {
                Some(remote) => remote.set_optimizer(name, params),
                None => local.set_optimizer(name, params),
            }
        })
    }

    /// Merges some keys by a rule of their own, for all pushes after this call, whatever the store has for
    /// the others. Its names are those of [`Store::set_optimizer`], `none` for assignment, and `store`,
    /// with which the keys merge as the others again. The keys need not exist yet.
    ///
    /// # Errors
    /// `Option` for an unknown name or a bad value, `DtypeMismatch` if one of the keys holds elements that
    /// the rule cannot change; nothing has changed then.
    pub fn set_optimizer_for(&self, keys: &[Key], name: &str, params: &str) -> Result<()> {
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("optimizer of {} keys {name} {params:?}", keys.len()));
            match &self.remote {
                Some(remote) => remote.set_optimizer_for(keys, name, params),
                None => local.set_optimizer_for(keys, name, params),
            }
        })
    }

    /// Changes an option of the optimizer, for all pushes after this call. Its state stays.
    ///
    /// # Errors
    /// `Option` for an unknown name or a bad value, `InvalidArgument` if no optimizer is set.
    pub fn set_hyperparameter(&self, name: &str, value: f64) -> Result<()> {
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.set_hyperparameter(name, value),
            None => local.change_optimizer("set_hyperparameter", |it| it.with(name, value)),
        })
    }

    /// Changes the multiplier of the learning rate (`lr_mult`) or of the weight decay (`wd_mult`) of one key.
    ///
    /// # Errors
    /// As [`Store::set_hyperparameter`].
    pub fn set_key_hyperparameter(
        &self,
        key: impl Into<Key>,
        name: &str,
        value: f64,
    ) -> Result<()> {
        let key = key.into();
        let call = "set_key_hyperparameter";
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.set_key_hyperparameter(key, name, value),
            None => local.set_key_option(call, key, name, value),
        })
    }

    /// Gives each push after this call a weight, such as the number of samples in its batch. The sum of a round
    /// is divided by the sum of its weights: pushes of sums over samples become means.
    ///
    /// The weight is 0, or from 2^-100 to 2^100, and is this worker's alone. In one round either all pushes have
    /// one or none has.
    ///
    /// # Errors
    /// `InvalidArgument` for another number, `Unsupported` in a job with a server of an earlier release; nothing
    /// has changed then.
    pub fn set_weight(&self, weight: f64) -> Result<()> {
        self.change_weight(Some(weight))
    }

    /// Ends [`Store::set_weight`]: the sums of later pushes are not divided.
    pub fn clear_weight(&self) -> Result<()> {
        self.change_weight(None)
    }

    fn change_weight(&self, weight: Option<f64>) -> Result<()> {
        self.enter(CallClass::Work, |local| {
            Local::check_weight(weight)?;
            if let Some(remote) = &self.remote {
                remote.check_weights(weight.is_some())?;
            }
            local.set_weight(weight);
            Ok(())
        })
    }

    /// Clips the gradients of each later push by their global norm: the norm of the sums of all keys of a call,
    /// times `rescale_grad`. A norm above `max_norm` scales them all by `max_norm / (norm + 1e-6)`, before the rule
    /// or the updater gets them. An infinite `max_norm` only measures, and 0 ends it.
    ///
    /// In a job all workers make this call; a push then waits for those of the other workers, and the norm is that
    /// of the sums of the round.
    ///
    /// Keys without a rule, whose values are replaced, are neither counted nor scaled. A push whose norm is not
    /// finite changes no key.
    ///
    /// # Errors
    /// `InvalidArgument` for a negative number or a NaN, `Unsupported` with a codec, and in a job without rounds,
    /// with weights or with sums by a tree; nothing has changed then. `Differs` if another worker clips at another
    /// norm.
    pub fn set_clipping(&self, max_norm: f64, non_finite: NonFinite) -> Result<()> {
        let call = "set_clipping";
        self.enter(CallClass::Work, |local| {
            if max_norm.is_nan() || max_norm < 0.0 {
                return Err(fail!(
                    InvalidArgument,
                    "{call}: max_norm is {max_norm}; it must be above 0, or 0 for no clipping"
                ));
            }
            log(Level::Debug, || format!("clipping at the norm {max_norm}"));
            match &self.remote {
                Some(remote) => remote.set_clipping(max_norm, non_finite),
                None => local.set_clipping(Clipping::new(max_norm, non_finite)),
            }
        })
    }

    /// The norm of the last push that was measured, a NaN before the first, and the number of pushes that were
    /// skipped since the store was opened. Waits for no operation: a push with a ticket counts once it is complete.
    ///
    /// # Errors
    /// `Role` on a server and the scheduler.
    pub fn last_norm(&self) -> Result<LastNorm> {
        self.enter(CallClass::Now, |local| {
            self.remote.as_ref().map_or(Ok(()), |remote| remote.check_last_norm())?;
            Ok(local.applier.counters.last_norm())
        })
    }

    /// Encodes and decodes each value of every push after this call with a codec, as workers and servers do;
    /// the sum is that of the decoded values. A name, and options as `name=value,...`;
    /// docs/use/compression.md lists them. `none` turns compression off.
    ///
    /// The residual of a key's pushes (also called: error feedback) is added to its later ones, until another
    /// codec is set.
    ///
    /// # Errors
    /// `Option` for an unknown name or a bad value, `DtypeMismatch` if a key holds floats that the
    /// codec does not take; nothing has changed then.
    pub fn set_compression(&self, name: &str, params: &str) -> Result<()> {
        self.enter(CallClass::Work, |local| {
            log(Level::Debug, || format!("compression {name} {params:?}"));
            match &self.remote {
                Some(remote) => remote.set_compression(name, params),
                None => local.set_compression(name, params),
            }
        })
    }
}
