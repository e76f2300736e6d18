//! Shared-memory transport between two processes of one machine, which map the same memory. A
//! connection carries only the offer of that memory. Also called: shared-memory ring buffer, intra-node transport.
//!
//! The sender owns a [`segment::Segment`] for each receiver and uses it as a ring, with a queue of the
//! positions of its pieces. The receiver has a thread for each ring, which gets the segment's descriptor from
//! the sender (`handover`), publishes how far it has read, and sleeps in the segment until the sender wakes it.
//! A thread of the program that waits for a result reads small pieces itself, with few processors all of them, so
//! that no thread is woken for them.
//!
//! The sender never blocks. While the ring is full, or the receiver cannot map the segment or does not read,
//! all bytes take the network.

#[cfg(any(fuzzing, test))]
mod fuzz;
mod handover;
mod offer;
mod receiver;
mod ring;
mod segment;
mod sender;
#[cfg(test)]
mod tests;
mod transport;

#[cfg(any(fuzzing, test))]
pub(crate) use fuzz::offers;
#[cfg(test)]
use offer::SegmentOffer;
#[cfg(test)]
use receiver::ShmReceivers;
pub(super) use sender::RingReservation;
#[cfg(test)]
use sender::ShmSender;
pub(super) use transport::ROW;
