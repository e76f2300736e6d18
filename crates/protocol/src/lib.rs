//! The protocol of the distributed stores of libkvstore as state machines (also: sans-I/O): a parameter
//! server with its workers, its servers and the scheduler of a job.
//!
//! A machine has no clock, lock, thread, socket, tracer, file or environment. Frames, requests of a program
//! and moments go in; frames, actions and events come out. The *driver*, which the user of this crate writes,
//! moves them: libkvstore drives one machine in each process, the simulator of its tests a whole cluster in
//! one thread, from one seed. Arithmetic is the driver's as well: a server decides which contributions are
//! added in which order and when a round closes, and never reads a value.
//!
//! | process | machine | its driver |
//! |---|---|---|
//! | scheduler | [`Scheduler`] | moves frames and time |
//! | server | [`Node`] of a [`Server`] | also carries out [`ServerAction`]s and answers pulls |
//! | worker | [`Node`] of a [`Worker`] | also makes the requests of [`Worker`] and carries out [`WorkerAction`]s |
//!
//! # Driving a machine
//!
//! 1. **An event**: [`Machine::receive`] for a frame that has arrived, [`Machine::tick`] when its timer is due, a
//!    request such as [`Worker::push`], an answer such as [`Server::value`]. `now` is the current moment.
//! 2. **Actions**: [`Worker::actions`] or [`Server::actions`], which the driver carries out, now or later,
//!    those of one slice in their order. [`Machine::news`] has events for logs and traces.
//! 3. **Frames**: [`Machine::send`], whose frames go to the addresses that they name.
//! 4. **The timer**: [`Machine::wake_at`] is the moment of the next [`Machine::tick`]. It may be in the past.
//!
//! The driver repeats these steps until [`Machine::end`] is some result, and takes the actions once more then.
//! The timer of a new node is due at once: its first tick asks the scheduler to join. [`Scheduler`] has no
//! actions. A driver with threads needs a lock for the steps of a machine,
//! which `&mut self` demands, but none to carry out actions.
//!
//! **Time** is in microseconds ([`MS`] is a millisecond) since any moment, by a monotonic clock of each
//! process; the clocks of processes need not agree. Most timeouts are fractions of [`Limits::peer_timeout`].
//! A machine that gets no event for longer than 1/8 of it takes that for a pause of its own process, not for
//! silence of its peers.
//!
//! **The network** may lose, duplicate, delay and reorder frames: machines retransmit until a frame is
//! acknowledged. It must not alter them. Those that travel as bytes have checksums: [`write()`] and
//! [`write_front`] encode a frame, [`PartialFrame`] decodes its header, and docs/internals/wire.md of the
//! repository is the specification. Bytes that are no frame are reported to [`Machine::bad_frame`]. If connections
//! have ends, or peers reject them, [`Machine::down`] and [`Machine::refused`] make failure detection faster;
//! without them silence has the effect. Where peers prove their identity, [`AuthenticatedPeer::admit`] and
//! [`is_at`] are called before a frame is received.
//!
//! **Requirements** on the driver, which debug builds assert where a machine can see them: the incarnation of a
//! process is not 0, and larger than that of each earlier process of its role and rank; no two processes of a
//! job have one incarnation in one role; [`Limits::max_rounds_ahead`] and [`Limits::slice_bytes`] are not 0; and
//! [`Machine::news`] is taken after every event.
//!
//! **Messages without an effect** are never dropped in silence: [`Machine::ignored`]
//! counts them by kind and [`DropReason`], and each is an event.
//!
//! **Values** are of the driver's type, which implements [`Data`]. Machines cut them into slices and keep
//! clones until these are acknowledged.
//!
//! # Example
//!
//! A job of three processes in one thread: the worker initialises a key, pushes to it, pulls its value and
//! leaves. The network passes frames on at once, and the merge rule of the server is assignment.
//!
//! ```
//! use kvstore_protocol::{
//!     Data, KeySpec, Limits, MS, Machine, Mode, Node, NodeStart, OnLoss, Scheduler, Server, ServerAction, SumOrder,
//!     Worker, WorkerAction,
//! };
//!
//! #[derive(Clone)]
//! struct Bytes(Vec<u8>);
//!
//! impl Data for Bytes {
//!     fn len(&self) -> u64 {
//!         self.0.len() as u64
//!     }
//!     fn part(&self, at: u64, len: u64) -> Self {
//!         Self(self.0[at as usize..(at + len) as usize].to_vec())
//!     }
//! }
//!
//! let limits = Limits {
//!     job: 1,
//!     workers: 1,
//!     servers: 1,
//!     mode: Mode::Sync,
//!     on_loss: OnLoss::Fail,
//!     peer_timeout: 5_000 * MS,
//!     start_timeout: 20_000 * MS,
//!     embedded: false,
//!     block_elements: 1,
//!     slice_bytes: 1 << 20,
//!     hold_bytes: 1 << 20,
//!     max_rounds_ahead: 1,
//!     sum_order: SumOrder::Linear,
//!     window_frames: 32,
//!     window_bytes: 1 << 20,
//!     one_way_at_a_time: false,
//! };
//! let mut now = 0;
//! let start = |address| NodeStart { rank: None, incarnation: 1, address, scheduler: "scheduler" };
//! let mut scheduler = Scheduler::<Bytes>::new(limits.clone(), 1, now);
//! let mut server = Node::<_, Server<Bytes>>::new(limits.clone(), &start("server"), now);
//! let mut worker = Node::<_, Worker<Bytes>>::new(limits.clone(), &start("worker"), now);
//!
//! // The program of the worker: requests, which take effect once the job has started.
//! let program = &mut worker.part;
//! let float32 = 2 | 32 << 8 | 1 << 16;
//! let spec = KeySpec { dtype: float32, shape: vec![2], whole: false };
//! let (key, deadline) = (7, 10_000 * MS);
//! program.init(key, spec, Bytes(vec![0; 8]), now, deadline).unwrap();
//! program.push(key, Bytes(vec![1, 2, 3, 4, 5, 6, 7, 8]), 0, now, deadline).unwrap();
//! program.barrier(now, deadline).unwrap();
//! program.pull(key, 0, now, deadline).unwrap();
//! program.close(now, deadline).unwrap();
//!
//! let (mut sum, mut value, mut pulled) = (Vec::new(), Vec::new(), vec![0; 8]);
//! while scheduler.end().is_none() {
//!     now += MS;
//!     // Timers.
//!     let machines: [&mut dyn Machine<Bytes>; 3] = [&mut scheduler, &mut server, &mut worker];
//!     for machine in machines {
//!         if machine.wake_at() <= now {
//!             machine.tick(now);
//!         }
//!     }
//!     // Actions of the server: the arithmetic.
//!     for action in server.part.actions().collect::<Vec<_>>() {
//!         match action {
//!             ServerAction::Install { data, .. } => value = data.0,
//!             ServerAction::Add { data, .. } => sum = data.0,
//!             ServerAction::Close { .. } => value.clone_from(&sum),
//!             ServerAction::Answer(answer) => server.part.value(&answer, Bytes(value.clone())),
//!             _ => {}
//!         }
//!     }
//!     // Actions of the worker: outputs and results.
//!     for action in worker.part.actions() {
//!         match action {
//!             WorkerAction::Fill { at, data, .. } => {
//!                 pulled[at as usize..][..data.0.len()].copy_from_slice(&data.0);
//!             }
//!             WorkerAction::Finished { result, .. } => result.unwrap(),
//!             WorkerAction::Told { .. } => {}
//!         }
//!     }
//!     // The network.
//!     let frames = scheduler.send(now).chain(server.send(now)).chain(worker.send(now));
//!     for frame in frames.collect::<Vec<_>>() {
//!         match &*frame.to {
//!             "scheduler" => scheduler.receive(frame.message, now),
//!             "server" => server.receive(frame.message, now),
//!             _ => worker.receive(frame.message, now),
//!         }
//!     }
//! }
//! assert_eq!(pulled, [1, 2, 3, 4, 5, 6, 7, 8]);
//! assert!([scheduler.end(), server.end(), worker.end()].iter().all(|end| *end == Some(&Ok(()))));
//! ```
//!
//! # Modules
//!
//! Imports point one way: `node` joins `worker`, `server` and `membership` with the streams to their peers
//! (`peers`, `stream`); `machine` has their interfaces; all of them use `message`; `job` is at the bottom. Frames pass
//! `membership::admission` before they reach a state machine. Statistics of a process are in `telemetry`.

