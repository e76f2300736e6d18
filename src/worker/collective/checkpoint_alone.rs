//! Checkpoint written by one worker alone, after a peer was lost or after `kv_done()`: the other workers take
//! no part in it.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::LOOK_AGAIN;
use crate::deadline::Deadline;
use crate::error::{ErrorKind, Result, fail};
use crate::job::wanted::WANT_STATE;
use crate::local::table::Slot;
use crate::runtime::Bytes;
use crate::worker::WorkerStore;
use kvstore_protocol::{Placement, PullDependency};

/// Grace period after a loss: servers may still process frames that arrived before they knew of it.
const SETTLED: Duration = Duration::from_secs(1);

/// Reasons for which a worker makes no more collective calls.
pub(crate) struct SoloState {
    loss: Option<PeerLoss>,
    is_done: bool,
}

/// Loss of another worker.
struct PeerLoss {
    text: String,
    /// The job is synchronous: all slices of a key take part in the same rounds.
    in_rounds: bool,
}

impl WorkerStore {
    /// Reasons why this worker makes no more collective calls; None if it still makes them.
    pub(crate) fn alone(&self) -> Result<Option<SoloState>> {
        self.step(|worker, _| {
            let (is_done, in_rounds) = (worker.is_done(), worker.is_in_rounds());
            let loss = worker.lost_worker();
            let loss = loss.map(|failure| PeerLoss { text: failure.to_string(), in_rounds });
            (loss.is_some() || is_done).then_some(SoloState { loss, is_done })
        })
    }

    /// Saves the state of the servers, without the other workers.
    pub(crate) fn save_alone(&self, path: &Path, why: &SoloState) -> Result<()> {
        let deadline = self.local.deadline();
        self.wait_for_own_calls("save", deadline)?;
        let gathered = self
            .wait_for_the_end(why, deadline)
            .and_then(|loss| self.gather_alone(loss.as_ref(), deadline))
            .map_err(|error| error.at("save"));
        let result = gathered.and_then(|()| self.local.save(path, self.workers as usize));
        self.clear();
        result
    }

    /// Waits until the other workers push no more, and fetches the present settings and keys. Gives the loss
    /// that has ended the wait, if there is one.
    fn wait_for_the_end(&self, why: &SoloState, deadline: Deadline) -> Result<Option<PeerLoss>> {
        loop {
            if why.is_done {
                self.catch_up(deadline)?;
            }
            if let Some(SoloState { loss: Some(loss), .. }) = self.alone()? {
                return Ok(Some(loss));
            }
            match self.wait_for_all_pushes(deadline) {
                Ok(()) => {
                    self.catch_up(deadline)?;
                    return Ok(None);
                }
                // The queried key was removed meanwhile, or a worker was lost.
                Err(error)
                    if [ErrorKind::KeyNotFound, ErrorKind::PeerLost].contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches every key into this worker's own table; residuals stay on their workers.
    fn gather_alone(&self, loss: Option<&PeerLoss>, deadline: Deadline) -> Result<()> {
        for slot in self.local.keys.table.slots() {
            let place = self.place(slot.key)?;
            let came = match loss {
                Some(loss) => self.fetch_one_round(&slot, &place, loss, deadline)?,
                None => {
                    self.fetch_after(PullDependency::All, &slot, &place, &[WANT_STATE], deadline)?
                }
            };
            let slices: Vec<Bytes> = came.into_iter().map(|(_, slice)| slice).collect();
            self.stage(&slot, &place, &slices, |_| Ok(None))?;
        }
        Ok(())
    }

    /// States of all slices of a key, all of one round.
    fn fetch_one_round(
        &self,
        slot: &Arc<Slot>,
        place: &Placement,
        loss: &PeerLoss,
        deadline: Deadline,
    ) -> Result<Vec<(u64, Bytes)>> {
        let settled = Instant::now() + SETTLED;
        loop {
            let came =
                self.fetch_after(PullDependency::Nothing, slot, place, &[WANT_STATE], deadline)?;
            let rounds = || came.iter().map(|(round, _)| *round);
            let (least, most) = (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0));
            if least == most || !loss.in_rounds {
                return Ok(came);
            }
            if Instant::now() >= settled {
                let key = self.local.keys.names.label(slot.key);
                return Err(fail!(
                    PeerLost,
                    "{key}: {}, and slices of the key are of rounds {least} to {most}; nothing was \
                     written",
                    loss.text
                ));
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}
