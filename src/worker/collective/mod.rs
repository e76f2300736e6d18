//! Collective calls (also called: collectives): all workers make them, in equal steps. A call that timed out
//! resumes, when it is made again, at the step where it stopped: the other workers wait there.

mod announcement;
mod catch_up;
mod checkpoint;
mod checkpoint_alone;
mod repartition;
mod residuals;
mod resume;
mod slices;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::WorkerStore;
use super::collective::residuals::GatheredResiduals;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::interrupt;
use crate::key::Key;
use crate::local::merger::Handling;
use crate::local::table::Slot;
use crate::runtime::Bytes;

pub(crate) use announcement::Announcement;

/// Poll interval of the wait for this worker's own calls.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Result of a step, and the decision of the job in it.
pub(crate) type StepOutcome = (Result<()>, Vec<u8>);

/// One collective call, and its progress.
pub(crate) struct Collective {
    pub(crate) call: &'static str,
    /// Arguments of the call: a call with other arguments does not resume it.
    about: Vec<u8>,
    pub(crate) deadline: Deadline,
    ended: Vec<StepOutcome>,
    /// Next step, of this call or of the one that it resumes.
    next: usize,
    /// Timeout of the last step.
    gave_up: Option<Error>,
    pub(crate) kept: StepResults,
}

/// Results of finished steps for later ones.
#[derive(Default)]
pub(crate) struct StepResults {
    /// Residuals of the other workers' codecs.
    gathered: GatheredResiduals,
    /// Of the key that moves to one server: its value, the pushes in it, and the pushes that still count.
    pub(crate) value: Option<Bytes>,
    pub(crate) pushes: u64,
    pub(crate) ahead: u64,
    /// Keys that move to one server.
    pub(crate) whole: Vec<u64>,
    /// Keys and merge settings before a file was read.
    pub(crate) before: Option<(HashSet<Key>, Handling)>,
    /// Merge settings after it was read.
    pub(crate) after: Option<Handling>,
    /// Keys that the present step has completed.
    done: HashSet<Key>,
}

impl StepResults {
    /// Runs the work of a step for each of many keys, once.
    pub(crate) fn each(
        &mut self,
        slots: &[Arc<Slot>],
        mut work: impl FnMut(&mut Self, &Arc<Slot>) -> Result<()>,
    ) -> Result<()> {
        for slot in slots {
            if !self.done.contains(&slot.key) {
                work(self, slot)?;
                self.done.insert(slot.key);
            }
        }
        Ok(())
    }
}

impl Collective {
    /// Runs one step, once; skips it after a timeout of an earlier one.
    pub(crate) fn step(
        &mut self,
        work: impl FnOnce(&mut StepResults, Deadline) -> Result<()>,
    ) -> Result<()> {
        self.step_told(|kept, deadline| (work(kept, deadline), Vec::new())).0
    }

    /// Like `step`; gives also the decision of the job.
    pub(crate) fn step_told(
        &mut self,
        work: impl FnOnce(&mut StepResults, Deadline) -> StepOutcome,
    ) -> StepOutcome {
        if let Some(error) = &self.gave_up {
            return (Err(error.clone()), Vec::new());
        }
        let index = self.next;
        self.next += 1;
        if let Some(ended) = self.ended.get(index) {
            return ended.clone();
        }
        let ended = work(&mut self.kept, self.deadline);
        match &ended.0 {
            Err(error) if error.kind() == ErrorKind::Timeout => self.gave_up = Some(error.clone()),
            _ => {
                self.ended.push(ended.clone());
                self.kept.done.clear();
            }
        }
        ended
    }
}

impl WorkerStore {
    /// Makes a collective call, or resumes it if it is the one that timed out last.
    pub(crate) fn collective<T>(
        &self,
        call: &'static str,
        about: Vec<u8>,
        steps: impl FnOnce(&mut Collective) -> Result<T>,
    ) -> Result<T> {
        let mut collective = self.begin_collective(call, about);
        let result = steps(&mut collective);
        if collective.gave_up.is_some() {
            *self.unfinished.lock() = Some(collective);
        }
        result
    }

    /// A new collective call, or the one that timed out last.
    fn begin_collective(&self, call: &'static str, about: Vec<u8>) -> Box<Collective> {
        let deadline = self.local.deadline();
        let unfinished = self.unfinished.lock().take();
        match unfinished {
            Some(it) if it.call == call && it.about == about => {
                Box::new(Collective { deadline, next: 0, gave_up: None, ..*it })
            }
            other => {
                other.into_iter().for_each(|_| self.clear());
                let (ended, kept) = (Vec::new(), StepResults::default());
                Box::new(Collective { call, about, deadline, ended, next: 0, gave_up: None, kept })
            }
        }
    }

    /// Drops a collective call that timed out, as the program changes keys or makes another collective call.
    /// Resuming it later would mix states of before and after.
    pub(crate) fn leave_unfinished(&self) {
        if self.unfinished.lock().take().is_some() {
            self.clear();
        }
    }

    /// Waits for this worker's calls to end, and for all workers.
    pub(crate) fn rendezvous(&self, collective: &mut Collective) -> Result<()> {
        let call = collective.call;
        collective.step(|_, deadline| {
            self.wait_for_own_calls(call, deadline)?;
            self.request(deadline, |worker, now, end| worker.barrier_of(call, now, end))
                .map_err(|error| error.at(call))
        })
    }

    /// Waits until this worker's calls have ended.
    pub(crate) fn wait_for_own_calls(&self, call: &str, deadline: Deadline) -> Result<()> {
        let group = self.group_id();
        while !self.driver.with_registry(|tables| tables.of(group).is_idle()) {
            if deadline.is_over() || interrupt::requested() {
                return Err(fail!(Timeout, "{call}: calls of this worker are still at work"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Agrees on a setting with all workers; empty fields propose nothing, and take the leader's decision.
    pub(crate) fn agree(&self, fields: Vec<u8>, collective: &mut Collective) -> Result<Vec<u8>> {
        let (set, told) = self.propose(fields, collective);
        set.map(|()| told)
    }

    /// Proposes a setting; gives also the decision of the job, if it is another one.
    pub(crate) fn propose(&self, fields: Vec<u8>, collective: &mut Collective) -> StepOutcome {
        collective.step_told(|_, deadline| {
            self.request_told(deadline, |worker, now, end| worker.set(fields, now, end))
        })
    }
}
