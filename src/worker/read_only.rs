//! Read-only worker (also called: reader): it only pulls, and no round waits for it.

use super::WorkerStore;
use crate::deadline::Deadline;
use crate::error::{Error, Result};
use crate::job::remote::JobMember;
use crate::key::Key;
use crate::local::call::DataCall;
use crate::local::plan::{Pairs, RowPairs};
use crate::role::Role;

pub(crate) struct ReadOnlyWorker(WorkerStore);

impl ReadOnlyWorker {
    /// It declares its pushes done at once, so that no round waits for it.
    pub(crate) fn new(worker: WorkerStore) -> Result<Self> {
        worker.local.fault("done");
        worker.done().map_err(|error| error.at("create"))?;
        Ok(Self(worker))
    }

    fn reads(&self, call: DataCall) -> Result<()> {
        match call {
            DataCall::Pull | DataCall::PullRows => Ok(()),
            _ => Err(self.no_worker(call.name())),
        }
    }
}

impl JobMember for ReadOnlyWorker {
    fn role(&self) -> Role {
        self.0.role()
    }

    fn rank(&self) -> u32 {
        self.0.rank()
    }

    fn workers(&self) -> u32 {
        self.0.workers()
    }

    fn abort(&self) {
        self.0.abort();
    }

    fn close(&self, deadline: Deadline) -> Result<()> {
        self.0.close(deadline)
    }

    fn stats(&self) -> String {
        self.0.stats()
    }

    fn run(&self, call: DataCall, values: &Pairs<'_>, outs: &Pairs<'_>) -> Result<()> {
        self.reads(call)?;
        self.0.run(call, values, outs)
    }

    fn submit(
        &self,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        self.reads(call)?;
        self.0.submit(call, values, outs, priority)
    }

    fn run_rows(&self, call: DataCall, pairs: &RowPairs<'_>) -> Result<()> {
        self.reads(call)?;
        self.0.run_rows(call, pairs)
    }

    fn submit_rows(&self, call: DataCall, pairs: &RowPairs<'_>, priority: i32) -> Result<u64> {
        self.reads(call)?;
        self.0.submit_rows(call, pairs, priority)
    }

    fn look_up(&self, call: &'static str, key: Key) -> Result<()> {
        self.0.look_up(call, key)
    }

    fn cancel(&self, ticket: u64) {
        self.0.cancel(ticket);
    }

    fn done(&self) -> Result<()> {
        Ok(())
    }

    fn no_worker(&self, call: &str) -> Error {
        self.refusal(call, "it is a reader, which only pulls")
    }
}
