//! Backpressure (also: admission control): bounds on a worker's pulls whose round has not closed, its
//! look-ups of keys that are being initialised, and its unacknowledged answers. At a bound the server takes
//! nothing more of the worker's stream until there is room, and the worker retransmits. Other workers are not
//! affected.

use super::rounds::WaitingPull;
use super::{Server, invalid};
use crate::job::{Data, DeliveryToken, Failure, Mode, Peer};
use crate::message::ROUNDS_OVER;
use crate::message::kinds::Pull;

/// Maximum waiting pulls of one worker, beside four for each slice of the server. Each event of a slice
/// checks all pulls that wait there.
const MOST: u64 = 16_384;
/// Maximum queued messages to a worker, beside four for each slice.
const MOST_IN_LINE: u64 = 65_536;
/// Maximum bytes of the queries of these pulls: lists of rows.
const MOST_WANTED: u64 = 64 << 20;
/// Maximum bytes of answers that are copies, as rows are; whole values are shared.
const MOST_COPIED: u64 = 256 << 20;

/// Waiting pulls of one worker, the bytes of their queries, and unacknowledged bytes of copied answers.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct WorkerBacklog {
    pulls: u64,
    wanted: u64,
    copied: u64,
}

impl WorkerBacklog {
    pub(super) fn begin<D: Data>(&mut self, pull: &WaitingPull<D>) {
        self.pulls += 1;
        self.wanted += len(pull.wanted.as_ref());
    }

    pub(super) fn end<D: Data>(&mut self, wanted: Option<&D>) {
        self.pulls = self.pulls.saturating_sub(1);
        self.wanted = self.wanted.saturating_sub(len(wanted));
    }

    /// Counts an answer; returns its token, for the acknowledgement.
    pub(super) fn answer<D>(&mut self, wanted: Option<&D>, bytes: u64) -> Option<DeliveryToken> {
        wanted?;
        self.copied += bytes;
        Some(DeliveryToken { operation: bytes, attempt: 0, group: 0 })
    }

    pub(super) fn delivered(&mut self, token: DeliveryToken) {
        self.copied = self.copied.saturating_sub(token.operation);
    }
}

/// Bytes of a query.
fn len<D: Data>(wanted: Option<&D>) -> u64 {
    wanted.map_or(0, Data::len)
}

impl<D: Data> Server<D> {
    /// Maximum queued messages to a worker at which its stream is still taken; 0 at its bounds.
    pub(super) fn room_for(&self, peer: Peer) -> usize {
        let Some(waiting) = self.waiting.get(peer.rank as usize) else { return 0 };
        let most = MOST + 4 * self.slices;
        let full = waiting.pulls >= most
            || waiting.wanted >= MOST_WANTED
            || waiting.copied >= MOST_COPIED
            || self.directory.is_full(peer.rank);
        let in_line = MOST_IN_LINE + 4 * self.slices;
        if full { 0 } else { usize::try_from(in_line).unwrap_or(usize::MAX) }
    }

