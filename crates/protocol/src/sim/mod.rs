//! Deterministic simulator (also: simulation testing): whole clusters of the real machines in one thread,
//! from one seed, in virtual time. The network loses, duplicates, delays, reorders and corrupts frames, and
//! loses connections with all that they carry; processes are slow, stop, die and are cut off. A model without messages checks every result.

mod bandwidth;
mod cancellation;
mod cluster;
mod coverage;
mod faults;
mod frames;
mod later;
mod model;
mod network;
mod observer;
mod program;
mod reader;
mod scenario;
mod scripted;
mod slicing;
mod tests;
mod trainer;
mod training;

pub(super) use crate::testing::Random;
pub(super) use frames::{read_frame, write_frame};
pub(super) use later::with_fields;

use std::sync::Arc;

use super::job::{Data, Limits, MS, Mode, OnLoss, SumOrder};
use super::message::kinds::Push;

/// A push of slice 0, without flags.
pub(super) fn a_push(
    key: u64,
    (generation, round): (u32, u64),
    total: u64,
    data: Bytes,
) -> Push<Bytes> {
    Push {
        key,
        generation,
        slice: 0,
        round,
        offset: 0,
        total,
        request: 0,
        setting: 0,
        priority: 0,
        codec: 0,
        weight: 0,
        part: 0,
        scale: 0,
        granted: false,
        answer: false,
        data,
    }
}

/// Limits of a small job.
pub(super) fn limits() -> Limits {
    Limits {
        job: 1,
        workers: 2,
        servers: 1,
        mode: Mode::Sync,
        on_loss: OnLoss::Fail,
        peer_timeout: 5_000 * MS,
        start_timeout: 60_000 * MS,
        embedded: false,
        block_elements: 4,
        slice_bytes: 16,
        hold_bytes: 1 << 20,
        max_rounds_ahead: 1,
        sum_order: SumOrder::Linear,
        window_frames: 32,
        window_bytes: 4 << 20,
        one_way_at_a_time: false,
    }
}

/// Shared bytes of a value.
#[derive(Debug, Clone)]
pub(super) struct Bytes {
    all: Arc<[u8]>,
    at: usize,
    len: usize,
}

impl Bytes {
    pub(super) fn new(bytes: &[u8]) -> Self {
        Self { all: bytes.into(), at: 0, len: bytes.len() }
    }

    pub(super) fn of(values: &[f32]) -> Self {
        Self::new(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<_>>())
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.all[self.at..self.at + self.len]
    }

    pub(super) fn values(&self) -> Vec<f32> {
        let (chunks, _) = self.bytes().as_chunks::<4>();
        chunks.iter().map(|chunk| f32::from_le_bytes(*chunk)).collect()
    }
}

impl Data for Bytes {
    fn len(&self) -> u64 {
        self.len as u64
    }

    fn part(&self, at: u64, len: u64) -> Self {
        let (at, len) = (usize::try_from(at).unwrap(), usize::try_from(len).unwrap());
        assert!(at + len <= self.len, "a part outside of its value");
        Self { all: self.all.clone(), at: self.at + at, len }
    }
}

/// A value of this many bytes, without content.
#[derive(Debug, Clone, Copy)]
pub(super) struct Length(pub(super) u64);

impl Data for Length {
    fn len(&self) -> u64 {
        self.0
    }

    fn part(&self, at: u64, len: u64) -> Self {
        assert!(at + len <= self.0, "a part outside of its value");
        Self(len)
    }
}
