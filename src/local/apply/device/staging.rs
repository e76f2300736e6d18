//! The work of a call on a device, collected before it is queued: copies, jobs, memory for both.

use smallvec::SmallVec;

use super::peers::PeerStaging;
use super::spans::CallSpans;
use super::too_late;
use crate::device::{
    CallQueue, DirectCopies, Downloads, JobList, Mark, Room, Spares, Stage, Uploads,
};
use crate::device::{Wait, piece_bytes};
use crate::error::{Result, fail};
use crate::local::apply::{CallLimits, with_default_floats};
use crate::local::merge::Team;
use crate::local::table::Slot;
use crate::tensor::{Array, Buffer, DType, LINE, Lent, Memory};

pub(super) struct Staging<'a> {
    pub(super) queue: &'a CallQueue,
    /// Of all devices of the call.
    queues: &'a [CallQueue],
    pub(super) jobs: JobList,
    lists: StagedLists,
    /// What other devices have to do for it.
    peers: SmallVec<[PeerStaging<'a>; 1]>,
    /// How the host copies.
    team: Team<'static>,
    limits: CallLimits<'a>,
    /// What the text of an error says of the keys, if uploads are not done in time.
    pub(super) rest: &'static str,
    /// Whether the device may use the memory for this call, behind no mark yet.
    is_running: bool,
    /// Whether copies may use pinned memory of the caller's: then the call waits for them.
    pub(super) lends: bool,
}

/// Room in host memory for an array that is to be uploaded: in a piece, or of its own.
pub(super) enum HostRoom {
    Piece(Room),
    Own(Buffer),
}

/// The lists of a staging, whose memory later ones use.
#[derive(Default)]
struct StagedLists {
    /// Device memory for this call only.
    memory: CallSpans,
    uploads: Uploads,
    downloads: Downloads,
    direct: DirectCopies,
}

thread_local! {
    static LISTS: Spares<StagedLists> = const { Spares::new() };
}

impl Drop for Staging<'_> {
    fn drop(&mut self) {
        let mut lists = std::mem::take(&mut self.lists);
        let is_used = self.is_running || lists.uploads.has_begun();
        if is_used && !lists.memory.is_empty() {
            let CallQueue { device, stream, .. } = self.queue;
            match Mark::record(device, stream) {
                Ok(mark) => lists.memory.give(&mark, stream),
                // The device is lost.
                Err(_) => lists.memory.note_queued(),
            }
        }
        lists.memory.clear();
        lists.uploads.clear();
        lists.downloads.clear();
        lists.direct.clear();
        Spares::put(&LISTS, lists);
    }
}

impl<'a> Staging<'a> {
    pub(super) fn new(
        (queue, queues): (&'a CallQueue, &'a [CallQueue]),
        team: Team<'static>,
        limits: CallLimits<'a>,
    ) -> Self {
        Self {
            queue,
            queues,
            jobs: JobList::default(),
            lists: Spares::take(&LISTS),
            peers: SmallVec::new(),
            team,
            limits,
            rest: "it and keys after it are unchanged",
            is_running: false,
            lends: false,
        }
    }

    /// Whether memory is that of the device of this staging.
    pub(super) fn is_own(&self, memory: Memory) -> bool {
        memory.device() == Some(self.queue.device.ordinal)
    }

