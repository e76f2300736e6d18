//! Who takes part in the job: the scheduler, which decides, and its client in every other process.

mod client;
mod disputes;
mod doubt;
mod hello;
mod refusals;
mod scheduler;
mod takeover;
mod watch;

pub(super) use client::{Client, Event, GOODBYE};
pub(crate) use scheduler::Scheduler;
