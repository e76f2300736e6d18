//! Pushes that can be taken back. Also called: speculation, undo.

use super::{CallClass, Commit, Store};
use crate::error::{Result, fail};
use crate::local::Local;

impl Store {
    /// Begins a transaction: what later pushes of any thread change can be taken back by [`Store::rollback`], until
    /// [`Store::commit`] keeps it.
    ///
    /// Other calls see the pushes at once. What a transaction keeps of a key is copied at its first push, value and
    /// state of its rule, and the memory stays for the next transaction until the key is removed.
    ///
    /// While [`Store::set_clipping`] is on, pushes of a transaction are not scaled: it has one norm, of the
    /// gradients of all its pushes, and commit compares that. A rule can thus begin with gradients before the last
    /// one is there, and is undone in the step whose norm turns out to be too large.
    ///
    /// In a transaction the calls that change how pushes merge are refused, but for those that set a
    /// hyperparameter, and so is [`Store::load`].
    ///
    /// # Errors
    /// `InvalidArgument` if one has begun; `Unsupported` in a job, and while a codec is set.
    ///
    /// ```
    /// # fn main() -> kvstore::Result<()> {
    /// use kvstore::{Commit, Config, NonFinite, Store};
    /// let store = Store::open("local", &Config::new())?;
    /// store.init(7u64, &[1.0f32, 2.0])?;
    /// store.set_optimizer("sgd", "learning_rate=1")?;
    /// store.set_clipping(1.0, NonFinite::Skip)?;
    /// store.begin()?;
    /// store.push(7u64, &[3.0f32, 4.0])?;
    /// assert_eq!(store.commit()?, Commit::Exceeded);
    /// let mut weight = [0.0f32; 2];
    /// store.pull(7u64, &mut weight)?;
    /// assert_eq!((weight, store.last_norm()?.norm), ([1.0, 2.0], 5.0));
    /// # Ok(())
    /// # }
    /// ```
    pub fn begin(&self) -> Result<()> {
        self.in_process("begin", Local::begin)
    }

    /// Ends the transaction. Its pushes are kept, unless their norm is above that of [`Store::set_clipping`] or not
    /// finite: then they are taken back. Waits for pushes of the transaction that are on their way, with tickets or
    /// without.
    ///
    /// # Errors
    /// `InvalidArgument` without a transaction, and if the norm is not finite with [`crate::NonFinite::Fail`]: the
    /// pushes are taken back then. `Timeout` if a push has not ended: the transaction goes on. `Unsupported` in a
    /// job.
    pub fn commit(&self) -> Result<Commit> {
        self.in_process("commit", Local::commit)
    }

    /// Ends the transaction: values, states of rules and counts of all keys that were pushed are what they were
    /// before it. Waits as [`Store::commit`] does. What an updater keeps beside the values is not taken back, nor
    /// are keys that were initialised or removed.
    ///
    /// # Errors
    /// As [`Store::commit`].
    pub fn rollback(&self) -> Result<()> {
        self.in_process("rollback", Local::rollback)
    }

    fn in_process<T>(&self, call: &str, work: impl FnOnce(&Local) -> Result<T>) -> Result<T> {
        self.enter(CallClass::Work, |local| {
            if self.remote.is_some() {
                return Err(fail!(
                    Unsupported,
                    "{call}: transactions are of stores in one process, and {} is a job: its rounds end with the \
                     pushes of all workers; use a local store",
                    self.kind.name()
                ));
            }
            work(local)
        })
    }
}
