//! Suspicion (also: disputes, partial partitions): members that do not receive each other's frames, while the
//! scheduler receives those of both.

use super::Scheduler;
use super::takeover::Takeover;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Peer, Role, Time};
use crate::message::kinds::Suspect;

/// One member suspects another; unless that ends, the worker of the two is lost.
#[derive(Debug)]
pub(super) struct Dispute {
    began: Time,
    pub(super) due: Time,
    accuser: Peer,
    accused: Peer,
    incarnation: u64,
}

impl<D: Data> Scheduler<D> {
    /// A suspicion is kept until the accuser withdraws it, or the accused sends a frame: the scheduler
    /// detects a dead member itself.
    pub(super) fn suspect(&mut self, accuser: Peer, suspicion: &Suspect, now: Time) -> Handled {
        let (accused, incarnation) = suspicion.accused;
        let known = |dispute: &Dispute| (dispute.accuser, dispute.accused) == (accuser, accused);
        if suspicion.stage == Suspect::TAKEN_BACK {
            self.disputes.retain(|dispute| !known(dispute));
            return Ok(());
        }
        if !self.book.is_here(accused) || self.disputes.iter().any(known) {
            return Err(DropReason::Outdated);
        }
        let due = now + self.net.limits.heartbeat();
        self.disputes.push(Dispute { began: now, due, accuser, accused, incarnation });
        Ok(())
    }

    /// Moment by which frames of two members reach each other, if they can. A restarted scheduler may have
    /// published their addresses only now, as the one before it died at the start: it publishes them once all
    /// members have introduced themselves.
    fn met_by(&self, dispute: &Dispute, now: Time) -> Time {
        let both = [dispute.accuser, dispute.accused].into_iter();
        let linked = both.filter_map(|peer| self.net.linked_since(peer)).max().unwrap_or(0);
        let learning = self.takeover == Takeover::Learning;
        let told = if learning { now } else { self.learned_at.unwrap_or(0) };
        linked.max(told) + self.net.limits.silence()
    }

    /// Two members that both live but do not receive each other's frames: the worker is lost, because the
    /// server has the values of all.
    pub(super) fn judge(&mut self, now: Time) {
        let pause = self.net.limits.heartbeat() / 2;
        for mut dispute in std::mem::take(&mut self.disputes) {
            let known = self.book.find(dispute.accused).map(|member| member.incarnation);
            let both = self.book.is_here(dispute.accused) && self.book.is_here(dispute.accuser);
            if !both || known != Some(dispute.incarnation) {
                continue;
            }
            dispute.due = dispute.due.max(self.met_by(&dispute, now));
            let heard = self.net.heard_at(dispute.accused).is_some_and(|at| at > dispute.began);
            if dispute.due <= now && heard {
                let worker = dispute.accuser.role == Role::Worker;
                self.lose(if worker { dispute.accuser } else { dispute.accused });
                continue;
            }
            if dispute.due <= now {
                dispute.due = now + pause.max(1);
            }
            self.disputes.push(dispute);
        }
    }
}
