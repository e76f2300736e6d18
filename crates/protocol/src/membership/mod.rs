//! Membership (also: group membership, rendezvous, failure detection): the scheduler, which decides who takes
//! part in the job, and its client in every other process.

mod admission;
mod client;
mod scheduler;

pub use admission::{AdmissionError, AuthenticatedPeer, is_at};
pub(super) use client::{Client, ClientEvent, GOODBYE};
pub use scheduler::Scheduler;
