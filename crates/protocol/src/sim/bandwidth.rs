//! Network cards of a given speed, without loss (also: bandwidth model).
//!
//! Every machine has one full-duplex card that all its processes share. A frame is sent in segments: a card
//! with segmentation offload takes 64 KiB at a time. Each segment occupies the sender's transmit side and,
//! after a latency, the receiver's receive side. Streams between two processes take turns, segment by
//! segment, as connections of TCP do; frames of one stream keep their order. A stream has few segments in
//! flight, so that a busy receiver does not hold up a sender's other streams. Within a machine frames go
//! through memory and pass no card.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Virtual time; at 30 Gbit/s a microsecond is too coarse.
pub(super) type Nanos = u64;

const SEGMENT: u64 = 64 << 10;
/// Segments of one stream between the two cards.
const AHEAD: usize = 8;
const LATENCY: Nanos = 50_000;
/// Within a machine: bytes per nanosecond, and latency.
const MEMORY: u64 = 10;
const MEMORY_LATENCY: Nanos = 10_000;

/// Event at a process.
pub(super) enum Event<F> {
    Frame { to: usize, frame: F },
    Alarm(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Segment {
    stream: usize,
    bytes: u64,
    /// Last segment of its frame.
    last: bool,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// A segment has passed the sender's card.
    Left(Segment),
    Reached(Segment),
    /// The card has received the segment at the head of its queue.
    Taken(usize),
    /// A frame has been copied through memory.
    Copied(usize),
    Alarm(usize),
}

#[derive(Default)]
struct Card {
    sends: bool,
    /// Round-robin queue of the streams with segments to send.
    turns: VecDeque<usize>,
    takes: VecDeque<Segment>,
}

struct Stream<F> {
    frames: VecDeque<F>,
    /// Unsent bytes of each unfinished frame.
    left: VecDeque<u64>,
    ahead: usize,
    has_turn: bool,
    copied_at: Nanos,
}

pub(super) struct Network<F> {
    pub(super) now: Nanos,
    gbits: u64,
    queue: BinaryHeap<Reverse<(Nanos, u64, Step)>>,
    count: u64,
    /// Card of each process.
    places: Vec<usize>,
    cards: Vec<Card>,
    /// By sender, then receiver.
    streams: Vec<Stream<F>>,
}

impl<F> Network<F> {
    /// A network of cards with this many Gbit/s; process `i` is on the machine with card `places[i]`.
    pub(super) fn new(gbits: u64, places: Vec<usize>) -> Self {
        let cards = places.iter().max().map_or(0, |last| last + 1);
        let stream = || Stream {
            frames: VecDeque::new(),
            left: VecDeque::new(),
            ahead: 0,
            has_turn: false,
            copied_at: 0,
        };
        Self {
            now: 0,
            gbits,
            queue: BinaryHeap::new(),
            count: 0,
            cards: (0..cards).map(|_| Card::default()).collect(),
            streams: (0..places.len() * places.len()).map(|_| stream()).collect(),
            places,
        }
    }

    pub(super) fn alarm(&mut self, time: Nanos, process: usize) {
        self.at(time, Step::Alarm(process));
    }

    pub(super) fn send(&mut self, from: usize, to: usize, frame: F, bytes: u64) {
        let stream = from * self.places.len() + to;
        let state = &mut self.streams[stream];
        state.frames.push_back(frame);
        if self.places[from] == self.places[to] {
            state.copied_at = state.copied_at.max(self.now) + bytes / MEMORY;
            let time = state.copied_at + MEMORY_LATENCY;
            return self.at(time, Step::Copied(stream));
        }
        state.left.push_back(bytes);
        self.take_turn(stream);
    }

    /// Next event at a process; virtual time advances to it.
    pub(super) fn next(&mut self) -> Option<Event<F>> {
        loop {
            let Reverse((time, _, step)) = self.queue.pop()?;
            self.now = time;
            match step {
                Step::Left(segment) => {
                    let card = self.ends(segment.stream).0;
                    self.cards[card].sends = false;
                    self.at(time + LATENCY, Step::Reached(segment));
                    self.take_turn(segment.stream);
                    self.send_next(card);
                }
                Step::Reached(segment) => {
                    let card = self.ends(segment.stream).1;
                    self.cards[card].takes.push_back(segment);
                    if self.cards[card].takes.len() == 1 {
                        self.at(time + self.duration(segment.bytes), Step::Taken(card));
                    }
                }
                Step::Taken(card) => {
                    if let Some(stream) = self.taken(card) {
                        return self.arrival(stream);
                    }
                }
                Step::Copied(stream) => return self.arrival(stream),
                Step::Alarm(process) => return Some(Event::Alarm(process)),
            }
        }
    }

    /// A segment has arrived; gives the stream if it completes a frame.
    fn taken(&mut self, card: usize) -> Option<usize> {
        let segment = self.cards[card].takes.pop_front()?;
        if let Some(next) = self.cards[card].takes.front() {
            self.at(self.now + self.duration(next.bytes), Step::Taken(card));
        }
        self.streams[segment.stream].ahead -= 1;
        self.take_turn(segment.stream);
        segment.last.then_some(segment.stream)
    }

    fn arrival(&mut self, stream: usize) -> Option<Event<F>> {
        let frame = self.streams[stream].frames.pop_front()?;
        Some(Event::Frame { to: stream % self.places.len(), frame })
    }

    /// Queues the stream at the sender's card, if it has segments to send and its window allows one.
    fn take_turn(&mut self, stream: usize) {
        let state = &mut self.streams[stream];
        if !state.has_turn && state.ahead < AHEAD && !state.left.is_empty() {
            state.has_turn = true;
            let card = self.ends(stream).0;
            self.cards[card].turns.push_back(stream);
            self.send_next(card);
        }
    }

    fn send_next(&mut self, card: usize) {
        if self.cards[card].sends {
            return;
        }
        let Some(stream) = self.cards[card].turns.pop_front() else { return };
        let state = &mut self.streams[stream];
        state.has_turn = false;
        let Some(left) = state.left.front_mut() else { return };
        let bytes = SEGMENT.min(*left);
        *left -= bytes;
        let last = *left == 0;
        if last {
            state.left.pop_front();
        }
        state.ahead += 1;
        self.cards[card].sends = true;
        let time = self.now + self.duration(bytes);
        self.at(time, Step::Left(Segment { stream, bytes, last }));
    }

    /// Cards of a stream's sender and receiver.
    fn ends(&self, stream: usize) -> (usize, usize) {
        let processes = self.places.len();
        (self.places[stream / processes], self.places[stream % processes])
    }

    fn duration(&self, bytes: u64) -> Nanos {
        bytes * 8 / self.gbits
    }

    fn at(&mut self, time: Nanos, step: Step) {
        self.count += 1;
        self.queue.push(Reverse((time, self.count, step)));
    }
}

#[cfg(test)]
mod tests {
    use super::{Event, LATENCY, Nanos, Network};

    /// Number and arrival time of each frame.
    fn arrivals(network: &mut Network<u32>) -> Vec<(u32, Nanos)> {
        let mut arrivals = Vec::new();
        while let Some(event) = network.next() {
            if let Event::Frame { frame, .. } = event {
                arrivals.push((frame, network.now));
            }
        }
        arrivals
    }

    fn close(time: Nanos, expected: Nanos) -> bool {
        time.abs_diff(expected) * 100 < expected
    }

    #[test]
    fn a_card_sends_at_its_speed_and_takes_in_at_the_same_time() {
        let mut network = Network::new(8, vec![0, 1]);
        network.send(0, 1, 1, 100_000_000);
        network.send(1, 0, 2, 100_000_000);
        let times = arrivals(&mut network);
        assert!(times.iter().all(|(_, time)| close(*time, 100_000_000 + LATENCY)), "{times:?}");
    }

    #[test]
    fn streams_share_a_card_evenly_and_the_way_into_another() {
        let mut network = Network::new(8, vec![0, 1, 2]);
        network.send(0, 1, 1, 50_000_000);
        network.send(0, 2, 2, 100_000_000);
        network.send(1, 2, 3, 50_000_000);
        let times = arrivals(&mut network);
        // Streams share the card evenly until the first two frames have arrived.
        let expected = [(1, 100_000_000), (3, 100_000_000), (2, 150_000_000)];
        assert!(times.iter().zip(expected).all(|((_, t), (_, e))| close(*t, e)), "{times:?}");
    }

    #[test]
    fn frames_of_a_stream_keep_their_order_and_those_of_a_machine_pass_no_card() {
        let mut network = Network::new(1, vec![0, 0, 1]);
        network.send(0, 1, 1, 10_000_000);
        network.send(0, 1, 2, 1);
        network.send(0, 2, 3, 1_000_000);
        network.send(0, 2, 4, 1);
        let order: Vec<_> = arrivals(&mut network).into_iter().map(|(frame, _)| frame).collect();
        assert_eq!(order, [1, 2, 3, 4]);
    }
}
