//! Digests of the rounds of one slice, for the log of its server.

use std::sync::Arc;

use smallvec::SmallVec;

use super::published_digests::PublishedDigests;
use crate::digest::{Contributions, DigestLog, RoundRecord, RunDigest};
use crate::job::row_runs;
use crate::local::digest::{optimizer_of, state_runs};
use crate::local::merger::Handling;
use crate::local::table::{Slot, Value};
use crate::runtime::Bytes;

/// What the slices of a server digest.
#[derive(Clone)]
pub(super) struct DigestOptions {
    pub(super) log: Option<Arc<DigestLog>>,
    /// Whether states and contributions have digests.
    pub(super) all: bool,
}

/// The place of a slice in its key, and the digests of its open round.
pub(super) struct SliceDigests {
    options: DigestOptions,
    /// First byte of the slice, and bytes of the key.
    start: u64,
    whole: u64,
    pushes: Contributions,
    /// Digest of the value since the last round; None if a call has replaced the value.
    value: Option<RunDigest>,
    published: Arc<PublishedDigests>,
}

impl SliceDigests {
    pub(super) fn new(options: DigestOptions, (start, bytes): (u64, u64), whole: u64) -> Self {
        let published = Arc::new(PublishedDigests::new(start, bytes, whole));
        Self { options, start, whole, pushes: Contributions::new(), value: None, published }
    }

    /// What observers see.
    pub(super) fn published(&self) -> Arc<PublishedDigests> {
        Arc::clone(&self.published)
    }

    /// The digest of the value, if it is known.
    pub(super) fn value(&self) -> Option<RunDigest> {
        self.value
    }

    /// A call has replaced the value.
    pub(super) fn replaced(&mut self) {
        self.value = None;
        self.published.replaced();
    }

    /// Notes a contribution to the open round.
    pub(super) fn add(&mut self, first: bool, rank: u64, data: &Bytes) {
        self.note(first, rank, || data.read(RunDigest::of));
    }

    /// Notes a contribution to rows: the digest is that of each row's number in the key (8 bytes) and its
    /// values, in the order of rows.
    pub(super) fn add_rows(&mut self, first: bool, rank: u64, data: &Bytes, slot: &Slot) {
        let before = self.start / ((slot.row_length() * slot.dtype.size()) as u64).max(1);
        self.note(first, rank, || {
            data.read(|bytes| {
                let Some((runs, taken)) = row_runs::decode(bytes, slot.rows()) else {
                    return RunDigest::default();
                };
                let ids = runs.iter().flat_map(|run| run.first..run.first + run.count);
                // Rows of a sum by a tree may be wider than the key's dtype.
                let count: usize = runs.iter().map(|run| run.count as usize).sum();
                let unit = bytes[taken..].len() / count.max(1);
                let rows = bytes[taken..].chunks_exact(unit.max(1));
                let digest = |(id, row): (u32, &[u8])| {
                    let number = (before + u64::from(id)).to_le_bytes();
                    RunDigest::of(&number).then(RunDigest::of(row))
                };
                RunDigest::joined(ids.zip(rows).map(digest))
            })
        });
    }

    fn note(&mut self, first: bool, rank: u64, digest: impl FnOnce() -> Option<RunDigest>) {
        if first {
            self.pushes.clear();
        }
        if self.options.all
            && let Ok(rank) = u32::try_from(rank)
        {
            self.pushes.push((rank, digest().unwrap_or_default()));
        }
    }

    /// Logs the round that has closed: the value is that of the slice now.
    pub(super) fn close(
        &mut self,
        (slot, round, failed): (&Slot, u64, bool),
        stored: &[u8],
        value: &Value,
        handling: &Handling,
    ) {
        let digest = RunDigest::of(stored);
        self.value = Some(digest);
        let pushes = std::mem::take(&mut self.pushes);
        let optimizer = optimizer_of(&handling.merger).filter(|_| self.options.all);
        let states: SmallVec<_> = state_runs(optimizer, value).collect();
        self.published.closed(round, digest, &states);
        let Some(log) = &self.options.log else { return };
        let record = RoundRecord {
            key: slot.key.id(),
            round,
            setting: handling.version,
            start: self.start,
            whole: self.whole,
            value: digest,
            states,
            pushes,
            failed,
        };
        log.add(record, || handling.describe());
    }
}
