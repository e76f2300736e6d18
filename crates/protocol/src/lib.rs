//! The protocol of the distributed stores, without input and output.
//!
//! Everything here is a state machine: a message, a request or the time goes in, messages and
//! actions come out. There are no sockets, threads, clocks, locks or random numbers, so whole clusters
//! run in one thread from one seed (`sim`). The arithmetic is not here either: a server is told
//! *which* contributions to add in which order, and when a round closes.
//!
//! What a process can say of itself is in `telemetry`.
//!
//! Arrows between the rooms point one way: `node` joins `worker`, `server` and `membership` with the
//! streams to their peers (`peers`, `stream`); all of them use `message`; `job` is at the bottom. Frames
//! pass `membership::admission` before they reach a state machine.

#![allow(missing_docs, reason = "written next")]
#![allow(clippy::len_without_is_empty, reason = "what has a length here is no collection")]
#![warn(unreachable_pub)]
#![deny(unsafe_code)]

mod job;
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

pub use job::{Data, Failure, Limits, MS, Mode, NO_RANK, OnLoss, Peer, Reason, Role, Terms, Time};
pub use membership::{Breach, Scheduler, Speaker, is_at};
pub use message::{
    BadFrame, Body, Entry, HEADER, Header, Kind, LONGEST_MS, Look, Message, Opened, Opening, Parts,
    Place, Seen, Sight, Spec, State, VERSION, copy, is_echo, read_table, write, write_front,
    write_parts,
};
pub use node::{Birth, Node, Part};
pub use peers::{Frame, News, Passage, Why};
pub use sequence_map::Recent;
pub use server::{Action as ServerAction, Answer, Server, SliceName};
pub use table::Table;
pub use telemetry::{CallKind, Facts, Histogram, Late, Traffic, Waiting};
pub use worker::{Action as WorkerAction, After, Ended, Naming, OpId, Worker};
