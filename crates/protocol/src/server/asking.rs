//! Lookups of keys that are being initialised, and withdrawn inits.

use super::Workers;
use super::directory::{Directory, unknown};
use crate::drops::{DropReason, Handled};
use crate::job::{Failure, Peer, Reason, list};

impl Directory {
    /// Withdraws a worker's init of a key. The worker may initialise the key again, even if it exists.
    pub(super) fn withdraw(&mut self, rank: u32, key: u64, workers: &Workers) -> Handled {
        let entry = self.entries.get_mut(&key).ok_or(DropReason::Late)?;
        if let Some(wish) = entry.agreement.withdraw(rank) {
            let text = "init: the worker has given it up";
            self.fail(rank, key, wish.request, &Failure::new(Reason::KeyNotFound, text));
            self.settle_wishes(key, workers);
        }
        Ok(())
    }

    /// Settles a key after a change of its wishes or of the workers.
    pub(super) fn settle_wishes(&mut self, key: u64, workers: &Workers) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        entry.agreement.keep(|rank| workers.is_here(rank));
        if entry.agreement.is_alive() {
            self.settle(key, workers);
            return self.settle_finders(key, workers);
        }
        // A provider may have begun.
        if let Some(place) = entry.place.take() {
            self.placer.remove(&place);
        }
        let (generation, finders) = (entry.generation, entry.take_finders());
        self.past.insert(key, generation);
        self.entries.remove(&key);
        finders.into_iter().for_each(|finder| self.fail_search(finder, key, &unknown()));
    }

    /// Fails the search of the worker whose value the init waits for: it would wait for itself.
    pub(super) fn settle_finders(&mut self, key: u64, workers: &Workers) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(lowest) = workers.lowest() else { return };
        if entry.agreement.is_ready() || entry.agreement.has_wish_of(lowest) {
            return;
        }
        let finders = entry.take_finders().into_iter();
        let (vain, others): (Vec<_>, _) = finders.partition(|(rank, _)| *rank == lowest);
        entry.set_finders(others);
        let waiting: Vec<_> = entry.agreement.wanted_by().map(Peer::worker).collect();
        let text = format!(
            "no worker has initialised the key: the init of {} waits for the value of this worker, \
             which has the lowest rank",
            list(&waiting)
        );
        let failure = Failure::new(Reason::KeyNotFound, text);
        vain.into_iter().for_each(|finder| self.fail_search(finder, key, &failure));
    }

    /// A worker is lost, and no init ends any more: fails the searches for a key that does not exist yet.
    pub(super) fn end_searches(&mut self, key: u64, lost: &Failure) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if entry.agreement.is_ready() {
            return;
        }
        let failure = Failure::new(lost.reason, format!("its init cannot end: {lost}"));
        for finder in entry.take_finders() {
            self.fail_search(finder, key, &failure);
        }
    }

    fn fail_search(&mut self, (rank, request): (u32, u64), key: u64, failure: &Failure) {
        self.searches.end(rank);
        self.fail(rank, key, request, failure);
    }
}
