//! Resume after the ends of pushes (also: rejoin): all workers meet, done or not, and none is done then.

use crate::deadline::Deadline;
use crate::error::Result;
use crate::worker::{WorkerMachine, WorkerStore};
use kvstore_protocol::RESUMES;

impl WorkerStore {
    /// Meets all workers. One that was done has missed settings, which it fetches before any worker goes on.
    pub(crate) fn resume_together(&self, deadline: Deadline) -> Result<()> {
        let call = "resume";
        self.check_knows(call, RESUMES)?;
        self.collective(call, Vec::new(), |collective| {
            collective.deadline = deadline;
            collective.step(|_, deadline| {
                self.wait_for_own_calls(call, deadline)?;
                self.request(deadline, WorkerMachine::resume)
            })?;
            collective.step(|_, deadline| {
                self.learn_settings(deadline).map_err(|error| error.at(call))?;
                let handling = self.local.handling.read().clone();
                self.keep_whole_for(&handling);
                Ok(())
            })?;
            self.rendezvous(collective)
        })
    }
}
