//! Interfaces of the state machines: of each process to its driver, and of a role to its node.

use std::sync::Arc;
use std::vec::Drain;

use crate::drops::{DropCount, Handled};
use crate::job::{DeliveryToken, Failure, Limits, Peer, Role, Time};
use crate::message::{
    BadFrame, Book, BundleParts, ExchangeAddress, GroupTerms, Message, ResumePoint,
};
use crate::peers::{OutgoingFrame, OutgoingMessage, PeerEvent};
use crate::telemetry::{ProcessStats, TransportsByAddress};

/// State machine of one process: a [`Node`](crate::Node), or the [`Scheduler`](crate::Scheduler).
///
/// The driver calls [`receive`](Self::receive) and [`tick`](Self::tick), then takes the actions of a node,
/// then calls [`send`](Self::send) and [`wake_at`](Self::wake_at): see the front page.
pub trait Machine<D> {
    /// Role and rank; the rank is [`NO_RANK`](crate::NO_RANK) until the scheduler has assigned one.
    fn me(&self) -> Peer;

    /// Limits of the job, with the terms of the workers once the process has adopted them: a server when the
    /// job has started, the scheduler when a worker has joined.
    fn limits(&self) -> &Limits;

    /// Address and incarnation of a member that this process has a stream to.
    fn linked(&self, peer: Peer) -> Option<(&str, u64)>;

    /// Mask of the features that a peer takes beyond the version of the protocol, of a later release too; 0 for a
    /// process that this one has no stream to.
    fn features(&self, peer: Peer) -> u64;

    /// Whether the job has started: all members have joined.
    fn has_started(&self) -> bool;

    /// Whether the job has started and, on a worker, a frame of each server has arrived: calls cannot fail for
    /// want of a connection then.
    fn is_ready(&self) -> bool {
        self.has_started()
    }

    /// Result of the job for this process, once it has ended. A node sends nothing after it.
    fn end(&self) -> Option<&Result<(), Failure>>;

    /// Takes a frame that has arrived, intact; its header says who sent it.
    fn receive(&mut self, message: Message<D>, now: Time);

    /// Reports a delivery from an address that is no frame of this version. Such a delivery is lost; the peer
    /// retransmits it. The scheduler refuses a process of another version.
    fn bad_frame(&mut self, from: &str, bad: BadFrame, now: Time);

    /// Reports the end of the process at an address. Optional: silence has the effect later.
    fn down(&mut self, address: &str, now: Time);

    /// Reports that a connection with an address was lost and is made again. Optional: what was lost with it is
    /// retransmitted at once instead of after its timeout.
    fn reconnected(&mut self, _address: &str, _now: Time) {}

    /// Reports that the peer at an address rejects connections of this process, and why. Optional: without
    /// its scheduler a node never joins, without one of its servers a worker fails; both then end at once.
    /// The scheduler dials no member.
    fn refused(&mut self, _address: &str, _reason: &str, _now: Time) {}

    /// Whether an address is that of a member; resources of any other may be freed. A node knows all peers.
    fn knows(&self, _address: &str) -> bool {
        true
    }

    /// Handles all timers that are due. Called at the moment of [`wake_at`](Self::wake_at), and any time
    /// before: too early a call does no harm.
    fn tick(&mut self, now: Time);

    /// Records the delay of a [`tick`](Self::tick) behind its [`wake_at`](Self::wake_at), for the
    /// [`ProcessStats`](crate::ProcessStats) of a node.
    fn note_delay(&mut self, _delay: Time) {}

    /// What carries the frames of this process, for the [`ProcessStats`](crate::ProcessStats) of a node. Optional.
    fn set_transports(&mut self, _known: TransportsByAddress) {}

    /// Traces pushes and values of these rounds, first and last, as [`PeerEvent::Passed`], and compares the clock
    /// with the scheduler's, as [`PeerEvent::Clock`]. The scheduler sends none of them.
    fn trace(&mut self, _rounds: (u64, u64), _now: Time) {}

    /// Frames that are due. Called after every event, and after the requests and answers of the driver.
    fn send(&mut self, now: Time) -> Drain<'_, OutgoingFrame<D>>;

    /// Memory of a bundle that this machine has received and read, for the driver to use again.
    fn spare_bundle(&mut self) -> Option<Arc<BundleParts<D>>> {
        None
    }

    /// Counts of frames and messages of peers that had no effect, by kind and reason.
    fn ignored(&self) -> Vec<DropCount>;

    /// Events for logs and traces since the last call.
    fn news(&mut self) -> Vec<PeerEvent>;

    /// Moment of the next [`tick`](Self::tick), at the latest; 0 is at once, `Time::MAX` never. Valid until
    /// the next event.
    fn wake_at(&self) -> Time;
}

/// Request to the scheduler, which the node sends.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SchedulerRequest {
    Barrier,
    AskBarrier(u64),
    Resume(ResumePoint),
    AskResume(u64),
    /// Where this worker listens for other workers.
    Listen(ExchangeAddress),
    AskMeeting,
    Done,
    Leave,
}

/// Machine of a role, as its node moves it. Functions with a body concern one role only.
pub(crate) trait NodeRole<D> {
    /// Role of the process, and that of the peers with which it exchanges data.
    const ROLE: Role;
    const PARTNERS: Role;

    fn new(limits: &Limits) -> Self;

    /// The machine of a group of workers. A worker numbers its operations from `first` on.
    fn of_group(limits: &Limits, group: u64, terms: &GroupTerms, first: u64) -> Self;

    /// Number of the next operation of a worker.
    fn next_operation(&self) -> u64 {
        1
    }

    fn tell_time(&mut self, now: Time);
    fn tick(&mut self, now: Time);
    fn wake_at(&self) -> Time;
    fn letters(&mut self) -> Drain<'_, OutgoingMessage<D>>;
    fn report(&mut self, facts: &mut ProcessStats);

    /// The members are known, or have changed.
    fn members(&mut self, book: &Book);

    /// Takes a message of another member, or returns the reason to drop it.
    fn message(&mut self, from: Peer, message: Message<D>) -> Handled;

    /// A member has acknowledged a message.
    fn delivered(&mut self, by: u32, token: DeliveryToken);

    /// Workers that are here and not done, on a server.
    fn active_workers(&self) -> Vec<u32> {
        Vec::new()
    }

    /// Whether a worker was lost after which no round closes, on a server.
    fn is_broken(&self) -> bool {
        false
    }

    /// Maximum queued messages to a peer at which its stream is still taken.
    fn room_for(&self, _peer: Peer) -> usize {
        usize::MAX
    }

    /// Starts over under the terms of the workers, before any event.
    fn adopt(&mut self, _limits: &Limits) {}

    fn requests(&mut self) -> Vec<SchedulerRequest> {
        Vec::new()
    }

    /// This process was evicted or refused, or cannot continue.
    fn fatal(&mut self, _failure: &Failure) {}

    /// The scheduler has opened barriers up to this one.
    fn released(&mut self, _barrier: u64) {}

    fn barrier_awaits(&mut self, _barrier: u64, _peers: &[Peer]) {}

    /// All workers take part in a resume; these are the counts from which they go on.
    fn resumed(&mut self, _point: ResumePoint) {}

    fn resume_awaits(&mut self, _resume: u64, _peers: &[Peer]) {}

    /// All operations have ended, and Leave was sent to the servers.
    fn is_closing(&self) -> bool {
        false
    }

    /// The scheduler has acknowledged the leave.
    fn left(&mut self) {}

    /// Whether the process has left the job, or was evicted or cut off.
    fn has_ended(&self) -> bool {
        false
    }
}
