//! Isolation (also: doubt, self-partition): a scheduler that receives no frames at all may be cut off itself.
//! It declares no member lost until a frame arrives, and then asks all members for the changes meanwhile, as
//! after a restart.

use super::takeover::Takeover;
use super::{MemberProgress, Scheduler};
use crate::job::{Data, Failure, MS, Peer, Reason, Time, list};
use crate::message::MemberState;
use crate::message::kinds::Who;

impl<D: Data> Scheduler<D> {
    /// Declares the members lost whose silence timeout has expired, or whose hello is missing after a
    /// restart.
    pub(super) fn check_liveness(&mut self, now: Time) {
        let mut lost = self.net.silent(now);
        let missing = |progress: &MemberProgress| progress.missing_at.is_some_and(|at| at <= now);
        lost.extend(self.progress.iter().filter(|(_, p)| missing(p)).map(|(peer, _)| *peer));
        let is_here = |peer: &Peer| self.book.is_here(*peer);
        self.in_doubt |= lost.iter().any(is_here) && self.may_be_cut_off(now);
        for peer in lost {
            if !self.book.is_here(peer) {
                self.net.disconnect(peer);
            } else if !self.in_doubt {
                let incarnation = self.book.find(peer).map(|member| member.incarnation);
                let until = now + self.net.limits.peer_timeout;
                self.untold.extend(incarnation.map(|incarnation| (incarnation, until)));
                self.lose(peer);
            }
        }
    }

    /// Whether the silence of one member is no evidence, because all members are silent.
    pub(super) fn may_be_cut_off(&self, now: Time) -> bool {
        let heard = self.net.any_heard() + self.net.limits.peer_timeout / 4;
        self.started && now > heard
    }

    /// A frame of a member has arrived. After a silence of all, the silence timeout of each begins again.
    /// After a doubt, barriers wait until each member has sent its hello, or is lost.
    pub(super) fn believe(&mut self, was_cut_off: bool, now: Time) {
        if was_cut_off || self.in_doubt {
            self.net.be_patient(now);
        }
        if !std::mem::take(&mut self.in_doubt) {
            return;
        }
        if self.takeover != Takeover::Learning {
            self.takeover = Takeover::Doubt;
        }
        let missing_at = Some(now + self.net.limits.silence());
        let here = self.book.members.iter().filter(|member| member.state == MemberState::Here);
        for peer in here.map(|member| member.peer).collect::<Vec<_>>() {
            let progress = self.progress.entry(peer).or_default();
            progress.known = false;
            progress.missing_at = missing_at;
            self.post(peer, Who {});
        }
    }

    /// Moment at which the scheduler of a finished job ends: members that were lost because of their silence
    /// may still wake up, and are evicted then.
    pub(super) fn over_at(&self) -> Option<Time> {
        let told = self.untold.values().max().copied().unwrap_or(0);
        self.gone_at.map(|at| at.max(told))
    }

    /// Moment at which a scheduler in doubt gives up.
    pub(super) fn doubt_ends(&self) -> Option<Time> {
        self.in_doubt.then(|| self.net.any_heard() + self.net.limits.start_timeout)
    }

    /// Failure of a scheduler that gives up.
    pub(super) fn cut_off(&self) -> Failure {
        let here = self.book.members.iter().filter(|member| member.state == MemberState::Here);
        let here: Vec<_> = here.map(|member| member.peer).collect();
        let text = format!(
            "the scheduler has not heard any member of the job for {} ms: it was cut off, or {} ended",
            self.net.limits.start_timeout / MS,
            list(&here)
        );
        Failure::new(Reason::PeerLost, text)
    }
}
