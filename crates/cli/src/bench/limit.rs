//! The limit of the machine: copies in memory for a store of one process, raw TCP for jobs. Also
//! called: roofline.

use std::thread;

use anyhow::Result;
use kvstore::{Config, StoreKind};

use super::agree::BenchGroup;
use super::case::{BenchCase, BenchOp};
use super::wire::Wire;

/// From this many bytes on, all processors copy together.
const MANY: usize = 16 << 20;
/// A part of a value that stays in the cache while it is written to a second place.
const PART: usize = 16 << 10;

pub(crate) enum Limit {
    Copy(Copy),
    Wire(Wire),
}

impl Limit {
    /// `machines` maps each worker to its machine.
    pub(crate) fn new(
        group: &mut BenchGroup<'_>,
        machines: &[u64],
        config: &Config,
        cases: &[BenchCase],
    ) -> Result<Self> {
        if matches!(group.store.kind(), StoreKind::Local | StoreKind::Device) {
            return Ok(Self::Copy(Copy::default()));
        }
        let most = cases.iter().map(BenchCase::bytes).max().unwrap_or(0);
        Ok(Self::Wire(Wire::new(group, machines, config, most)?))
    }

    /// Its name in the report.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Copy(_) => "a copy in memory",
            Self::Wire(wire) => wire.name,
        }
    }

    pub(crate) fn prepare(&mut self, case: &BenchCase) -> Result<()> {
        match self {
            Self::Copy(copy) => *copy = Copy::new(case),
            Self::Wire(wire) => wire.prepare(case.bytes())?,
        }
        Ok(())
    }

    /// Moves the bytes of a case once.
    pub(crate) fn round(&mut self, op: BenchOp) -> Result<()> {
        match self {
            Self::Copy(copy) => copy.round(op),
            Self::Wire(wire) => wire.round(op)?,
        }
        Ok(())
    }
}

/// Three arrays that hold all keys one after the other.
#[derive(Default)]
pub(crate) struct Copy {
    from: Vec<u8>,
    to: [Vec<u8>; 2],
    size: usize,
    /// Bytes that each thread copies: whole keys, or parts of one.
    share: usize,
}

impl Copy {
    fn new(case: &BenchCase) -> Self {
        let bytes = case.bytes();
        let threads = thread::available_parallelism().map_or(1, usize::from).min(16);
        let share = if bytes < MANY { bytes } else { bytes.div_ceil(threads) };
        let share = if share > case.size { share.next_multiple_of(case.size) } else { share };
        Self { from: vec![1; bytes], to: [vec![0; bytes], vec![0; bytes]], size: case.size, share }
    }

    fn round(&mut self, op: BenchOp) {
        let Self { from, to: [first, second], size, share } = self;
        let (size, share) = (*size, (*share).max(1));
        let shares = first.chunks_mut(share).zip(second.chunks_mut(share)).zip(from.chunks(share));
        let work = |((first, second), from): ((&mut [u8], &mut [u8]), &[u8])| {
            if op == BenchOp::Pushpull {
                copy_twice(first, second, from);
            } else {
                copy(first, from, size);
            }
        };
        if share >= from.len() {
            shares.for_each(work);
            return;
        }
        thread::scope(|scope| {
            for share in shares {
                scope.spawn(move || work(share));
            }
        });
    }
}

fn copy(to: &mut [u8], from: &[u8], size: usize) {
    to.chunks_mut(size).zip(from.chunks(size)).for_each(|(to, from)| to.copy_from_slice(from));
}

fn copy_twice(first: &mut [u8], second: &mut [u8], from: &[u8]) {
    let places = first.chunks_mut(PART).zip(second.chunks_mut(PART));
    for ((first, second), from) in places.zip(from.chunks(PART)) {
        first.copy_from_slice(from);
        second.copy_from_slice(from);
    }
}
