//! Collective calls: all workers make them, in the same steps. One that timed out and is called again
//! goes on with the step at which it stopped, because that is where the other workers wait.

mod catch_up;
mod checkpoint;
mod checkpoint_alone;
mod repartition;
mod residuals;
mod slices;

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::WorkerStore;
use super::collective::residuals::Gathered;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::interrupt;
use crate::job::settings::Change;
use crate::key::Key;
use crate::local::merger::Handling;
use crate::local::table::Slot;
use crate::runtime::Bytes;

/// How often a wait for this worker's own calls looks again.
pub(crate) const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// How a step ended, and what the job had decided in it.
type StepOutcome = (Result<()>, Vec<u8>);

/// One collective call, and how far it is.
pub(crate) struct Collective {
    pub(crate) call: &'static str,
    /// What it is about: the same call about something else is another one.
    about: Vec<u8>,
    pub(crate) deadline: Deadline,
    ended: Vec<StepOutcome>,
    /// The step that comes, of this call or of the one that it goes on with.
    next: usize,
    /// Why the last step has not ended.
    gave_up: Option<Error>,
    pub(crate) kept: StepResults,
}

/// What steps that have ended leave to later ones.
#[derive(Default)]
pub(crate) struct StepResults {
    /// What the codecs of other workers have left unsent.
    gathered: Gathered,
    /// Of the key that becomes whole: its value, the pushes that are in it, and how many count on.
    pub(crate) value: Option<Bytes>,
    pub(crate) pushes: u64,
    pub(crate) ahead: u64,
    /// The keys that become whole.
    pub(crate) whole: Vec<u64>,
    /// The keys, and how pushes were merged, before a file was read.
    pub(crate) before: Option<(HashSet<Key>, Handling)>,
    /// How pushes are merged once it was read.
    pub(crate) after: Option<Handling>,
    /// Keys with which the present step is done.
    done: HashSet<Key>,
}

impl StepResults {
    /// The work of a step on each of many keys, once.
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
    /// Does one step, once; behind one that timed out nothing is done.
    pub(crate) fn step(
        &mut self,
        work: impl FnOnce(&mut StepResults, Deadline) -> Result<()>,
    ) -> Result<()> {
        self.step_told(|kept, deadline| (work(kept, deadline), Vec::new())).0
    }

    /// The same as `step`; gives also what the job has decided in it.
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
    /// Makes a collective call, or goes on with it if it is the one that timed out last.
    pub(crate) fn collective<T>(
        &self,
        call: &'static str,
        about: Vec<u8>,
        steps: impl FnOnce(&mut Collective) -> Result<T>,
    ) -> Result<T> {
        let deadline = self.local.deadline();
        let unfinished = self.unfinished.lock().take();
        if unfinished.as_ref().is_some_and(|it| it.call != call || it.about != about) {
            self.clear();
        }
        let mut collective = match unfinished {
            Some(it) if it.call == call && it.about == about => {
                Box::new(Collective { deadline, next: 0, gave_up: None, ..*it })
            }
            _ => Box::new(Collective {
                call,
                about,
                deadline,
                ended: Vec::new(),
                next: 0,
                gave_up: None,
                kept: StepResults::default(),
            }),
        };
        let result = steps(&mut collective);
        if collective.gave_up.is_some() {
            *self.unfinished.lock() = Some(collective);
        }
        result
    }

    /// The program changes keys, or meets the others in another call: a collective call that timed out is
    /// not gone on with, which would mix what was before with what came since.
    pub(crate) fn leave_unfinished(&self) {
        if self.unfinished.lock().take().is_some() {
            self.clear();
        }
    }

    /// Waits until all workers are here, and this one's calls have ended.
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
        while !self.driver.host.is_idle() {
            if deadline.is_over() || interrupt::requested() {
                return Err(fail!(Timeout, "{call}: calls of this worker are still at work"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    /// Agrees with all workers on the one that acts for them in a call: the lowest rank that is neither
    /// lost nor done. Each proposes itself, and the servers let the lowest rank decide, so that all have
    /// one leader whatever each of them knows of losses.
    pub(crate) fn agree_on_leader(&self, collective: &mut Collective) -> Result<u32> {
        let call = collective.call;
        let own = Change::Lead { rank: self.rank }.encode();
        let (set, decided) = collective.step_told(|_, deadline| {
            self.request_told(deadline, |worker, now, end| worker.set(own, now, end))
        });
        if decided.is_empty() {
            return set.map(|()| self.rank).map_err(|error| error.at(call));
        }
        match Change::decode(&decided)? {
            Change::Lead { rank } => Ok(rank),
            _ => set.map(|()| self.rank).map_err(|error| error.at(call)),
        }
    }

    /// Tells the other workers how it went.
    pub(crate) fn say(&self, result: Result<()>, collective: &mut Collective) -> Result<()> {
        let failure = result.as_ref().err().map(|error| error.message().to_owned());
        let code = result.as_ref().err().map_or(0, |error| error.kind().code());
        let told = self.agree(Change::Outcome { code, failure }.encode(), collective);
        result.and(told.map(drop))
    }

    /// Learns from the leader what is to be done, or how it went.
    pub(crate) fn hear(&self, leader: u32, collective: &mut Collective) -> Result<Option<Change>> {
        let call = collective.call;
        let fields = self.agree(Vec::new(), collective).map_err(|error| error.at(call))?;
        if fields.is_empty() {
            return Err(fail!(
                PeerLost,
                "{call}: worker {leader}, which acted for all, was lost meanwhile; the same call on all \
                 ranks begins anew with the next one"
            ));
        }
        match Change::decode(&fields)? {
            Change::Outcome { code, failure } => match failure {
                None => Ok(None),
                Some(text) => {
                    let kind = ErrorKind::ALL.iter().find(|kind| kind.code() == code);
                    let kind = kind.copied().unwrap_or(ErrorKind::Internal);
                    Err(Error::new(kind, format!("{call}: on worker {leader}: {text}")))
                }
            },
            change => Ok(Some(change)),
        }
    }

    /// Agrees on a setting with all workers; empty fields take what the leader says, and give it.
    pub(crate) fn agree(&self, fields: Vec<u8>, collective: &mut Collective) -> Result<Vec<u8>> {
        let (set, told) = collective.step_told(|_, deadline| {
            self.request_told(deadline, |worker, now, end| worker.set(fields, now, end))
        });
        set.map(|()| told)
    }
}
