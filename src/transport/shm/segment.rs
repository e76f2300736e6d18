//! Memory of an anonymous file (memfd), which another process of the same user can map too. The system frees
//! it after its last process has ended, in whatever manner.
#![allow(unsafe_code, reason = "calls of the system, and memory that two processes share")]

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::transport::Piece;
use crate::transport::polling::SleepingReceiver;
use kvstore_checksum::CopySums;

const NAME: &std::ffi::CStr = c"kvstore";
/// Seals that fix the file's size: a process cannot make its peer read beyond the end.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// Size of the control words in front of the data, in bytes.
const FRONT: usize = 8192;
/// Maximum number of unread pieces.
pub(super) const QUEUE: usize = 256;
/// Maximum size of a segment in bytes; a sender of this library creates no larger one.
const MOST: usize = 64 << 20;

pub(super) struct Segment {
    front: NonNull<SegmentHeader>,
    /// Size of the data behind the control words, in bytes.
    bytes: usize,
    /// The file, for other processes; a process that has only mapped it needs none.
    file: Option<OwnedFd>,
}

/// Control words of sender and receiver, each on a cache line of its own.
#[repr(C)]
struct SegmentHeader {
    /// Number of pieces written; stored by the sender.
    head: CacheLine,
    /// Number of pieces read; stored by the receiver.
    tail: CacheLine,
    /// Whether a receiver reads the segment, as a value of [`taken`]; stored by the receiver.
    taken: CacheLine,
    /// Whether the receiver's thread sleeps, as a value of [`bell`]; stored by both sides.
    bell: Doorbell,
    /// Positions of the pieces; stored by the sender.
    queue: RingQueue,
}

#[repr(C, align(4096))]
struct RingQueue([RingEntry; QUEUE]);

/// Position of a piece: its offset in the ring, and its length.
#[repr(C)]
pub(super) struct RingEntry {
    pub(super) at: AtomicU64,
    pub(super) len: AtomicU64,
}

const _: () = assert!(size_of::<SegmentHeader>() == FRONT);

#[repr(C, align(128))]
struct CacheLine(AtomicU64);

#[repr(C, align(128))]
struct Doorbell(AtomicU32);

/// Whether a receiver reads a segment.
pub(super) mod taken {
    pub(in super::super) const NOT_YET: u64 = 0;
    pub(in super::super) const YES: u64 = 1;
    pub(in super::super) const NO_MORE: u64 = 2;
}

/// Whether the thread of the receiver sleeps.
mod bell {
    pub(super) const AWAKE: u32 = 0;
    /// A sender must wake it.
    pub(super) const ASLEEP: u32 = 1;
    /// A caller of the receiver reads in its place, so senders let it sleep.
    pub(super) const POLLED: u32 = 2;
}

// SAFETY: a reference to mapped memory, like an `Arc`; its words are atomic, and each byte belongs to one
// side at a time.
unsafe impl Send for Segment {}
// SAFETY: its words are atomic, and each byte belongs to one side at a time.
unsafe impl Sync for Segment {}

