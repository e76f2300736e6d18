//! Bytes between two processes of one machine, past the network: they lie in memory that both have
//! mapped, and only where they lie is said over the engine.
//!
//! The sender owns a [`Segment`] for each line and uses it as a ring; the receiver says in it how far
//! it has read. Nobody waits for anybody: while there is no room, or the receiver cannot map the
//! segment or does not read, everything goes over the network as before.

mod inlet;
mod outlet;
mod reference;
mod segment;
#[cfg(test)]
mod tests;

pub(super) use inlet::Inlets;
pub(super) use outlet::{Claim, Outlet};
pub(super) use reference::Reference;
