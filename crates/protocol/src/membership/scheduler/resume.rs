//! Resumes (also: rejoin, rendezvous): all workers meet, done or not, and go on together; none is done then.

use super::{MemberProgress, Scheduler};
use crate::job::{Data, OnLoss, Peer, Role};
use crate::message::kinds::Resumed;
use crate::message::{MemberState, ResumePoint, Standing};

impl<D: Data> Scheduler<D> {
    /// Workers that are here and push: all that a resume waits for.
    fn pushing_workers(&self) -> impl Iterator<Item = Peer> {
        let pushes = |member: &&Standing| {
            let is_here = member.state == MemberState::Here;
            member.peer.role == Role::Worker && is_here && !member.reads
        };
        self.book.members.iter().filter(pushes).map(|member| member.peer)
    }

    pub(super) fn missing_from_resume(&self, number: u64) -> Vec<Peer> {
        let part = |peer: &Peer| self.progress.get(peer).is_some_and(|p| p.resume.number >= number);
        self.pushing_workers().filter(|peer| !part(peer)).collect()
    }

    /// Whether a worker was lost after which no round closes and no barrier opens.
    pub(super) fn is_broken(&self) -> bool {
        let lost =
            |m: &Standing| m.peer.role == Role::Worker && !m.reads && m.state == MemberState::Lost;
        self.net.limits.on_loss == OnLoss::Fail && self.book.members.iter().any(lost)
    }

    /// Once all workers take part in a resume, done or not, none of them is done.
    pub(super) fn resume(&mut self) {
        let behind = self.resumed.number;
        let is_under_way = |p: &MemberProgress| p.resume.number > p.resumed;
        // The usual case, which takes no memory.
        if !self.progress.values().any(is_under_way) {
            return;
        }
        let number = behind + 1;
        let workers: Vec<Peer> = self.pushing_workers().collect();
        let is_complete = !workers.is_empty() && self.missing_from_resume(number).is_empty();
        if is_complete && !self.is_broken() {
            let start = ResumePoint { number, ..ResumePoint::default() };
            let points =
                workers.iter().filter_map(|peer| self.progress.get(peer)).map(|p| &p.resume);
            self.resumed = points.fold(start, ResumePoint::with);
        }
        let (point, mut told) = (self.resumed, Vec::new());
        for (peer, progress) in &mut self.progress {
            if progress.resumed < point.number && progress.resume.number >= point.number {
                progress.resumed = point.number;
                progress.done = false;
                (progress.arrived, progress.passed) = (point.barriers, point.barriers);
                progress.told = point.barriers;
                told.push(*peer);
            }
        }
        told.into_iter().for_each(|peer| self.post(peer, Resumed::from(point)));
    }
}