#![allow(clippy::len_without_is_empty, reason = "what has a length here is no collection")]
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

mod bit_set;
mod drops;
mod exchange;
mod job;
mod machine;
mod membership;
mod message;
mod node;
mod peers;
mod placement;
mod queue;
mod sequence_map;
mod server;
#[cfg(test)]
mod sim;
mod stream;
mod table;
mod telemetry;
#[cfg(any(fuzzing, test, feature = "testing"))]
pub mod testing;
mod worker;

pub use drops::{DropCount, DropReason};
pub use exchange::{ExchangeAction, ExchangeId, ExchangePlan, ExchangeTerms, Exchanges, PIECE};
pub use job::{
    Data, Failure, JobTerms, LONGEST_MS, Limits, MS, Mode, NO_RANK, OnLoss, Peer, Reason, Role,
    SumOrder, Time,
};
pub use machine::Machine;
pub use membership::{AdmissionError, AuthenticatedPeer, Scheduler, is_at};
pub use message::{
    BadFrame, Body, BundleEntry, BundleParts, DigestScope, EXCHANGES, ExchangeAddress, ExitNotice,
    GROUPS, GroupTerms, HEADER, Header, JobView, KeySpec, Look, MOST_DIGESTS, MOST_EXTENSIONS,
    MemberReport, MemberState, Message, MessageKind, PartialFrame, Placement, RESUMES, SCALES,
    SeenDigests, SliceDigest, SliceName, VERSION, VerifiedFrame, WEIGHTS, copy, is_echo,
    read_table, write, write_front, write_parts,
};
pub use node::{DigestLook, GroupExit, Node, NodeStart};
pub use peers::{OutgoingFrame, PeerEvent, TracedMessage};
pub use sequence_map::SequenceMap;
pub use server::{Server, ServerAction, ValueRequest};
pub use table::Table;
pub use telemetry::{
    CONTENTS, CallKind, Counter, FAULTS, Histogram, ProcessCounters, ProcessStats, ROUNDS,
    StragglerDelay, TRAFFIC, TransportUse, TransportsByAddress, Unit, WaitingCall,
};
pub use worker::{Ended, KeyNameLookup, OpId, PullDependency, Worker, WorkerAction};
