//! The state machine of a job: ends of processes and signals are its events.
//!
//! It uses no process, no clock and no system call, so that tests can replay any order of events.
//! Events carry their time, and [`JobState::take_signals`] returns the signals to send.

use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

use kvstore::Role;

use crate::ending::{ExitReason, signal_status};
use crate::launch::plan::SignalTarget;

/// Grace periods of processes, and which failures end a job.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndPolicy {
    /// From the request to end (SIGTERM) until SIGKILL.
    pub(crate) grace: Duration,
    /// From the first failure until the others are asked to end.
    pub(crate) linger: Duration,
    /// Whether the job goes on without workers that fail, as long as there are others.
    pub(crate) goes_on: bool,
}

/// The phase of the job, and its deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum JobPhase {
    Running,
    /// All workers have succeeded; servers and scheduler end by themselves.
    Settling(Instant),
    /// A process has failed; the others may detect that and print their errors.
    Lingering(Instant),
    /// All workers have been asked to end, and servers and scheduler are when these have ended.
    Stopping(Instant),
    /// All remaining processes are to be killed.
    Over,
}

/// The state of a job.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "what has happened, each by itself")]
pub(crate) struct JobState {
    members: Vec<(Role, Option<(ExitReason, Instant)>)>,
    policy: EndPolicy,
    phase: JobPhase,
    first_failure: Option<usize>,
    stopped_by: Option<i32>,
    /// Whether a signal arrived that was to end the job, even after a failure.
    pub(crate) was_signalled: bool,
    interrupted: bool,
    /// A worker has ended without having joined, and others wait for it.
    pub(crate) cannot_start: bool,
    signals: Vec<(SignalTarget, i32)>,
    /// Signals for servers and scheduler once the workers, which may still need them, have ended.
    later: Vec<i32>,
}

impl JobState {
    /// A job whose processes have just been started.
    pub(crate) fn new(roles: impl IntoIterator<Item = Role>, policy: EndPolicy) -> Self {
        Self {
            members: roles.into_iter().map(|role| (role, None)).collect(),
            policy,
            phase: JobPhase::Running,
            first_failure: None,
            stopped_by: None,
            was_signalled: false,
            interrupted: false,
            cannot_start: false,
            signals: Vec::new(),
            later: Vec::new(),
        }
    }

    /// A process has ended.
    pub(crate) fn ended(&mut self, member: usize, ending: ExitReason, now: Instant) {
        self.members[member].1 = Some((ending, now));
        if self.workers_have_ended() {
            self.signal_servers();
        }
        if !matches!(self.phase, JobPhase::Running | JobPhase::Settling(_)) {
            return;
        }
        if ending.is_failure() && !self.does_without(member) {
            self.first_failure = Some(member);
            self.phase = JobPhase::Lingering(now + self.policy.linger);
        } else if self.phase == JobPhase::Running && self.workers_have_ended() {
            self.phase = JobPhase::Settling(now + self.policy.grace);
        }
    }

    /// A worker has ended successfully without having joined: the others wait for it in vain. When
    /// all workers have ended the servers wait, and the job has not failed.
    pub(crate) fn lacks_a_worker(&mut self, now: Instant) {
        match self.phase {
            JobPhase::Settling(_) => self.stop(SIGTERM, now),
            JobPhase::Running => {
                self.cannot_start = true;
                self.phase = JobPhase::Lingering(now + self.policy.linger);
            }
            _ => {}
        }
    }

    /// Whether its processes run or end by themselves.
    pub(crate) fn is_undisturbed(&self) -> bool {
        matches!(self.phase, JobPhase::Running | JobPhase::Settling(_))
    }

    /// Whether its processes still have time to notice ends of others: none of them was asked to end.
    pub(crate) fn has_time(&self) -> bool {
        matches!(self.phase, JobPhase::Running | JobPhase::Settling(_) | JobPhase::Lingering(_))
    }

    /// Whether this is a worker without which the job goes on.
    fn does_without(&self, member: usize) -> bool {
        let has_failed = |index: usize| self.ending(index).is_some_and(ExitReason::is_failure);
        self.policy.goes_on
            && self.members[member].0 == Role::Worker
            && self.workers().any(|index| !has_failed(index))
    }

