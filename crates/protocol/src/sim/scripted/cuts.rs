//! Cut networks, stopped processes, and the timeouts of silent peers.

use std::sync::Arc;

use super::{Job, SCHEDULER};
use crate::job::{Limits, MS, OnLoss, Peer, Reason, Time};
use crate::machine::Machine as _;
use crate::message::MemberState;
use crate::sim::limits;

const SECOND: Time = 1_000 * MS;
const PEER_TIMEOUT: Time = 5 * SECOND;
/// Time for a round, a barrier or a leave on a network without delay, retransmission included.
const MOMENT: Time = SECOND;

const CHOICES: [OnLoss; 2] = [OnLoss::Fail, OnLoss::Continue];

impl Job {
    /// Cuts two processes off from each other, in both directions.
    fn cut(&mut self, one: &str, other: &str) {
        let ends: [Arc<str>; 2] = [one.into(), other.into()];
        self.cuts.insert((ends[0].clone(), ends[1].clone()));
        self.cuts.insert((ends[1].clone(), ends[0].clone()));
    }

    fn cut_from_all(&mut self, one: &str) {
        let others: Vec<_> = self.nodes.keys().cloned().collect();
        for other in others.iter().map(|it| &**it).chain([SCHEDULER]).filter(|it| *it != one) {
            self.cut(one, other);
        }
    }

    fn mend(&mut self) {
        self.cuts.clear();
    }

    fn stop(&mut self, address: &str) {
        self.stopped.insert(address.into());
    }

    /// Resumes a process; frames that were sent to it meanwhile are delivered.
    fn wake(&mut self, address: &str) {
        self.stopped.remove(address);
        let (own, others) = std::mem::take(&mut self.waiting)
            .into_iter()
            .partition(|frame: &super::OutgoingFrame<_>| &*frame.to == address);
        self.waiting = others;
        own.into_iter().for_each(|frame| self.deliver(frame));
        self.settle();
    }

    fn state_of(&self, peer: Peer) -> MemberState {
        let seen = self.scheduler.seen(0, 64, self.now);
        seen.sights.iter().find(|sight| sight.peer == peer).expect("a member").state
    }

    fn epoch(&self) -> u32 {
        self.scheduler.seen(0, 0, self.now).epoch
    }

    /// These workers push to key 7, and pull its sum.
    fn round(&mut self, workers: &[u32]) {
        let pushes: Vec<_> =
            workers.iter().map(|it| (*it, self.push(*it, 7, 8).unwrap())).collect();
        let pulls: Vec<_> = workers.iter().map(|it| (*it, self.pull(*it, 7))).collect();
        for (rank, op) in pushes.into_iter().chain(pulls) {
            assert_eq!(self.result(rank, op), Some(&Ok(())), "worker {rank}");
        }
    }

    fn barriers(&mut self, workers: &[u32]) -> Vec<(u32, u64)> {
        let (now, end) = (self.now, self.now + 60 * SECOND);
        let mut arrive = |rank: &u32| (*rank, self.worker(*rank).barrier(now, end).unwrap());
        workers.iter().map(&mut arrive).collect()
    }

    fn assert_open(&mut self, barriers: &[(u32, u64)]) {
        for (rank, op) in barriers {
            assert_eq!(self.result(*rank, *op), Some(&Ok(())), "worker {rank}");
        }
    }

    fn close(&mut self, workers: &[u32]) {
        let (now, end) = (self.now, self.now + 60 * SECOND);
        workers.iter().for_each(|rank| _ = self.worker(*rank).close(now, end).unwrap());
        self.settle();
    }

    fn assert_ended_well(&mut self) {
        for (address, node) in &self.nodes {
            assert_eq!(node.end(), Some(&Ok(())), "{address}");
        }
        assert_eq!(self.scheduler.end(), Some(&Ok(())));
    }

    fn assert_evicted(&self, address: &str) {
        assert_eq!(self.end_of(address).reason, Reason::Evicted, "{}", self.end_of(address));
    }
}

/// A running job of two workers and two servers.
fn at_work(on_loss: OnLoss) -> Job {
    let limits = Limits { servers: 2, on_loss, max_rounds_ahead: 9, ..limits() };
    assert_eq!(limits.peer_timeout, PEER_TIMEOUT);
    let mut job = Job::started(&limits);
    job.init_all(2, 7, 8);
    job.pass(SECOND + 77 * MS);
    job
}

