//! Testing (also: test fixtures): frames as bytes, an entry point for fuzzing, random numbers, and the neural
//! networks of simulated trainings, for the tests of this crate and of its users. Releases do not have it
//! (feature `testing`).

mod any_node;
mod networks;
mod random;

pub use any_node::AnyNode;
pub use networks::{Layer, Net, resnet_50, vgg_19};
pub use random::Random;

pub use crate::message::encode;

/// Decodes bytes as the fields of every control message that has some.
///
/// # Panics
/// Decoded fields have another length when they are encoded again.
pub fn parse(bytes: &[u8]) {
    use crate::job::Peer;
    use crate::message::{Book, Field as _, Hello, JobView, Look, Placement, Proposal, failed};
    use crate::telemetry::ProcessStats;

    let again = |read: Option<Vec<u8>>| assert!(read.is_none_or(|it| it.len() == bytes.len()));
    again(Book::decode(bytes).map(|read| read.encode()));
    again(Hello::decode(bytes).map(|read| read.encode()));
    again(Proposal::decode_key(bytes).map(|read| read.encode()));
    again(Placement::decode(bytes).map(|read| read.encode()));
    again(Vec::<Peer>::decode(bytes).map(|read| read.encode()));
    again(ProcessStats::decode(bytes).map(|read| read.encode()));
    again(JobView::decode(bytes).map(|read| read.encode()));
    again(<(Peer, u64)>::decode(bytes).map(|read| read.encode()));
    again(failed::decode(bytes, 0).map(|read| failed::encode(&read)));
    let _ = (Look::decode(bytes), Look::echo(bytes));
}
