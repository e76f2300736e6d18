//! Interface between a store and its job (also called: backend), for stores of more than one process.

use std::path::Path;
use std::sync::Arc;

use crate::deadline::Deadline;
use crate::digest::KeyDigest;
use crate::error::{Error, Result, fail};
use crate::key::{Key, KeyRound};
use crate::local::Local;
use crate::local::call::DataCall;
use crate::local::checkpoint::KeyNamer;
use crate::local::collective::CollectiveCall;
use crate::local::merger::NonFinite;
use crate::local::plan::{Pairs, RowPairs};
use crate::role::Role;

/// A process of a job. A call of another role is refused.
pub(crate) trait JobMember: Send + Sync {
    fn role(&self) -> Role;
    /// Rank among the members of its role.
    fn rank(&self) -> u32;
    fn workers(&self) -> u32;

    /// Number of workers and servers that the job has declared lost, as far as this process knows.
    fn lost(&self) -> usize;

    /// Ranks of the workers that are in the job, as far as a server or the scheduler knows.
    #[cfg(feature = "dist")]
    fn workers_here(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Ends all operations at once, and never waits for another process.
    fn abort(&self);

    /// Whether stores of groups use what this one does.
    fn is_shared(&self) -> bool {
        false
    }

    /// Leaves the job.
    fn close(&self, deadline: Deadline) -> Result<()>;

    /// Serves until the job ends; calls `listening` once other processes can connect.
    fn serve(&self, _listening: &dyn Fn()) -> Result<()> {
        Err(self.refusal("serve", "only servers and the scheduler serve"))
    }

    /// Whether an updater set in this process would run in it; an error if it belongs on another process.
    fn updates(&self) -> Result<bool> {
        Ok(true)
    }

    /// How often the lock was taken that all keys share.
    #[cfg(all(test, feature = "dist"))]
    fn takings(&self) -> u64;

    /// Additional members of the statistics, as JSON, each after a comma.
    fn stats(&self) -> String;

    fn init(&self, _values: &Pairs<'_>) -> Result<()> {
        Err(self.no_worker("init"))
    }

    fn run(&self, call: DataCall, _values: &Pairs<'_>, _outs: &Pairs<'_>) -> Result<()> {
        Err(self.no_worker(call.name()))
    }

    /// Checks the lists of calls that repeat.
    fn bind(&self, _values: &Pairs<'_>, _outs: &Pairs<'_>) -> Result<()> {
        Err(self.no_worker("bind"))
    }

    fn submit(&self, call: DataCall, _: &Pairs<'_>, _: &Pairs<'_>, _priority: i32) -> Result<u64> {
        Err(self.no_worker(call.name()))
    }

    fn run_rows(&self, call: DataCall, _pairs: &RowPairs<'_>) -> Result<()> {
        Err(self.no_worker(call.name()))
    }

    fn submit_rows(&self, call: DataCall, _pairs: &RowPairs<'_>, _priority: i32) -> Result<u64> {
        Err(self.no_worker(call.name()))
    }

    /// Finds a key that another worker may have initialised.
    fn look_up(&self, call: &'static str, _key: Key) -> Result<()> {
        Err(self.no_worker(call))
    }

    /// Round and digests of keys.
    fn digest(&self, _keys: &[Key]) -> Result<Vec<KeyDigest>> {
        Err(self.no_worker("digest"))
    }

    fn remove(&self, _keys: &[Key]) -> Result<()> {
        Err(self.no_worker("remove"))
    }

    fn cancel(&self, _ticket: u64) {}

    /// Polls for the end of an operation for a while, until `is_over`.
    fn poll(&self, _ticket: u64, _is_over: &dyn Fn() -> bool) {}

    /// Exchanges values with the other workers.
    fn collective(&self, call: CollectiveCall) -> Result<()> {
        Err(self.no_worker(call.head.kind.name()))
    }

    fn submit_collective(&self, call: CollectiveCall) -> Result<u64> {
        Err(self.no_worker(call.head.kind.name()))
    }

    /// Joins a group of some of the workers.
    fn group(&self, _: &Arc<Local>, _name: &str, _ranks: &[u32]) -> Result<Box<dyn JobMember>> {
        Err(self.no_worker("group"))
    }

    fn barrier(&self, _deadline: Deadline) -> Result<()> {
        Err(self.no_worker("barrier"))
    }

    fn done(&self) -> Result<()> {
        Err(self.no_worker("done"))
    }

    /// Waits for all workers, done or not; none is done then.
    fn resume(&self, _deadline: Deadline) -> Result<()> {
        Err(self.no_worker("resume"))
    }

    /// Refuses pushes with a weight, if `has_weight`, that the servers would not divide.
    fn check_weights(&self, _has_weight: bool) -> Result<()> {
        Err(self.no_worker("set_weight"))
    }

    /// The last round of a key.
    fn last_round(&self, _key: Key) -> Result<KeyRound> {
        Err(self.no_worker("last_round"))
    }

    fn set_optimizer(&self, _name: &str, _params: &str) -> Result<()> {
        Err(self.no_worker("set_optimizer"))
    }

    fn set_optimizer_for(&self, _keys: &[Key], _name: &str, _params: &str) -> Result<()> {
        Err(self.no_worker("set_optimizer_for"))
    }

    fn set_hyperparameter(&self, _name: &str, _value: f64) -> Result<()> {
        Err(self.no_worker("set_hyperparameter"))
    }

    fn set_key_hyperparameter(&self, _key: Key, _name: &str, _value: f64) -> Result<()> {
        Err(self.no_worker("set_key_hyperparameter"))
    }

    fn set_compression(&self, _name: &str, _params: &str) -> Result<()> {
        Err(self.no_worker("set_compression"))
    }

    /// Clips the gradients of later pushes by their global norm; ends it with a norm of 0.
    fn set_clipping(&self, _max_norm: f64, _: NonFinite) -> Result<()> {
        Err(self.no_worker("set_clipping"))
    }

    /// Refuses to give the last norm where no gradients are pushed.
    fn check_last_norm(&self) -> Result<()> {
        Err(self.no_worker("last_norm"))
    }

    fn save(&self, _path: &Path) -> Result<()> {
        Err(self.no_worker("save"))
    }

    fn load(&self, _path: &Path, _namer: Option<KeyNamer<'_>>) -> Result<()> {
        Err(self.no_worker("load"))
    }

    fn no_worker(&self, call: &str) -> Error {
        self.refusal(call, "only workers use keys; kv_serve is the call of this process")
    }

    fn refusal(&self, call: &str, why: &str) -> Error {
        fail!(Role, "{call}: this process is {} {}; {why}", self.role().name(), self.rank())
    }
}
