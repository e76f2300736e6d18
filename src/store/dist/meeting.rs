//! How workers meet, and agree on what their leader says.

use std::time::Duration;

use super::setting::Change;
use super::worker::WorkerStore;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};

/// How often a wait for this worker's own calls looks again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl WorkerStore {
    /// Waits until all workers are here, and this one's calls have ended.
    pub(super) fn meet(&self, call: &'static str) -> Result<Deadline> {
        let deadline = self.wait_for_own_calls(call)?;
        self.request(deadline, |worker, now, end| worker.barrier_of(call, now, end))
            .map_err(|error| error.at(call))?;
        Ok(deadline)
    }

    /// Waits until this worker's calls have ended; gives the deadline of this one.
    pub(super) fn wait_for_own_calls(&self, call: &str) -> Result<Deadline> {
        let deadline = self.local.deadline();
        while !self.driver.host.is_idle() {
            if deadline.is_over() {
                return Err(fail!(Timeout, "{call}: calls of this worker are still at work"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(deadline)
    }

    /// Agrees with all workers on the one that acts for them in a call: the lowest rank that is neither
    /// lost nor done. Each proposes itself, and the servers let the lowest rank decide, so that all have
    /// one leader whatever each of them knows of losses.
    pub(super) fn agree_on_leader(&self, call: &str, deadline: Deadline) -> Result<u32> {
        let own = Change::Lead { rank: self.rank }.encode();
        let (set, decided) =
            self.request_told(deadline, |worker, now, end| worker.set(own, now, end));
        if decided.is_empty() {
            return set.map(|()| self.rank).map_err(|error| error.at(call));
        }
        match Change::decode(&decided)? {
            Change::Lead { rank } => Ok(rank),
            _ => set.map(|()| self.rank).map_err(|error| error.at(call)),
        }
    }

    /// Tells the other workers how it went.
    pub(super) fn say(&self, result: Result<()>, deadline: Deadline) -> Result<()> {
        let failure = result.as_ref().err().map(|error| error.message().to_owned());
        let code = result.as_ref().err().map_or(0, |error| error.kind().code());
        let told = self.agree(Change::Outcome { code, failure }.encode(), deadline);
        result.and(told.map(drop))
    }

    /// Learns from the leader what is to be done, or how it went.
    pub(super) fn hear(
        &self,
        call: &str,
        leader: u32,
        deadline: Deadline,
    ) -> Result<Option<Change>> {
        let fields = self.agree(Vec::new(), deadline).map_err(|error| error.at(call))?;
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
    pub(super) fn agree(&self, fields: Vec<u8>, deadline: Deadline) -> Result<Vec<u8>> {
        let (set, told) =
            self.request_told(deadline, |worker, now, end| worker.set(fields, now, end));
        set.map(|()| told)
    }
}