#[test]
fn a_job_whose_scheduler_is_cut_off_goes_on_as_if_nothing_had_been() {
    for (seconds, on_loss) in [3, 6, 12, 30].into_iter().flat_map(|it| CHOICES.map(|on| (it, on))) {
        let mut job = at_work(on_loss);
        let epoch = job.epoch();
        job.cut_from_all(SCHEDULER);
        job.pass(SECOND);
        let barriers = job.barriers(&[0, 1]);
        for _ in 1..seconds {
            job.round(&[0, 1]);
            job.pass(SECOND);
        }
        assert!(barriers.iter().all(|(rank, op)| job.result(*rank, *op).is_none()));
        job.mend();
        job.pass(MOMENT);
        job.assert_open(&barriers);
        assert_eq!(job.epoch(), epoch);
        job.pass(2 * PEER_TIMEOUT);
        let barriers = job.barriers(&[0, 1]);
        job.assert_open(&barriers);
        job.round(&[0, 1]);
        job.close(&[0, 1]);
        job.pass(MOMENT);
        job.assert_ended_well();
    }
}

#[test]
fn a_scheduler_that_was_stopped_takes_its_members_back() {
    for seconds in [3, 6, 12, 30] {
        let mut job = at_work(OnLoss::Fail);
        let epoch = job.epoch();
        job.stop(SCHEDULER);
        for _ in 0..seconds {
            job.round(&[0, 1]);
            job.pass(SECOND);
        }
        // The driver has closed silent connections meanwhile.
        let (now, addresses) = (job.now, ["worker-0", "worker-1", "server-0", "server-1"]);
        addresses.iter().for_each(|address| job.scheduler.down(address, now));
        job.wake(SCHEDULER);
        job.pass(2 * PEER_TIMEOUT);
        assert_eq!(job.epoch(), epoch);
        let barriers = job.barriers(&[0, 1]);
        job.assert_open(&barriers);
        job.close(&[0, 1]);
        job.pass(MOMENT);
        job.assert_ended_well();
    }
}

#[test]
fn a_member_that_was_lost_before_a_cut_stays_lost() {
    let mut job = at_work(OnLoss::Continue);
    job.nodes.remove("worker-1");
    job.pass(2 * PEER_TIMEOUT);
    assert_eq!(job.state_of(Peer::worker(1)), MemberState::Lost);
    job.cut_from_all(SCHEDULER);
    job.pass(12 * SECOND);
    job.mend();
    job.pass(2 * PEER_TIMEOUT);
    assert_eq!(job.state_of(Peer::worker(1)), MemberState::Lost);
    assert_eq!(job.state_of(Peer::worker(0)), MemberState::Here);
    job.round(&[0]);
}

#[test]
fn a_member_that_ends_while_the_scheduler_is_cut_off_is_lost_afterwards() {
    let mut job = at_work(OnLoss::Continue);
    job.cut_from_all(SCHEDULER);
    job.pass(12 * SECOND);
    job.nodes.remove("worker-1");
    job.mend();
    job.pass(PEER_TIMEOUT * 5 / 4 + MOMENT);
    assert_eq!(job.state_of(Peer::worker(1)), MemberState::Lost);
    let barriers = job.barriers(&[0]);
    job.assert_open(&barriers);
}

/// The leave of the worker reaches the servers, which report it to the scheduler.
#[test]
fn a_worker_that_leaves_while_the_scheduler_is_cut_off_is_not_lost() {
    for seconds in [3, 6, 7, 8, 12, 30] {
        let mut job = at_work(OnLoss::Fail);
        job.cut_from_all(SCHEDULER);
        job.pass(100 * MS);
        job.close(&[1]);
        job.pass(seconds * SECOND);
        job.mend();
        job.pass(4 * PEER_TIMEOUT);
        assert_eq!(job.state_of(Peer::worker(1)), MemberState::Left, "{seconds} s");
        let barriers = job.barriers(&[0]);
        job.assert_open(&barriers);
        job.round(&[0]);
    }
}