    /// All processes have ended, and `left_over` is whether descendants of them are alive.
    pub(crate) fn emptied(&mut self, left_over: bool, now: Instant) {
        match self.phase {
            JobPhase::Over => {}
            JobPhase::Stopping(_) if left_over => {}
            _ if left_over => self.stop(SIGTERM, now),
            _ => self.phase = JobPhase::Over,
        }
    }

    /// A signal has arrived that is to end the job.
    pub(crate) fn signalled(&mut self, signal: i32, now: Instant) {
        self.was_signalled = true;
        if signal == SIGINT && self.interrupted {
            self.phase = JobPhase::Over;
            return;
        }
        self.interrupted |= signal == SIGINT;
        match self.phase {
            JobPhase::Over => {}
            JobPhase::Stopping(_) => self.send(signal),
            _ => {
                self.stopped_by = Some(signal);
                self.stop(signal, now);
            }
        }
    }

    /// Handles expired deadlines.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        match self.phase {
            JobPhase::Settling(_) | JobPhase::Lingering(_) => self.stop(SIGTERM, now),
            JobPhase::Stopping(_) if !self.later.is_empty() => {
                self.signals.push((SignalTarget::Workers, SIGKILL));
                self.signal_servers();
                self.phase = JobPhase::Stopping(now + self.policy.grace);
            }
            _ => self.phase = JobPhase::Over,
        }
    }

    fn stop(&mut self, signal: i32, now: Instant) {
        self.send(signal);
        self.phase = JobPhase::Stopping(now + self.policy.grace);
    }

    fn send(&mut self, signal: i32) {
        if self.workers_have_ended() {
            self.signals.push((SignalTarget::All, signal));
        } else {
            self.signals.push((SignalTarget::Workers, signal));
            self.later.push(signal);
        }
    }

    fn signal_servers(&mut self) {
        let signals = self.later.drain(..).map(|signal| (SignalTarget::Servers, signal));
        self.signals.extend(signals);
    }

    /// When to call [`JobState::tick`] next; None is never.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.phase {
            JobPhase::Running | JobPhase::Over => None,
            JobPhase::Settling(at) | JobPhase::Lingering(at) | JobPhase::Stopping(at) => Some(at),
        }
    }

    /// Takes the signals to be sent now.
    pub(crate) fn take_signals(&mut self) -> Vec<(SignalTarget, i32)> {
        std::mem::take(&mut self.signals)
    }

    fn workers(&self) -> impl Iterator<Item = usize> {
        let is_worker = |&index: &usize| self.members[index].0 == Role::Worker;
        (0..self.members.len()).filter(is_worker)
    }

    pub(crate) fn workers_have_ended(&self) -> bool {
        self.workers().all(|index| self.ending(index).is_some())
    }

    pub(crate) fn all_have_ended(&self) -> bool {
        self.members.iter().all(|(_, ending)| ending.is_some())
    }

    /// Whether no event is expected any more.
    pub(crate) fn is_over(&self) -> bool {
        self.phase == JobPhase::Over
    }

    /// How a process ended; None while it lives.
    pub(crate) fn ending(&self, member: usize) -> Option<ExitReason> {
        self.members[member].1.map(|(ending, _)| ending)
    }

    /// When a process ended; None while it lives.
    pub(crate) fn ended_at(&self, member: usize) -> Option<Instant> {
        self.members[member].1.map(|(_, at)| at)
    }

    /// Whether a worker has failed, though the job may have gone on without it.
    pub(crate) fn has_lost_workers(&self) -> bool {
        self.workers().any(|index| self.ending(index).is_some_and(ExitReason::is_failure))
    }

    /// The first process that failed, and how.
    pub(crate) fn first_failure(&self) -> Option<(usize, ExitReason)> {
        self.first_failure.and_then(|member| Some((member, self.ending(member)?)))
    }

    /// The signal that ended the job, unless a failure preceded it.
    pub(crate) fn stopped_by(&self) -> Option<i32> {
        self.stopped_by.filter(|_| self.first_failure.is_none())
    }

    /// The exit status of the launcher.
    pub(crate) fn status(&self) -> u8 {
        match (self.first_failure(), self.stopped_by()) {
            (Some((_, ending)), _) => ending.status(),
            (None, Some(signal)) => signal_status(signal),
            (None, None) => u8::from(self.cannot_start),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use signal_hook::consts::{SIGINT, SIGKILL, SIGTERM};

    use super::{EndPolicy, ExitReason, JobState};
    use crate::launch::plan::SignalTarget::{All, Servers, Workers};
    use kvstore::Role::{Scheduler, Server, Worker};

    const LINGER: Duration = Duration::from_secs(1);
    const GRACE: Duration = Duration::from_secs(5);
    const MOMENT: Duration = Duration::from_millis(1);

    const SCHEDULER: usize = 0;
    const SERVER: usize = 1;
    const FIRST: usize = 2;
    const SECOND: usize = 3;

    fn job_that(goes_on: bool) -> (JobState, Instant) {
        let policy = EndPolicy { grace: GRACE, linger: LINGER, goes_on };
        (JobState::new([Scheduler, Server, Worker, Worker], policy), Instant::now())
    }

    fn job() -> (JobState, Instant) {
        job_that(false)
    }

    fn end_all(job: &mut JobState, members: &[usize], now: Instant) {
        for &member in members {
            job.ended(member, ExitReason::Status(0), now);
        }
    }

    #[test]
    fn a_job_whose_processes_all_succeed_gets_no_signal() {
        let (mut job, now) = job();
        end_all(&mut job, &[FIRST, SECOND, SERVER, SCHEDULER], now);
        assert!(job.all_have_ended() && !job.is_over());
        job.emptied(false, now);
        assert!(job.is_over());
        assert_eq!((job.status(), job.take_signals()), (0, vec![]));
    }

    #[test]
    fn servers_that_outlive_the_workers_are_ended_after_the_grace_without_failure() {
        let (mut job, now) = job();
        end_all(&mut job, &[FIRST], now);
        assert_eq!(job.deadline(), None);
        end_all(&mut job, &[SECOND], now);
        assert_eq!(job.deadline(), Some(now + GRACE));
        job.tick(now + GRACE);
        assert_eq!(job.take_signals(), [(All, SIGTERM)]);
        job.ended(SERVER, ExitReason::Signal(SIGTERM), now + GRACE);
        job.tick(now + GRACE + GRACE);
        assert!(job.is_over());
        job.ended(SCHEDULER, ExitReason::Signal(SIGKILL), now + GRACE + GRACE);
        assert_eq!((job.status(), job.first_failure()), (0, None));
    }

    #[test]
    fn the_first_failure_counts_and_the_others_have_time_to_say_what_they_see() {
        let (mut job, now) = job();
        job.ended(SECOND, ExitReason::Signal(SIGKILL), now);
        job.ended(FIRST, ExitReason::Status(3), now + MOMENT);
        job.tick(now + LINGER.saturating_sub(MOMENT));
        assert!(job.take_signals().is_empty());
        job.tick(now + LINGER);
        assert_eq!(job.take_signals(), [(All, SIGTERM)]);
        assert_eq!(job.deadline(), Some(now + LINGER + GRACE));
        assert_eq!(job.first_failure(), Some((SECOND, ExitReason::Signal(SIGKILL))));
        assert_eq!(job.status(), 137);
    }

    #[test]
    fn a_job_that_goes_on_without_a_worker_succeeds_with_the_others() {
        let (mut job, now) = job_that(true);
        job.ended(FIRST, ExitReason::Status(3), now);
        assert_eq!((job.deadline(), job.has_lost_workers()), (None, true));
        end_all(&mut job, &[SECOND], now);
        assert_eq!(job.deadline(), Some(now + GRACE));
        end_all(&mut job, &[SERVER, SCHEDULER], now);
        job.emptied(false, now);
        assert_eq!((job.status(), job.first_failure(), job.is_over()), (0, None, true));
    }

    #[test]
    fn a_job_cannot_go_on_without_a_server_or_without_its_last_worker() {
        for (first, last) in [(SECOND, FIRST), (FIRST, SERVER)] {
            let (mut job, now) = job_that(true);
            job.ended(first, ExitReason::Status(3), now);
            job.ended(last, ExitReason::Status(4), now);
            assert_eq!((job.deadline(), job.status()), (Some(now + LINGER), 4));
        }
    }

    #[test]
    fn a_server_that_fails_first_ends_the_job_with_its_status() {
        for server in [SERVER, SCHEDULER] {
            let (mut job, now) = job();
            job.ended(server, ExitReason::Status(7), now);
            job.tick(now + LINGER);
            assert_eq!((job.status(), job.take_signals()), (7, vec![(Workers, SIGTERM)]));
        }
    }

    #[test]
    fn servers_whose_workers_never_joined_are_ended_at_once() {
        let (mut job, now) = job();
        end_all(&mut job, &[FIRST, SECOND], now);
        job.lacks_a_worker(now + MOMENT);
        assert_eq!((job.take_signals(), job.status()), (vec![(All, SIGTERM)], 0));
        assert!(!job.is_undisturbed());
    }

    #[test]
    fn a_job_that_waits_for_a_worker_that_has_ended_fails() {
        let (mut job, now) = job();
        job.ended(FIRST, ExitReason::Status(0), now);
        job.lacks_a_worker(now + MOMENT);
        assert_eq!((job.deadline(), job.status()), (Some(now + MOMENT + LINGER), 1));
        job.tick(now + MOMENT + LINGER);
        assert_eq!((job.take_signals(), job.cannot_start), (vec![(Workers, SIGTERM)], true));
    }

    #[test]
    fn a_server_that_fails_after_the_workers_is_a_failure() {
        let (mut job, now) = job();
        end_all(&mut job, &[FIRST, SECOND], now);
        job.ended(SERVER, ExitReason::Status(1), now + MOMENT);
        assert_eq!(job.status(), 1);
    }

    #[test]
    fn a_server_that_ends_early_with_success_ends_nothing() {
        let (mut job, now) = job();
        end_all(&mut job, &[SERVER, SCHEDULER], now);
        assert_eq!((job.deadline(), job.take_signals()), (None, vec![]));
    }

    #[test]
    fn a_signal_is_passed_on_and_what_follows_is_no_failure() {
        let (mut job, now) = job();
        job.signalled(SIGTERM, now);
        assert_eq!(job.take_signals(), [(Workers, SIGTERM)]);
        job.ended(FIRST, ExitReason::Status(9), now + MOMENT);
        assert!(job.take_signals().is_empty());
        job.ended(SECOND, ExitReason::Status(0), now + MOMENT);
        assert_eq!(job.take_signals(), [(Servers, SIGTERM)]);
        assert_eq!((job.status(), job.stopped_by()), (143, Some(SIGTERM)));
        job.tick(now + GRACE);
        assert!(job.is_over());
    }

    #[test]
    fn workers_that_do_not_end_within_the_grace_are_killed_and_the_servers_then_have_as_long() {
        let (mut job, now) = job();
        job.signalled(SIGTERM, now);
        end_all(&mut job, &[FIRST], now);
        job.take_signals();
        job.tick(now + GRACE);
        assert_eq!(job.take_signals(), [(Workers, SIGKILL), (Servers, SIGTERM)]);
        assert_eq!(job.deadline(), Some(now + GRACE + GRACE));
        job.tick(now + GRACE + GRACE);
        assert!(job.is_over());
    }

    #[test]
    fn a_signal_after_a_failure_leaves_the_status_of_the_failure() {
        let (mut job, now) = job();
        job.ended(FIRST, ExitReason::Status(9), now);
        job.signalled(SIGINT, now);
        assert_eq!(job.take_signals(), [(Workers, SIGINT)]);
        assert_eq!((job.status(), job.stopped_by()), (9, None));
    }

    #[test]
    fn the_second_interrupt_ends_the_patience_and_other_signals_do_not() {
        let (mut job, now) = job();
        job.signalled(SIGTERM, now);
        job.signalled(SIGINT, now);
        job.signalled(SIGTERM, now);
        let expected = [SIGTERM, SIGINT, SIGTERM].map(|signal| (Workers, signal));
        assert_eq!(job.take_signals(), expected);
        assert!(!job.is_over());
        job.signalled(SIGINT, now);
        assert!(job.is_over());
        assert_eq!(job.status(), 143);
    }

    #[test]
    fn what_processes_leave_behind_is_asked_to_end_and_waited_for() {
        let (mut job, now) = job();
        end_all(&mut job, &[FIRST, SECOND, SERVER, SCHEDULER], now);
        job.emptied(true, now);
        assert_eq!(job.take_signals(), [(All, SIGTERM)]);
        job.emptied(true, now + MOMENT);
        assert!(job.take_signals().is_empty());
        job.tick(now + GRACE);
        assert!(job.is_over());
        assert_eq!(job.status(), 0);
    }
}
