//! Tables of jobs that stay on a device for later calls: a call with the jobs of an earlier one on its
//! stream, as the steps of a training loop are, copies none.

use std::sync::Mutex;

use super::scratch::ScratchBlock;
use crate::device::context::{Device, lock};
use crate::device::mark::Mark;
use crate::device::stream::Stream;

/// Maximum number of tables that are kept, of all devices.
const MOST: usize = 16;

/// Maximum bytes of a table that is kept.
const LARGEST: usize = 1 << 20;

/// Number of recent tables that are known by their fingerprints.
const RECENT: usize = 64;

/// A table on a device.
struct KeptTable {
    number: u64,
    device: u16,
    text: Vec<u8>,
    /// None while a call uses it.
    memory: Option<ScratchBlock>,
    /// Behind its last use.
    mark: Mark,
}

/// A table that a call uses.
pub(in crate::device) struct TakenTable {
    number: u64,
    pub(in crate::device) memory: ScratchBlock,
}

/// Tables of all devices.
struct KeptTables {
    /// The one that was used last at the end.
    tables: Vec<KeptTable>,
    /// Fingerprints of tables that were not kept. A table is kept at its second use: those with numbers
    /// that change with each call would only take the place of others.
    recent: [u64; RECENT],
    next: usize,
    /// Number of tables so far.
    count: u64,
}

static KEPT: Mutex<KeptTables> =
    Mutex::new(KeptTables { tables: Vec::new(), recent: [0; RECENT], next: 0, count: 0 });

/// Equal for equal bytes, and else rarely.
fn fingerprint(text: &[u8]) -> u64 {
    const ODD: u64 = 0x9E37_79B9_7F4A_7C15;
    let (words, rest) = text.as_chunks::<8>();
    let words = words.iter().map(|word| u64::from_le_bytes(*word));
    let all = words.chain(rest.iter().map(|byte| u64::from(*byte)));
    all.fold(text.len() as u64, |sum, word| (sum.rotate_left(5) ^ word).wrapping_mul(ODD))
}

/// Takes a table of these bytes that an earlier call has left on the stream.
pub(in crate::device) fn take(device: &Device, text: &[u8], stream: &Stream) -> Option<TakenTable> {
    let mut kept = lock(&KEPT);
    let is_it = |it: &&mut KeptTable| {
        it.device == device.ordinal
            && it.memory.is_some()
            && it.mark.is_of(stream)
            && it.text == text
    };
    let found = kept.tables.iter_mut().rev().find(is_it)?;
    Some(TakenTable { number: found.number, memory: found.memory.take()? })
}

/// Gives a table back that was taken, behind a mark at the end of its stream.
pub(in crate::device) fn give_back(table: TakenTable, mark: &Mark, stream: &Stream) {
    let TakenTable { number, mut memory } = table;
    let mut kept = lock(&KEPT);
    let Some(at) = kept.tables.iter().position(|it| it.number == number) else {
        drop(kept);
        return memory.give(mark, stream);
    };
    memory.rest(mark);
    let found = kept.tables.remove(at);
    kept.tables.push(KeptTable { memory: Some(memory), mark: mark.clone(), ..found });
}

/// Leaves a new table, which kernels only read, for later calls, behind a mark at the end of its stream.
pub(in crate::device) fn keep(
    device: &Device,
    text: &[u8],
    mut memory: ScratchBlock,
    mark: &Mark,
    stream: &Stream,
) {
    // The identity of a stream may be unknown: its tables would never be found.
    let may_keep = text.len() <= LARGEST && mark.is_of(stream);
    let mut kept = lock(&KEPT);
    if !may_keep || !kept.knows(fingerprint(text)) {
        drop(kept);
        return memory.give(mark, stream);
    }
    memory.rest(mark);
    let oldest = (kept.tables.len() >= MOST).then(|| kept.tables.remove(0));
    kept.count += 1;
    let (number, device) = (kept.count, device.ordinal);
    let (text, memory, mark) = (text.into(), Some(memory), mark.clone());
    kept.tables.push(KeptTable { number, device, text, memory, mark });
    drop(kept);
    // Its block goes to those that any call may take.
    drop(oldest);
}

impl KeptTables {
    /// Whether a table with this fingerprint was used lately; notes it.
    fn knows(&mut self, fingerprint: u64) -> bool {
        if self.recent.contains(&fingerprint) {
            return true;
        }
        self.recent[self.next] = fingerprint;
        self.next = (self.next + 1) % RECENT;
        false
    }
}