#[test]
fn a_scheduler_whose_members_have_all_ended_during_a_cut_says_so() {
    let mut job = at_work(OnLoss::Fail);
    job.cut_from_all(SCHEDULER);
    job.pass(2 * SECOND);
    job.nodes.clear();
    job.pass(limits().start_timeout - 4 * SECOND);
    assert_eq!(job.scheduler.end(), None);
    job.mend();
    job.pass(4 * SECOND);
    let failure = job.scheduler.end().expect("an end").as_ref().unwrap_err();
    assert_eq!(failure.reason, Reason::PeerLost);
    assert_eq!(
        failure.to_string(),
        "the scheduler has not heard any member of the job for 60000 ms: it was cut off, or worker 0, \
         worker 1, server 0, server 1 ended"
    );
}

#[test]
fn a_worker_that_only_the_scheduler_does_not_hear_is_told_that_it_was_lost() {
    for on_loss in CHOICES {
        let mut job = at_work(on_loss);
        job.cut("worker-1", SCHEDULER);
        job.pass(12 * SECOND);
        assert_eq!(job.state_of(Peer::worker(1)), MemberState::Lost);
        job.mend();
        job.pass(PEER_TIMEOUT + SECOND);
        job.assert_evicted("worker-1");
        assert!(job.nodes["worker-0"].end().is_none());
        if on_loss == OnLoss::Continue {
            job.round(&[0]);
        }
    }
}

#[test]
fn a_member_that_is_cut_off_from_all_others_says_so() {
    for address in ["worker-1", "server-1"] {
        let mut job = at_work(OnLoss::Continue);
        job.cut_from_all(address);
        job.pass(PEER_TIMEOUT - 1);
        assert_eq!(job.nodes[address].end(), None);
        job.pass(SECOND);
        let expected = format!(
            "{} has not heard any member of the job for 5000 ms: it was cut off, or the job has ended",
            address.replace('-', " ")
        );
        assert_eq!(job.end_of(address).to_string(), expected);
        job.assert_evicted(address);
    }
}

/// Every process that could report the loss has ended.
#[test]
fn a_process_that_wakes_when_the_job_is_over_is_told_in_time() {
    for address in ["worker-1", "server-1"] {
        for seconds in [4, 6, 8, 100] {
            let mut job = at_work(OnLoss::Fail);
            job.stop(address);
            job.pass(seconds * SECOND);
            job.nodes.retain(|other, _| **other == *address);
            job.cut(SCHEDULER, address);
            job.waiting.clear();
            job.wake(address);
            job.pass(PEER_TIMEOUT + SECOND);
            job.assert_evicted(address);
        }
    }
}

/// A job that ended because of a silent worker remains, to report the loss to it.
#[test]
fn a_worker_that_wakes_soon_after_it_was_lost_is_told_at_once() {
    let mut job = at_work(OnLoss::Fail);
    job.stop("worker-1");
    job.pass(PEER_TIMEOUT * 5 / 4);
    assert_eq!(job.state_of(Peer::worker(1)), MemberState::Lost);
    job.close(&[0]);
    job.pass(SECOND / 2);
    job.nodes.retain(|_, node| node.end().is_none());
    assert_eq!(job.nodes.len(), 1);
    // Its connections have ended with their peers.
    job.waiting.clear();
    job.wake("worker-1");
    job.pass(SECOND / 2);
    job.assert_evicted("worker-1");
    let told = job.end_of("worker-1").to_string();
    assert!(told.contains("worker 1 at worker-1 was not heard for 5"), "{told}");
    assert!(told.ends_with(" ms, and the job declared it lost"), "{told}");
    job.pass(SECOND / 2);
    assert_eq!(job.scheduler.end(), Some(&Ok(())));
}

/// Its link is gone with the loss, and with it the time at which it was last heard.
#[test]
fn a_worker_without_a_connection_is_told_that_this_was_the_reason() {
    let mut job = at_work(OnLoss::Continue);
    let now = job.now;
    job.scheduler.down("worker-1", now);
    job.pass(SECOND);
    let told = job.end_of("worker-1").to_string();
    assert!(told.contains("worker 1 at worker-1 has lost its connection, or another"), "{told}");
}

