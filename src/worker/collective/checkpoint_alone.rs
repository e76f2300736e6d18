//! A checkpoint that one worker writes by itself: all never meet again because another one was lost, or
//! this one is done, and the others do not wait for it.

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
use kvstore_protocol::{After, Placement};

/// After a loss servers may still work on what had come before they heard of it.
const SETTLED: Duration = Duration::from_secs(1);

/// What leaves a worker alone.
pub(crate) struct Alone {
    loss: Option<Loss>,
    is_done: bool,
}

/// The loss of another worker.
struct Loss {
    text: String,
    /// All slices of a key take part in the same rounds.
    in_rounds: bool,
}

impl WorkerStore {
    /// Why this worker does not meet the others any more, if it does not.
    pub(crate) fn alone(&self) -> Result<Option<Alone>> {
        self.step(|worker, _, _| {
            let (is_done, in_rounds) = (worker.is_done(), worker.is_in_rounds());
            let loss = worker.lost_worker();
            let loss = loss.map(|failure| Loss { text: failure.text.clone(), in_rounds });
            Ok((loss.is_some() || is_done).then_some(Alone { loss, is_done }))
        })
    }

    /// Saves what the servers have, without the other workers.
    pub(crate) fn save_alone(&self, path: &Path, why: &Alone) -> Result<()> {
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

    /// Waits until the others change nothing any more, and learns what they have changed; gives the loss
    /// that has ended it, if one has.
    fn wait_for_the_end(&self, why: &Alone, deadline: Deadline) -> Result<Option<Loss>> {
        loop {
            if why.is_done {
                self.catch_up(deadline)?;
            }
            if let Some(Alone { loss: Some(loss), .. }) = self.alone()? {
                return Ok(Some(loss));
            }
            match self.wait_for_all_pushes(deadline) {
                Ok(()) => {
                    self.catch_up(deadline)?;
                    return Ok(None);
                }
                // The key that was asked for went meanwhile, or a worker was lost.
                Err(error)
                    if [ErrorKind::KeyNotFound, ErrorKind::PeerLost].contains(&error.kind()) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Fetches every key into this worker's own table; what codecs have left unsent stays where it is.
    fn gather_alone(&self, loss: Option<&Loss>, deadline: Deadline) -> Result<()> {
        for slot in self.local.keys.table.slots() {
            let place = self.place(slot.key)?;
            let came = match loss {
                Some(loss) => self.fetch_one_round(&slot, &place, loss, deadline)?,
                None => self.fetch_after(After::All, &slot, &place, &[WANT_STATE], deadline)?,
            };
            let slices: Vec<Bytes> = came.into_iter().map(|(_, slice)| slice).collect();
            self.stage(&slot, &place, &slices, |_| Ok(None))?;
        }
        Ok(())
    }

    /// The states of all slices of a key, of one and the same round.
    fn fetch_one_round(
        &self,
        slot: &Arc<Slot>,
        place: &Placement,
        loss: &Loss,
        deadline: Deadline,
    ) -> Result<Vec<(u64, Bytes)>> {
        let settled = Instant::now() + SETTLED;
        loop {
            let came = self.fetch_after(After::Nothing, slot, place, &[WANT_STATE], deadline)?;
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
