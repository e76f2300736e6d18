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

/// A table that no call holds.
struct KeptTable {
    device: u16,
    text: Vec<u8>,
    memory: ScratchBlock,
    /// Behind its last use.
    mark: Mark,
}

/// Tables of all devices, the one that was used last at the end.
static KEPT: Mutex<Vec<KeptTable>> = Mutex::new(Vec::new());

/// Takes a table of these bytes that an earlier call has left on the stream.
pub(in crate::device) fn take(
    device: &Device,
    text: &[u8],
    stream: &Stream,
) -> Option<ScratchBlock> {
    let mut kept = lock(&KEPT);
    let is_it =
        |it: &KeptTable| it.device == device.ordinal && it.mark.is_of(stream) && it.text == text;
    let at = kept.iter().rposition(is_it)?;
    Some(kept.remove(at).memory)
}

/// Leaves a table, which kernels only read, for later calls, behind a mark at the end of its stream.
/// `text` gets the memory of another list.
pub(in crate::device) fn keep(
    device: &Device,
    text: &mut Vec<u8>,
    mut memory: ScratchBlock,
    mark: &Mark,
    stream: &Stream,
) {
    // The identity of a stream may be unknown: its tables would never be found.
    if text.len() > LARGEST || !mark.is_of(stream) {
        return memory.give(mark, stream);
    }
    memory.rest(mark);
    let mut kept = lock(&KEPT);
    let oldest = (kept.len() >= MOST).then(|| kept.remove(0));
    let (spare, oldest) = oldest.map(|it| (it.text, it.memory)).unzip();
    let text = std::mem::replace(text, spare.unwrap_or_default());
    kept.push(KeptTable { device: device.ordinal, text, memory, mark: mark.clone() });
    drop(kept);
    // Its block goes to those that any call may take.
    drop(oldest);
}