impl Segment {
    /// Creates a segment for this many bytes, of which none takes memory before its first use.
    pub(super) fn create(bytes: usize) -> io::Result<Self> {
        // SAFETY: the name ends in 0.
        let file = unsafe {
            libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        let file = owned(file)?;
        let size = i64::try_from(FRONT + bytes).map_err(io::Error::other)?;
        // SAFETY: an open file that this function owns.
        done(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        // SAFETY: an open file that this function owns; the seals are an integer.
        done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let mut this = Self::map(file.as_fd(), bytes)?;
        this.file = Some(file);
        Ok(this)
    }

    /// Maps the segment of another process, if the file is one of this size.
    pub(super) fn open(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let no = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let file = File::from(file);
        // SAFETY: an open file. Only files in memory have seals at all.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals & SEALS != SEALS || seals < 0 {
            return Err(no("it could change its size"));
        }
        if bytes == 0 || bytes > MOST || file.metadata()?.len() != (FRONT + bytes) as u64 {
            return Err(no("it has another size"));
        }
        Self::map(file.as_fd(), bytes)
    }

    fn map(file: BorrowedFd<'_>, bytes: usize) -> io::Result<Self> {
        let (access, all) = (libc::PROT_READ | libc::PROT_WRITE, FRONT + bytes);
        // SAFETY: maps new memory at any address, of a file that has this size.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), all, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let front = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { front, bytes, file: None })
    }

    fn front(&self) -> &SegmentHeader {
        // SAFETY: mapped as long as `self` lives; all of it is atomic words, for which zero is valid.
        unsafe { self.front.as_ref() }
    }

    pub(super) fn head(&self) -> &AtomicU64 {
        &self.front().head.0
    }

    pub(super) fn tail(&self) -> &AtomicU64 {
        &self.front().tail.0
    }

    pub(super) fn taken(&self) -> &AtomicU64 {
        &self.front().taken.0
    }

    /// Queue entry of the piece with this number.
    pub(super) fn entry(&self, number: u64) -> &RingEntry {
        let at = usize::try_from(number % QUEUE as u64).unwrap_or_default();
        &self.front().queue.0[at]
    }

    fn bell(&self) -> &AtomicU32 {
        &self.front().bell.0
    }

    /// Publishes the pieces before `head` to the receiver; true if its thread must be woken.
    #[must_use]
    pub(super) fn publish(&self, head: u64) -> bool {
        // Sequentially consistent, as all that concerns the bell: either the receiver sees `head`, or this
        // thread sees that the receiver is about to sleep.
        self.head().store(head, Ordering::SeqCst);
        self.must_wake()
    }

    /// Whether the receiver's thread sleeps and no caller of the receiver reads in its place.
    pub(super) fn must_wake(&self) -> bool {
        self.bell().load(Ordering::SeqCst) == bell::ASLEEP
    }

    /// Whether there are pieces that the receiver has not read.
    pub(super) fn has_unread(&self) -> bool {
        self.head().load(Ordering::SeqCst) != self.tail().load(Ordering::SeqCst)
    }

    /// Wakes the receiver's thread.
    pub(super) fn wake(&self) {
        if self.bell().swap(bell::AWAKE, Ordering::SeqCst) != bell::AWAKE {
            futex(self.bell(), libc::FUTEX_WAKE, 1, None);
        }
    }

    /// The thread sleeps until another one wakes it, for `most` at most. Returns at once if there is a piece
    /// behind `read`, or if `is_over` is true. A thread that changes either calls `wake` afterwards.
    pub(super) fn sleep(&self, read: u64, most: Duration, is_over: impl Fn() -> bool) {
        self.bell().store(bell::ASLEEP, Ordering::SeqCst);
        while self.head().load(Ordering::SeqCst) == read && !is_over() {
            let state = self.bell().load(Ordering::SeqCst);
            // A caller that begins or ends to poll meanwhile changes the state.
            if state == bell::AWAKE || !futex(self.bell(), libc::FUTEX_WAIT, state, Some(most)) {
                break;
            }
        }
        self.bell().store(bell::AWAKE, Ordering::SeqCst);
    }

    /// A caller of the receiver reads while the thread sleeps. Relaxed first: this is called at each look.
    pub(super) fn begin_polling(&self) {
        if self.bell().load(Ordering::Relaxed) == bell::ASLEEP {
            self.change_bell(bell::ASLEEP, bell::POLLED);
        }
    }

    /// The caller reads no more: the thread is woken for what it leaves, and for what comes.
    pub(super) fn end_polling(&self) {
        self.change_bell(bell::POLLED, bell::ASLEEP);
        self.wake_if_behind();
    }

    fn change_bell(&self, from: u32, to: u32) {
        // Another value is newer: the thread has woken, or another caller polls.
        let _ = self.bell().compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Size of the data, in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    /// The file of a segment that this process has created.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Bytes that the sender has written, and does not change before the receiver publishes them as read.
    ///
    /// A sender that breaks this promise changes bytes while they are copied. The checksum of a frame, computed
    /// on its copy, detects that; no field is trusted before.
    ///
    /// # Panics
    /// The range is not inside the segment.
    pub(super) fn piece(&self, at: usize, len: usize) -> Piece<'_> {
        let start = self.place(at, len);
        // SAFETY: inside the mapping, which lives as long as `self`. Only the sender writes it.
        unsafe { Piece::shared(start, len) }
    }

    /// Writes the front of the data, which no other thread uses.
    #[cfg(any(fuzzing, test))]
    pub(super) fn write(self: &std::sync::Arc<Self>, bytes: &[u8]) {
        // SAFETY: no other range is in use.
        unsafe { WriteRange::new(std::sync::Arc::clone(self), 0, bytes.len()) }.write(0, bytes);
    }

    /// Start of a range of the data.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "inside of the segment");
        // SAFETY: behind the control words, and inside the mapping by the assertion.
        unsafe { self.front.as_ptr().cast::<u8>().add(FRONT + at) }
    }
}

impl SleepingReceiver for Segment {
    fn wake_if_behind(&self) {
        if self.must_wake() && self.has_unread() {
            self.wake();
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; no reference to it outlives `self`.
        unsafe { libc::munmap(self.front.as_ptr().cast(), FRONT + self.bytes) };
    }
}

/// Bytes of a segment that the sender is about to write.
pub(super) struct WriteRange {
    segment: std::sync::Arc<Segment>,
    at: usize,
    len: usize,
}

impl WriteRange {
    /// # Safety
    /// The receiver has read what was there, and no other range in use overlaps this one.
    pub(super) unsafe fn new(segment: std::sync::Arc<Segment>, at: usize, len: usize) -> Self {
        let _ = segment.place(at, len);
        Self { segment, at, len }
    }

    /// Copies bytes to an offset of the range.
    ///
    /// # Panics
    /// They are not inside the range.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        let start = self.place(at, bytes.len());
        // SAFETY: inside the mapping, and exclusive in this process by the promise of `new`. A receiver that
        // writes there changes only what it reads itself.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
    }

    /// Copies bytes to an offset of the range, and continues their sums.
    ///
    /// # Panics
    /// They are not inside the range.
    pub(super) fn write_summed(&mut self, at: usize, bytes: &[u8], sums: &mut CopySums) {
        let start = self.place(at, bytes.len());
        // SAFETY: as in `write`.
        unsafe { kvstore_checksum::copy(bytes.as_ptr(), start, bytes.len(), sums) };
    }

    fn place(&self, at: usize, len: usize) -> *mut u8 {
        let fits = at.checked_add(len).is_some_and(|end| end <= self.len);
        assert!(fits, "inside of the range");
        self.segment.place(self.at + at, len)
    }
}

/// A call of futex(2) on a word that two processes share. True if a thread that was to wait has found another
/// value.
fn futex(word: &AtomicU32, operation: i32, value: u32, most: Option<Duration>) -> bool {
    let time = most.map(|most| libc::timespec {
        tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: most.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a word that is mapped, and a timeout that outlives the call, or null.
    let result = unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, time) };
    result < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN)
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    done(fd)?;
    // SAFETY: a descriptor that was just opened, and that has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
