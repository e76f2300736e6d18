//! The protocol of the distributed stores, without input and output.
//!
//! Everything here is a state machine: a message, a request or the time goes in, messages and
//! actions come out. There are no sockets, threads, clocks, locks or random numbers, so whole clusters
//! run in one thread from one seed (`sim`). The arithmetic is not here either: a server is told
//! *which* contributions to add in which order, and when a round closes.
//!
//! What a process can say of itself is in `facts`.
//!
//! Arrows between the rooms point one way: `node` joins `worker`, `server` and `members` with the
//! links to their peers (`net`, `link`); all of them speak `wire`; `common` is at the bottom. Frames
//! pass `admission` before they reach a machine.

mod admission;
mod common;
mod facts;
mod link;
mod members;
mod net;
mod node;
mod place;
mod queue;
mod recent;
mod server;
#[cfg(test)]
mod sim;
mod table;
mod wire;
mod worker;

pub(crate) use admission::{Breach, Speaker, is_at};
pub(crate) use common::{
    Data, Failure, Limits, MS, Mode, NO_RANK, OnLoss, Peer, Reason, Role, Time,
};
pub(crate) use facts::{CallKind, Facts, Histogram, Waiting};
pub(crate) use members::Scheduler;
pub(crate) use net::{Frame, News, Passage};
pub(crate) use node::{Birth, Node, Part};
pub(crate) use recent::Recent;
pub(crate) use server::{Action as ServerAction, Answer, SliceName};
pub(crate) use table::Table;
#[cfg(test)]
pub(crate) use wire::encode;
pub(crate) use wire::{
    BadFrame, Body, Entry, HEADER, Header, Kind, Look, Message, Opened, Opening, Place, Seen,
    Sight, Spec, State, VERSION, copy, is_echo, read_table, write, write_front, write_parts,
};
pub(crate) use worker::{Action as WorkerAction, After, Ended, Naming, OpId, Worker};

/// Reads bytes as the fields of every control message that has some.
#[cfg(any(fuzzing, test))]
pub(crate) fn parse(bytes: &[u8]) {
    use wire::{Awaited, Book, Declare, Hello, accused, failed};
    let again = |read: Option<Vec<u8>>| assert!(read.is_none_or(|it| it.len() == bytes.len()));
    again(Book::decode(bytes).map(|read| read.encode()));
    again(Hello::decode(bytes).map(|read| read.encode()));
    again(Declare::decode(bytes).map(|read| read.encode()));
    again(Place::decode(bytes).map(|read| read.encode()));
    again(Awaited::decode(bytes).map(|read| read.encode()));
    again(Facts::decode(bytes).map(|read| read.encode()));
    again(Seen::decode(bytes).map(|read| read.encode()));
    again(accused::decode(bytes).map(|(peer, of)| accused::encode(peer, of)));
    again(failed::decode(bytes).map(|read| failed::encode(&read)));
    let _ = (Look::decode(bytes), Look::echo(bytes));
}
