//! A checkpoint that one worker writes by itself, because another one was lost: they never meet again.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::meeting::LOOK_AGAIN;
use super::rows::WANT_STATE;
use super::worker::WorkerStore;
use crate::cluster::Place;
use crate::deadline::Deadline;
use crate::driver::Bytes;
use crate::error::{Result, fail};
use crate::store::table::Slot;

/// After a loss servers may still work on what had come before they heard of it.
const SETTLED: Duration = Duration::from_secs(1);

/// What leaves a worker alone.
pub(super) struct Loss {
    text: String,
    /// All slices of a key take part in the same rounds.
    in_rounds: bool,
}

impl WorkerStore {
    /// The loss after which all workers never meet again, if there was one.
    pub(super) fn loss(&self) -> Result<Option<Loss>> {
        self.step(|worker, _, _| {
            let in_rounds = worker.is_in_rounds();
            Ok(worker.lost_worker().map(|failure| Loss { text: failure.text.clone(), in_rounds }))
        })
    }

    /// Saves what the servers have, without the other workers.
    pub(super) fn save_alone(&self, path: &Path, loss: &Loss) -> Result<()> {
        let deadline = self.wait_for_own_calls("save")?;
        let gathered = self.gather_alone(loss, deadline).map_err(|error| error.at("save"));
        let result = gathered.and_then(|()| self.local.save(path, self.workers as usize));
        self.clear();
        result
    }

    /// Fetches every key into this worker's own table; what codecs have left unsent stays where it is.
    fn gather_alone(&self, loss: &Loss, deadline: Deadline) -> Result<()> {
        for slot in self.local.keys.table.slots() {
            let place = self.place(slot.key)?;
            let slices = self.fetch_one_round(&slot, &place, loss, deadline)?;
            self.stage(&slot, &place, &slices, |_| Ok(None))?;
        }
        Ok(())
    }

    /// The states of all slices of a key, of one and the same round.
    fn fetch_one_round(
        &self,
        slot: &Arc<Slot>,
        place: &Place,
        loss: &Loss,
        deadline: Deadline,
    ) -> Result<Vec<Bytes>> {
        let settled = Instant::now() + SETTLED;
        loop {
            let came = self.fetch_as_is(slot, place, &[WANT_STATE], deadline)?;
            let rounds = || came.iter().map(|(round, _)| *round);
            let (least, most) = (rounds().min().unwrap_or(0), rounds().max().unwrap_or(0));
            if least == most || !loss.in_rounds {
                return Ok(came.into_iter().map(|(_, slice)| slice).collect());
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