    /// Failure of a pull that can never be answered. Its round is that of the last push before it, which has
    /// arrived, is offered, or is at most `max_rounds_ahead` ahead.
    pub(super) fn unanswerable(&mut self, rank: u32, pull: &Pull<D>) -> Option<Failure> {
        let Pull { key, generation, slice, round, .. } = *pull;
        if len(pull.wanted.as_ref()) > MOST_WANTED {
            let text = format!("a pull of slice {slice} wants more than can be asked for");
            return Some(invalid(text));
        }
        // After a loss that has ended all rounds, pushes and offers are dropped, and a pull that waits for
        // one fails with the loss.
        if [0, ROUNDS_OVER].contains(&round) || self.broken.is_some() {
            return None;
        }
        let limits = &self.workers.limits;
        let key = self.keys.get(key, generation)?;
        let most = if self.workers.done.get(rank as usize) == Some(&true) {
            key.pushes[rank as usize]
        } else if limits.mode == Mode::Sync {
            let slice = key.slices.get(slice as usize)?.as_ref()?;
            slice.latest(rank, limits.max_rounds_ahead, round)
        } else {
            u64::MAX
        };
        (round > most).then(|| {
            invalid(format!(
                "a pull of slice {slice} after push {round}, and worker {rank} has made or offered {most}"
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::job::Reason;
    use crate::machine::NodeRole as _;
    use crate::message::kinds::{Declare, Describe, Done, Init, Offer, Ready};
    use crate::message::{KeySpec, Message, MessageKind, Placement, Proposal, failed};
    use crate::server::ServerAction;
    use crate::sim::{Bytes, a_push, limits};

    /// A server with one key of one slice, of 16 bytes.
    fn server() -> Server<Bytes> {
        let mut server = Server::new(&limits());
        let spec = KeySpec { dtype: 2 | 32 << 8 | 1 << 16, shape: vec![4], whole: true };
        let place = Arc::new(Placement { spec, slice_bytes: 16, servers: vec![0] });
        let (key, generation, slice, offset, total, request) = (3, 1, 0, 0, 16, 0);
        let data = Bytes::new(&[0; 16]);
        take(&mut server, 0, Describe { key, generation, place });
        take(&mut server, 0, Init { key, generation, slice, offset, total, request, data });
        server.actions();
        server
    }

    /// Has the server take a message of a worker.
    fn take(server: &mut Server<Bytes>, rank: u32, message: impl Into<Message<Bytes>>) {
        assert_eq!(server.message(Peer::worker(rank), message.into()), Ok(()));
    }

    fn a_pull(round: u64, wanted: usize) -> Message<Bytes> {
        let wanted = (wanted > 0).then(|| Bytes::new(&vec![0; wanted]));
        let (key, generation, slice, request, priority) = (3, 1, 0, 0, 0);
        Pull { key, generation, slice, round, request, priority, wanted }.into()
    }

    /// Reason of the failure that answers a pull at once, if any.
    fn pull(server: &mut Server<Bytes>, rank: u32, round: u64, wanted: usize) -> Option<Reason> {
        let _ = server.message(Peer::worker(rank), a_pull(round, wanted));
        let failed = |letter: crate::peers::OutgoingMessage<Bytes>| {
            assert_eq!(letter.message.head.kind, MessageKind::Failed);
            failed::decode(letter.message.fields(), 0).unwrap().reason
        };
        server.letters().next_back().map(failed)
    }

    #[test]
    fn a_pull_that_can_never_be_answered_is_refused_at_once() {
        let mut server = server();
        for round in [1 << 63, u64::MAX - 1, 2] {
            assert_eq!(pull(&mut server, 1, round, 1 << 20), Some(Reason::Invalid), "{round}");
        }
        assert_eq!(pull(&mut server, 1, 1, (64 << 20) + 1), Some(Reason::Invalid));
        assert_eq!(pull(&mut server, 1, 1, 0), None, "the first round, which is open");
        assert_eq!(pull(&mut server, 1, ROUNDS_OVER, 0), None);
        // An offered push will be made.
        take(&mut server, 1, Offer { key: 3, generation: 1, slice: 0, round: 5 });
        assert_eq!(pull(&mut server, 1, 5, 0), None);
        assert_eq!(pull(&mut server, 1, 6, 0), Some(Reason::Invalid));
        // A worker that is done can only pull the current value.
        take(&mut server, 0, Done { key: 0, generation: 0, pushes: 0 });
        server.letters();
        assert_eq!(pull(&mut server, 0, 1, 0), Some(Reason::Invalid));
        assert_eq!(pull(&mut server, 0, 0, 0), None);
    }

    #[test]
    fn pulls_that_wait_are_bounded_for_each_worker_by_number_and_bytes() {
        let (one, other) = (Peer::worker(1), Peer::worker(0));
        for (before, wanted, most) in [(MOST, 0, 4), (0, 1 << 20, 64)] {
            let mut server = server();
            // Those of another slice.
            server.waiting[1].pulls = before;
            let mut count = 0;
            while server.room_for(one) > 0 {
                assert_eq!(pull(&mut server, 1, 1, wanted), None);
                count += 1;
            }
            assert_eq!(count, most);
            assert!(server.room_for(other) > 0, "the other worker does not notice");
            // The round closes: there is room again.
            for rank in 0..2 {
                let push = a_push(3, (1, 1), 16, Bytes::new(&[0; 16]));
                take(&mut server, rank, push);
            }
            let answers = server.actions();
            let answers = answers.filter(|it| matches!(it, ServerAction::Answer(_))).count();
            assert_eq!((answers as u64, server.room_for(one) > 0), (most, true));
        }
    }

    #[test]
    fn look_ups_that_wait_for_an_init_are_bounded_for_each_worker() {
        let (one, other) = (Peer::worker(1), Peer::worker(0));
        let declare = |extent: Option<u64>, back| {
            let spec = extent.map(|it| KeySpec {
                dtype: 2 | 32 << 8 | 1 << 16,
                shape: vec![it],
                whole: false,
            });
            let (key, setting, request, learn) = (9, 0, 0, false);
            Declare { key, setting, request, learn, back, proposal: Proposal::Key(0, spec) }
        };
        for is_made in [true, false] {
            let mut server = server();
            // The init waits for the value of worker 0.
            take(&mut server, one.rank, declare(Some(4), false));
            let mut count = 0;
            while server.room_for(one) > 0 {
                assert!(count < 2 * MOST, "any number of look-ups waits");
                take(&mut server, one.rank, declare(None, false));
                count += 1;
            }
            assert_eq!(count, MOST + 1, "and one for each key");
            assert!(server.room_for(other) > 0, "the other worker does not notice");
            assert_eq!(server.letters().len(), 0);
            if is_made {
                take(&mut server, other.rank, declare(Some(4), false));
                let ready = Ready { key: 9, generation: 1, setting: 0, request: 0 };
                take(&mut server, other.rank, ready);
            } else {
                take(&mut server, one.rank, declare(None, true));
            }
            let to_one = server.letters().filter(|letter| letter.to == one);
            assert_eq!(to_one.count() as u64, count + 1, "each look-up, and the init");
            assert!(server.room_for(one) > 0);
        }
    }

    #[test]
    fn answers_that_are_copies_count_until_they_have_arrived() {
        let mut server = server();
        let mut tokens = Vec::new();
        while server.room_for(Peer::worker(1)) > 0 {
            assert_eq!(pull_now(&mut server, &mut tokens), 64 << 20);
        }
        assert_eq!(tokens.len(), 4);
        assert!(server.room_for(Peer::worker(0)) > 0);
        server.delivered(1, tokens[0]);
        assert!(server.room_for(Peer::worker(1)) > 0);
    }

    /// Pulls rows at once, with a large answer.
    fn pull_now(server: &mut Server<Bytes>, tokens: &mut Vec<DeliveryToken>) -> u64 {
        take(server, 1, a_pull(0, 1));
        for action in server.actions().collect::<Vec<_>>() {
            let ServerAction::Answer(answer) = action else { continue };
            server.value(&answer, Bytes::new(&vec![0; 64 << 20]));
        }
        let letter = server.letters().next_back().unwrap();
        tokens.extend(letter.token);
        letter.message.body.len()
    }
}
