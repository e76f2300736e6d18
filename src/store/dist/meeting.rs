//! How workers meet, and agree on what rank 0 says.

use std::time::Duration;

use super::setting::Change;
use super::worker::WorkerStore;
use crate::cluster;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};

/// How often a wait for this worker's own calls looks again.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(1);

impl WorkerStore {
    /// Waits until all workers are here, and this one's calls have ended.
    pub(super) fn meet(&self, call: &str) -> Result<Deadline> {
        let deadline = self.wait_for_own_calls(call)?;
        self.request(deadline, cluster::Worker::barrier).map_err(|error| error.at(call))?;
        Ok(deadline)
    }

    /// Waits until this worker's calls have ended; gives the deadline of this one.
    pub(super) fn wait_for_own_calls(&self, call: &str) -> Result<Deadline> {
        let deadline = self.local.deadline();
        while !self.driver.host.is_idle() {
            if deadline.has_passed() {
                return Err(fail!(Timeout, "{call}: calls of this worker are still at work"));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(deadline)
    }

    /// Tells everybody how it went.
    pub(super) fn say(&self, result: Result<()>, deadline: Deadline) -> Result<()> {
        let failure = result.as_ref().err().map(|error| error.message().to_owned());
        let code = result.as_ref().err().map_or(0, |error| error.kind().code());
        let told = self.agree(Change::Outcome { code, failure }.encode(), deadline);
        result.and(told.map(drop))
    }

    /// Learns from rank 0 what is to be done, or how it went.
    pub(super) fn hear(&self, call: &str, deadline: Deadline) -> Result<Option<Change>> {
        let fields = self.agree(Vec::new(), deadline).map_err(|error| error.at(call))?;
        if fields.is_empty() {
            return Err(fail!(
                PeerLost,
                "{call}: rank 0, which it needs, is done or gone; kv_save works after kv_done"
            ));
        }
        match Change::decode(&fields)? {
            Change::Outcome { code, failure } => match failure {
                None => Ok(None),
                Some(text) => {
                    let kind = ErrorKind::ALL.iter().find(|kind| kind.code() == code);
                    let kind = kind.copied().unwrap_or(ErrorKind::Internal);
                    Err(Error::new(kind, format!("{call}: on rank 0: {text}")))
                }
            },
            change => Ok(Some(change)),
        }
    }

    /// Agrees on a setting with all workers; empty fields take what rank 0 says, and give it.
    pub(super) fn agree(&self, fields: Vec<u8>, deadline: Deadline) -> Result<Vec<u8>> {
        let (set, told) =
            self.request_told(deadline, |worker, now, end| worker.set(fields, now, end));
        set.map(|()| told)
    }
}
