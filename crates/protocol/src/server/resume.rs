//! Resumes (also: rejoin): once all workers here have ended their pushes, and all rounds have closed, no worker is done
//! any more, and rounds go on with equal numbers.

use super::Server;
use crate::bit_set::BitSet;
use crate::job::Data;
use crate::message::ResumePoint;
use crate::message::kinds::Resumed;

/// State of the resumes of a server.
#[derive(Debug, Default)]
pub(super) struct Resumption {
    last: ResumePoint,
    /// The next one, and the workers that have asked for it.
    next: Option<ResumePoint>,
    asked: BitSet,
    /// Readers, and workers that have left.
    done_for_good: BitSet,
}

impl Resumption {
    /// Number from which the rounds of new keys go on.
    pub(super) fn base(&self) -> u64 {
        self.last.pushes
    }

    /// A worker pushes no more, whatever resumes there are.
    pub(super) fn stays_done(&mut self, rank: u32) {
        self.done_for_good.insert(rank);
    }
}

impl<D: Data> Server<D> {
    /// A worker says that all take part in a resume.
    pub(super) fn resume(&mut self, rank: u32, point: ResumePoint) {
        if point.number <= self.resumption.last.number {
            self.post(rank, resumed(point));
            return;
        }
        self.resumption.next = Some(point);
        self.resumption.asked.insert(rank);
        self.settle_resume();
    }

    /// Goes on, unless a worker that is lost counts here still: its loss arrives by the book.
    pub(super) fn settle_resume(&mut self) {
        let is_waiting = self.is_sweeping() || self.workers.active().next().is_some();
        let Some(point) = self.resumption.next.filter(|_| !is_waiting && self.broken.is_none())
        else {
            return;
        };
        self.resumption.next = None;
        self.resumption.last = point;
        let mode = self.workers.limits.mode;
        for slice in self.keys.values_mut().flat_map(|key| key.slices.iter_mut().flatten()) {
            slice.go_on_from(point.pushes, mode);
        }
        for (rank, done) in (0..).zip(&mut self.workers.done) {
            *done = self.resumption.done_for_good.contains(rank);
        }
        let asked = std::mem::take(&mut self.resumption.asked);
        asked.iter().for_each(|rank| self.post(rank, resumed(point)));
    }
}

/// The answer to a worker that has asked for a resume: its number.
fn resumed(point: ResumePoint) -> Resumed {
    Resumed::from(ResumePoint { number: point.number, ..ResumePoint::default() })
}
