//! Copies between a device and arrays in pinned memory of the caller's, without blocks of the library's.

use super::takes_waits;
use crate::device::context::Device;
use crate::device::memory::LentArray;
use crate::device::stream::Stream;
use crate::error::Result;
use crate::tensor::Lent;

/// The copies of a call that go straight to or from large arrays of the caller's. The call waits for them,
/// as it would for pieces.
#[derive(Default)]
pub(crate) struct DirectCopies {
    /// Each with the address on the device.
    uploads: Vec<(LentArray, u64)>,
    downloads: Vec<(u64, LentArray)>,
}

impl DirectCopies {
    /// The array for a direct copy: a large one in pinned memory. The device's context is current.
    fn find(device: &Device, array: &Lent, bytes: usize) -> Option<LentArray> {
        takes_waits(bytes).then(|| LentArray::find(device, array, bytes)).flatten()
    }

    /// Adds the copy of a plain array to the device; false if it has to go through pieces.
    pub(crate) fn add_upload(
        &mut self,
        device: &Device,
        from: &Lent,
        bytes: usize,
        address: u64,
    ) -> bool {
        let found = Self::find(device, from, bytes);
        self.uploads.extend(found.map(|array| (array, address)));
        found.is_some()
    }

    /// Adds the copies of an array on the device to plain arrays; false, and adds none, if one of them has
    /// to go through pieces.
    pub(crate) fn add_downloads<'a>(
        &mut self,
        device: &Device,
        address: u64,
        bytes: usize,
        outs: impl Iterator<Item = &'a Lent>,
    ) -> bool {
        let before = self.downloads.len();
        for out in outs {
            let Some(array) = Self::find(device, out, bytes) else {
                self.downloads.truncate(before);
                return false;
            };
            self.downloads.push((address, array));
        }
        true
    }

    /// Whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.uploads.is_empty() && self.downloads.is_empty()
    }

    /// Queues the copies to the device.
    pub(crate) fn queue_uploads(&self, device: &Device, stream: &Stream) -> Result<()> {
        self.uploads.iter().try_for_each(|(array, to)| array.upload(device, *to, stream))
    }

    /// Queues the copies from the device.
    pub(crate) fn queue_downloads(&self, device: &Device, stream: &Stream) -> Result<()> {
        self.downloads.iter().try_for_each(|(from, array)| array.download(device, *from, stream))
    }

    pub(crate) fn clear(&mut self) {
        self.uploads.clear();
        self.downloads.clear();
    }
}
