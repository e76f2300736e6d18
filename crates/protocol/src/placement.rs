//! Placement of slices on servers (also: sharding, partitioning).

use std::collections::VecDeque;
use std::sync::Arc;

use super::message::{KeySpec, Placement};

/// Maximum slices of a key: all of them are placed, and sent in one message.
pub(super) const MOST_SLICES: u32 = 1 << 22;
/// Maximum bytes of a key, so that sums over keys do not overflow.
const MOST_BYTES: u64 = 1 << 44;

/// Maximum placements that are compared with a new one.
const MOST_RECENT: usize = 8;

/// Placements of recent keys (also: interning): keys of one shape on one server share theirs, as a job may
/// have very many small keys.
#[derive(Debug, Default)]
pub(super) struct SharedPlaces(VecDeque<Arc<Placement>>);

impl SharedPlaces {
    /// A placement, in the memory of an equal one if there is one.
    pub(super) fn share(&mut self, place: Arc<Placement>) -> Arc<Placement> {
        if let Some(known) = self.0.iter().find(|known| **known == place) {
            return Arc::clone(known);
        }
        // A long list of servers is neither compared with others nor kept.
        if place.servers.len() == 1 {
            if self.0.len() == MOST_RECENT {
                self.0.pop_back();
            }
            self.0.push_front(Arc::clone(&place));
        }
        place
    }
}

/// Places keys on servers by size, in the order of their init (also: greedy bin packing).
///
/// Every slice goes to the server with the fewest bytes of slices, so that none ever has more than
/// the mean and one slice. Keys that must stay whole have an account of their own, because one of them
/// may be larger than all slices.
#[derive(Debug)]
pub(super) struct Placer {
    block_elements: u64,
    slice_bytes: u64,
    sliced: Vec<u64>,
    whole: Vec<u64>,
}

impl Placer {
    pub(super) fn new(servers: u32, slice_bytes: u64, block_elements: u64) -> Self {
        let servers = servers.clamp(1, u32::from(u16::MAX)) as usize;
        Self { block_elements, slice_bytes, sliced: vec![0; servers], whole: vec![0; servers] }
    }

    /// Bytes of a slice of items of this size.
    fn slice_of(&self, item_bytes: u64) -> u64 {
        let block = self.block_elements * item_bytes.max(1);
        (self.slice_bytes / block * block).max(block)
    }

    /// Places one more key; None when it is too large, or has too many slices.
    pub(super) fn add(&mut self, spec: KeySpec) -> Option<Placement> {
        let bytes = spec.bytes().filter(|bytes| *bytes <= MOST_BYTES)?;
        let slice_bytes = if spec.whole { bytes.max(1) } else { self.slice_of(spec.item_bytes()) };
        let slices = u32::try_from(bytes.div_ceil(slice_bytes).max(1)).ok();
        let slices = slices.filter(|slices| *slices <= MOST_SLICES)?;
        let mut place = Placement { spec, slice_bytes, servers: Vec::new() };
        for slice in 0..slices {
            let (_, len) = place.range(slice);
            let server = self.least(place.spec.whole);
            self.account(place.spec.whole)[usize::from(server)] += len;
            place.servers.push(server);
        }
        Some(place)
    }

    /// Takes a removed key out of the account.
    pub(super) fn remove(&mut self, place: &Placement) {
        for (slice, server) in (0..).zip(&place.servers) {
            let (_, len) = place.range(slice);
            self.account(place.spec.whole)[usize::from(*server)] -= len;
        }
    }

    fn account(&mut self, whole: bool) -> &mut [u64] {
        if whole { &mut self.whole } else { &mut self.sliced }
    }

    /// The emptiest server; whole keys count all bytes, slices those of slices first.
    fn least(&self, whole: bool) -> u16 {
        let load = |server: &u16| {
            let (sliced, own) =
                (self.sliced[usize::from(*server)], self.whole[usize::from(*server)]);
            if whole { (sliced + own, own) } else { (sliced, sliced + own) }
        };
        let servers = u16::try_from(self.sliced.len()).unwrap_or(u16::MAX);
        (0..servers).min_by_key(load).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::{KeySpec, MOST_SLICES, Placer};
    use crate::sim::Random;

    const F32: u32 = 2 | 32 << 8 | 1 << 16;
    /// Elements of a block of the codecs.
    const BLOCK: u64 = 2_048;

    fn spec(elements: u64, whole: bool) -> KeySpec {
        KeySpec { dtype: F32, shape: vec![elements], whole }
    }

    #[test]
    fn a_key_that_is_too_large_is_refused_at_once() {
        let mut placer = Placer::new(1, 16, 4);
        let elements = u64::from(MOST_SLICES) * 4;
        assert!(placer.add(spec(elements + 1, false)).is_none());
        assert!(placer.add(spec(u64::MAX / 4, false)).is_none());
        assert!(placer.add(spec(u64::MAX / 4, true)).is_none());
        assert_eq!((placer.sliced[0], placer.whole[0]), (0, 0));
        assert!(placer.add(spec(elements, false)).is_some());
    }

    #[test]
    fn no_server_has_more_than_the_mean_and_one_slice() {
        for seed in 0..200 {
            let mut random = Random::new(seed);
            let servers = 1 + random.below(7);
            let mut placer =
                Placer::new(u32::try_from(servers).unwrap(), 8_192 << random.below(4), BLOCK);
            for _ in 0..=random.below(60) {
                let large = random.below(200_000);
                let elements = if random.one_in(2) { random.below(4_000) } else { large };
                let place = placer.add(spec(elements, random.one_in(9))).unwrap();
                let sum: u64 = (0..).zip(&place.servers).map(|(i, _)| place.range(i).1).sum();
                assert_eq!(sum, elements * 4, "the slices make up the key, seed {seed}");
            }
            let (most, sum) = (placer.sliced.iter().max().unwrap(), placer.sliced.iter().sum());
            let mean = |sum: u64| sum / servers;
            assert!(*most <= mean(sum) + placer.slice_of(4), "seed {seed}: {:?}", placer.sliced);
        }
    }

    #[test]
    fn slices_begin_at_blocks_and_whole_keys_stay_together() {
        let mut placer = Placer::new(3, 300_000, BLOCK);
        let place = placer.add(spec(1_000_000, false)).unwrap();
        assert!((0..).zip(&place.servers).all(|(i, _)| place.range(i).0.is_multiple_of(8_192)));
        assert!(place.servers.iter().any(|server| *server != place.servers[0]));
        let whole = placer.add(spec(1_000_000, true)).unwrap();
        assert_eq!(whole.servers.len(), 1);
    }

    #[test]
    fn the_same_keys_in_the_same_order_get_the_same_places() {
        let places = || {
            let mut placer = Placer::new(4, 16_384, BLOCK);
            (0..50).map(|i| placer.add(spec(i * i * 37, i % 7 == 0))).collect::<Vec<_>>()
        };
        assert_eq!(places(), places());
    }

    #[test]
    fn removing_gives_the_room_back_and_sizes_beyond_64_bits_are_refused() {
        let mut placer = Placer::new(2, 16_384, BLOCK);
        let place = placer.add(spec(123_456, false)).unwrap();
        placer.remove(&place);
        assert_eq!(placer.sliced, [0, 0]);
        assert!(placer.add(KeySpec { shape: vec![1 << 40, 1 << 40], ..spec(0, false) }).is_none());
    }
}
