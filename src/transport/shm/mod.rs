//! Bytes between two processes of one machine, past the network: they lie in memory that both have
//! mapped. The engine carries only the offer of that memory.
//!
//! The sender owns a [`segment::Segment`] for each line and uses it as a ring, with a queue that says
//! where in it is what; the receiver has a thread for each ring, says how far it has read, and sleeps
//! there until the sender wakes it.
//! The sender waits for nobody: while there is no room, or the receiver cannot map the segment or does
//! not read, everything goes over the network.

mod offer;
mod receiver;
mod ring;
mod segment;
mod sender;
#[cfg(test)]
mod tests;

pub(super) use offer::SegmentOffer;
pub(super) use receiver::Inlets;
pub(super) use sender::{Claim, ShmSender};