    /// The part of another device of the call.
    fn peer(&mut self, memory: Memory) -> Option<&mut PeerStaging<'a>> {
        let other = memory.device().filter(|_| !self.is_own(memory))?;
        let queue = self.queues.iter().find(|queue| queue.device.ordinal == other)?;
        let known = self.peers.iter().position(|peer| std::ptr::eq(peer.queue, queue));
        let at = known.unwrap_or_else(|| {
            self.peers.push(PeerStaging::new(queue));
            self.peers.len() - 1
        });
        self.peers.get_mut(at)
    }

    /// Copies a plain array of a key to an out of another device.
    pub(super) fn send(&mut self, slot: &Slot, own: u64, out: &Lent) -> Result<()> {
        self.peer(out.memory()).map_or(Ok(()), |peer| peer.send(slot, own, out))
    }

    /// The address of device memory for this call.
    pub(super) fn span(&mut self, bytes: usize) -> Result<u64> {
        self.lists.memory.take(self.queue, bytes)
    }

    /// Takes pinned memory for uploads of so many bytes in all.
    pub(super) fn reserve(&mut self, bytes: usize) -> Result<()> {
        self.lists.uploads.reserve(self.queue.device, bytes)
    }

    /// The bytes to reserve for those values of a key that are in host memory.
    pub(super) fn bytes_here(slot: &Slot, values: &[Lent]) -> usize {
        let here = values.iter().filter(|value| value.memory() == Memory::Host).count();
        here * slot.bytes().next_multiple_of(LINE)
    }

    /// Room for a part of an array in the pieces of the uploads.
    fn room(&mut self, bytes: usize) -> Result<Room> {
        let (queue, limits, rest) = (self.queue, self.limits, self.rest);
        let wait = |mark: &Mark| {
            let is_over = || limits.is_cancelled() || limits.patience.end().is_over();
            match mark.wait(is_over)? {
                true => Ok(()),
                false if limits.is_cancelled() => Err(fail!(Cancelled, "cancelled; {rest}")),
                false => Err(too_late(queue.device.ordinal, rest)),
            }
        };
        self.lists.uploads.room(queue, bytes, &wait)
    }

    /// Uploads an array in host memory to some places, of which each gets all of it.
    pub(super) fn upload(&mut self, from: Array, bytes: usize, addresses: &[u64]) -> Result<()> {
        for start in (0..bytes).step_by(piece_bytes()) {
            let part = start..bytes.min(start + piece_bytes());
            let room = self.room(part.len())?;
            let to = self.lists.uploads.lent(room, DType::U8).array();
            self.team.copy_bytes(from.part(&part), to, part.len());
            self.copy_room(room, addresses, start);
        }
        Ok(())
    }

    /// Adds the copies of a part of an array.
    fn copy_room(&mut self, room: Room, addresses: &[u64], start: usize) {
        let uploads = &mut self.lists.uploads;
        addresses.iter().for_each(|address| uploads.copy(room, address + start as u64));
    }

    /// Room for an array of so many bytes that is to be uploaded next.
    pub(super) fn host_room(&mut self, bytes: usize) -> Result<HostRoom> {
        if bytes <= piece_bytes() {
            self.room(bytes).map(HostRoom::Piece)
        } else {
            Buffer::new(bytes).map(HostRoom::Own)
        }
    }

    /// The memory of such a room.
    pub(super) fn lent(&mut self, room: &HostRoom, dtype: DType) -> Lent {
        match room {
            HostRoom::Piece(room) => self.lists.uploads.lent(*room, dtype),
            HostRoom::Own(buffer) => Lent::of(Array::of(buffer, dtype)),
        }
    }

    /// Uploads the array in a room, which has been written.
    pub(super) fn upload_room(
        &mut self,
        room: &HostRoom,
        bytes: usize,
        addresses: &[u64],
    ) -> Result<()> {
        match room {
            HostRoom::Piece(room) => {
                self.copy_room(*room, addresses, 0);
                Ok(())
            }
            HostRoom::Own(buffer) => self.upload(Array::of(buffer, DType::U8), bytes, addresses),
        }
    }

    /// Adds the copies of a key's value to all of its outs in host memory, if they are large and in pinned
    /// memory; false if they have to be fetched.
    pub(super) fn download_there<'b>(
        &mut self,
        slot: &Slot,
        address: u64,
        outs: impl Iterator<Item = &'b Lent> + Clone,
    ) -> bool {
        let mut all = outs.clone();
        let (device, direct) = (self.queue.device, &mut self.lists.direct);
        self.lends
            && all.all(|out| out.is_plain(slot.dtype))
            && direct.add_downloads(device, address, slot.bytes(), outs)
    }

    /// Whether the call has to wait for copies that use memory of the caller's.
    pub(super) fn has_lent(&self) -> bool {
        !self.lists.direct.is_empty()
    }

    /// Adds the download of an array; returns its number. They are fetched in this order.
    pub(super) fn download(&mut self, address: u64, bytes: usize) -> usize {
        self.lists.downloads.add(address, bytes)
    }

    /// Whether all downloads have been queued. The others are while earlier ones are fetched; until
    /// then their memory must not change.
    pub(super) fn is_queued(&self) -> bool {
        self.lists.downloads.is_queued()
    }

    /// Waits for a download, and hands over its parts, each with its offset and its bytes.
    pub(super) fn fetch(
        &mut self,
        index: usize,
        wait: Wait<'_>,
        take: impl FnMut(usize, Lent, usize) -> Result<()>,
    ) -> Result<()> {
        self.lists.downloads.fetch(index, self.queue, wait, take)
    }

    /// Waits for a download; gives it in a buffer.
    pub(super) fn fetch_buffer(
        &mut self,
        index: usize,
        bytes: usize,
        wait: Wait<'_>,
    ) -> Result<Buffer> {
        let (buffer, team) = (Buffer::zeroed(bytes, false)?, self.team);
        let to = Array::of(&buffer, DType::U8);
        self.fetch(index, wait, |start, part, bytes| {
            team.copy_bytes(part.array(), to.part(&(start..start + bytes)), bytes);
            Ok(())
        })?;
        Ok(buffer)
    }

    /// Waits for a download; gives it where it is in pinned memory, or in a buffer of its own.
    pub(super) fn fetch_whole(
        &mut self,
        index: usize,
        (bytes, dtype): (usize, DType),
        own: &mut Option<Buffer>,
        wait: Wait<'_>,
    ) -> Result<Lent> {
        if let Some(found) = self.lists.downloads.in_place(index, self.queue, wait, dtype)? {
            return Ok(found);
        }
        let buffer = own.insert(self.fetch_buffer(index, bytes, wait)?);
        Ok(Lent::of(Array::of(buffer, dtype)))
    }

    /// The address of a plain array on the device with a value of a key.
    pub(super) fn value(&mut self, slot: &Slot, value: &Lent) -> Result<u64> {
        let bytes = slot.bytes();
        if value.memory() == Memory::Host {
            let address = self.span(bytes)?;
            if bytes > piece_bytes() && value.is_plain(slot.dtype) {
                let (device, direct) = (self.queue.device, &mut self.lists.direct);
                if !(self.lends && direct.add_upload(device, value, bytes, address)) {
                    let from = Lent::plain(value.data(), DType::U8).array();
                    self.upload(from, bytes, &[address])?;
                }
                return Ok(address);
            }
            let (room, team) = (self.host_room(bytes)?, self.team);
            let to = self.lent(&room, slot.dtype).array();
            with_default_floats(|| team.gather_value(slot, value, to))?;
            self.upload_room(&room, bytes, &[address])?;
            return Ok(address);
        }
        let address = value.data().addr() as u64;
        if !self.is_own(value.memory()) {
            let own = self.span(bytes)?;
            let peer = self.peer(value.memory());
            peer.map_or(Ok(()), |peer| peer.receive(slot, own, value))?;
            return Ok(own);
        }
        if value.is_plain(slot.dtype) {
            return Ok(address);
        }
        let to = self.span(bytes)?;
        let dtypes = (value.dtype(), slot.dtype);
        let from = (address, value.strides());
        self.jobs.copy(Stage::Gather, dtypes, &slot.shape, from, (to, None))?;
        Ok(to)
    }

    /// The address of a plain array on the device with the sum of a key's values.
    pub(super) fn sum(&mut self, slot: &Slot, values: &[Lent]) -> Result<u64> {
        let inputs = values.iter().map(|it| self.value(slot, it));
        let inputs = inputs.collect::<Result<SmallVec<[u64; 8]>>>()?;
        if let [only] = inputs[..] {
            return Ok(only);
        }
        let sum = self.span(slot.bytes())?;
        self.jobs.sum(slot.dtype, slot.count, &inputs, &[sum])?;
        Ok(sum)
    }

    /// Copies a plain array of a key to an out of other strides or another float type.
    pub(super) fn scatter(&mut self, slot: &Slot, from: u64, out: &Lent) -> Result<()> {
        let dtypes = (slot.dtype, out.dtype());
        let to = (out.data().addr() as u64, out.strides());
        self.jobs.copy(Stage::Scatter, dtypes, &slot.shape, (from, None), to)
    }

    /// Whether there is nothing to queue.
    pub(super) fn is_empty(&self) -> bool {
        let StagedLists { uploads, downloads, direct, .. } = &self.lists;
        let no_pieces = uploads.is_empty() && !uploads.has_begun() && downloads.is_empty();
        no_pieces && direct.is_empty() && self.jobs.is_empty() && self.peers.is_empty()
    }

    /// Takes all memory and loads all kernels, so that queueing fails with the device only. No job
    /// is added after it.
    pub(super) fn prepare(&mut self) -> Result<()> {
        let CallQueue { device, stream, .. } = self.queue;
        self.lists.downloads.prepare(device)?;
        self.jobs.prepare(device, stream)?;
        self.peers.iter_mut().try_for_each(PeerStaging::prepare)
    }

    /// Queues all of it: copies to the device, one table with its launches, copies from the device:
    /// of these the first pieces, and the others while they are fetched. Returns the mark behind
    /// it. It has been prepared.
    pub(super) fn queue(&mut self) -> Result<Mark> {
        let CallQueue { device, stream, .. } = self.queue;
        self.is_running = true;
        self.peers.iter_mut().try_for_each(|peer| peer.begin(stream))?;
        let StagedLists { memory, uploads, downloads, direct } = &mut self.lists;
        uploads.queue(self.queue)?;
        direct.queue_uploads(device, stream)?;
        self.peers.iter().try_for_each(|peer| peer.copy_here(self.queue))?;
        self.jobs.queue(device, stream)?;
        downloads.queue(self.queue)?;
        direct.queue_downloads(device, stream)?;
        self.peers.iter().try_for_each(|peer| peer.copy_there(self.queue))?;
        let mark = Mark::record(device, stream)?;
        if downloads.is_queued() {
            memory.give(&mark, stream);
            self.is_running = false;
        }
        self.jobs.finish(device, &mark, stream);
        uploads.finish(&mark);
        downloads.finish(&mark);
        self.peers.iter_mut().try_for_each(|peer| peer.end(&mark))?;
        Ok(mark)
    }
}