/// The silence of a process begins up to one heartbeat before the process stops.
#[test]
fn a_process_that_stops_is_lost_after_the_time_that_was_set_and_a_quarter_of_it_later_at_most() {
    for (address, peer) in [("worker-1", Peer::worker(1)), ("server-1", Peer::server(1))] {
        for phase in (0..400).step_by(23) {
            let mut job = at_work(OnLoss::Fail);
            job.pass(phase * MS);
            job.stop(address);
            job.pass(PEER_TIMEOUT);
            job.wake(address);
            job.pass(2 * PEER_TIMEOUT);
            assert_eq!(job.state_of(peer), MemberState::Here, "{address} after {phase} ms");
            job.stop(address);
            let pull = job.worker(0).push(7, super::Bytes::of(&[1.0; 8]), 0, 1, Time::MAX).unwrap();
            job.pass(PEER_TIMEOUT * 5 / 4);
            assert_eq!(job.state_of(peer), MemberState::Lost, "{address} after {phase} ms");
            let known = job.worker(0).lost_worker().is_some() || job.result(0, pull).is_some();
            assert!(known, "{address} after {phase} ms");
        }
    }
}

/// The server receives no frame of the worker for 4 seconds; then for the timeout; then until it suspects the
/// worker.
#[test]
fn a_pair_that_talks_again_keeps_its_worker() {
    let silence = limits().silence();
    for time in [4 * SECOND, PEER_TIMEOUT, silence + 50 * MS] {
        let mut job = at_work(OnLoss::Continue);
        job.cuts.insert(("worker-0".into(), "server-1".into()));
        job.pass(time);
        job.mend();
        job.pass(2 * PEER_TIMEOUT);
        assert_eq!(job.nodes["worker-0"].end(), None, "after {} ms", time / MS);
        job.round(&[0, 1]);
    }
}

#[test]
fn of_a_pair_that_stays_cut_the_worker_is_lost_in_time() {
    let mut job = at_work(OnLoss::Continue);
    job.cut("worker-0", "server-1");
    job.pass(PEER_TIMEOUT);
    assert_eq!(job.state_of(Peer::worker(0)), MemberState::Here);
    job.pass(PEER_TIMEOUT / 4);
    assert_eq!(job.state_of(Peer::worker(0)), MemberState::Lost);
    assert_eq!(job.state_of(Peer::server(1)), MemberState::Here);
    job.assert_evicted("worker-0");
}

#[test]
fn a_pair_whose_connection_ends_and_comes_back_keeps_its_worker() {
    let mut job = at_work(OnLoss::Continue);
    let now = job.now;
    job.nodes.get_mut("server-0").unwrap().down("worker-1", now);
    job.nodes.get_mut("worker-1").unwrap().down("server-0", now);
    job.pass(2 * PEER_TIMEOUT);
    assert_eq!(job.state_of(Peer::worker(1)), MemberState::Here);
    job.round(&[0, 1]);
}

/// The first frames after the cut may be those of any member.
#[test]
fn a_cut_that_is_mended_just_before_its_end_is_noticed_disturbs_no_member() {
    for tenths in 50..60 {
        let mut job = at_work(OnLoss::Fail);
        job.cut_from_all(SCHEDULER);
        job.pass(tenths * SECOND / 10);
        job.mend();
        for address in ["worker-0", "server-0", "server-1"] {
            job.cut(address, SCHEDULER);
        }
        job.pass(SECOND);
        job.mend();
        job.pass(2 * PEER_TIMEOUT);
        let barriers = job.barriers(&[0, 1]);
        job.assert_open(&barriers);
    }
}

/// Before the cut is mended, the end of the job cannot reach the servers.
#[test]
fn servers_of_a_job_that_ends_while_the_scheduler_is_cut_off_end_well() {
    for seconds in [3, 6, 12, 30] {
        let mut job = at_work(OnLoss::Fail);
        for server in ["server-0", "server-1"] {
            job.cut(server, SCHEDULER);
        }
        job.close(&[0, 1]);
        job.nodes.retain(|_, node| node.end().is_none());
        job.pass(seconds * SECOND);
        job.mend();
        job.pass(MOMENT);
        job.assert_ended_well();
    }
}
