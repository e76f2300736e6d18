//! Testing (also: test fixtures): frames as bytes, an entry point for fuzzing, random numbers, sums by a tree, and
//! the neural networks of simulated trainings, for the tests of this crate and of its users. Releases do not have
//! it (feature `testing`).

mod any_node;
mod networks;
mod random;
mod tree;

pub use any_node::AnyNode;
pub use networks::{Layer, Net, resnet_50, vgg_19};
pub use random::Random;
pub use tree::tree_of;

pub use crate::message::encode;

/// Decodes bytes as the fields of every control message that has some.
///
/// # Panics
/// Decoded fields are others after they are encoded and decoded again.
pub fn parse(bytes: &[u8]) {
    use crate::job::Peer;
    use crate::message::{
        Book, Field as _, Hello, JobView, Look, Placement, Proposal, SeenDigests, failed,
    };
    use crate::telemetry::ProcessStats;

    fn again<T: PartialEq>(
        read: impl Fn(&[u8]) -> Option<T>,
        write: impl Fn(&T) -> Vec<u8>,
        it: &[u8],
    ) {
        if let Some(value) = read(it) {
            assert!(read(&write(&value)) == Some(value));
        }
    }
    again(Book::decode, Book::encode, bytes);
    again(Hello::decode, Hello::encode, bytes);
    again(Proposal::decode_key, Proposal::encode, bytes);
    again(Placement::decode, Placement::encode, bytes);
    again(Vec::<Peer>::decode, Vec::<Peer>::encode, bytes);
    again(ProcessStats::decode, ProcessStats::encode, bytes);
    again(JobView::decode, JobView::encode, bytes);
    again(<(Peer, u64)>::decode, <(Peer, u64)>::encode, bytes);
    again(|bytes| failed::decode(bytes, 0), failed::encode, bytes);
    again(SeenDigests::decode, SeenDigests::encode, bytes);
    let _ = (Look::decode(bytes), Look::echo(bytes), Look::digests(bytes));
}
