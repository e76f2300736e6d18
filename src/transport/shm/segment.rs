//! Memory of a file without a name, which another process of the same user can map too. The system
//! takes it back when nobody has it any more, however they end.
#![allow(unsafe_code, reason = "calls of the system, and memory that two processes share")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const NAME: &std::ffi::CStr = c"kvstore";
const LINK: &str = "/memfd:kvstore";
/// So that it can neither grow nor shrink: nobody who reads it can be made to read what is not there.
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
/// What both sides say to each other is in front of the bytes.
const FRONT: usize = 8192;
/// Pieces that may wait for the receiver.
pub(super) const QUEUE: usize = 256;
/// Larger ones are not ours.
const MOST: usize = 64 << 20;

/// Which segment: chance, so that nothing else is taken for it.
pub(super) type SegmentToken = [u64; 2];

pub(super) struct Segment {
    front: NonNull<Front>,
    /// Bytes behind the front.
    bytes: usize,
    file: OwnedFd,
}

/// What the two sides say to each other, each on a cache line of its own.
#[repr(C)]
struct Front {
    token: [AtomicU64; 2],
    /// Pieces that were written: the sender's.
    head: CacheLine,
    /// Those that have been read: the receiver's.
    tail: CacheLine,
    /// Whether somebody reads it, as [`taken`] has it: the receiver's.
    taken: CacheLine,
    /// Both sides': 1 while the receiver sleeps.
    bell: Bell,
    /// Where the pieces are: the sender's.
    queue: RingQueue,
}

#[repr(C, align(4096))]
struct RingQueue([RingEntry; QUEUE]);

/// A piece: where in the ring it begins, and its bytes.
#[repr(C)]
pub(super) struct RingEntry {
    pub(super) at: AtomicU64,
    pub(super) len: AtomicU64,
}

const _: () = assert!(size_of::<Front>() == FRONT);

#[repr(C, align(128))]
struct CacheLine(AtomicU64);

#[repr(C, align(128))]
struct Bell(AtomicU32);

/// Whether somebody reads a segment.
pub(super) mod taken {
    pub(in super::super) const NOT_YET: u64 = 0;
    pub(in super::super) const YES: u64 = 1;
    pub(in super::super) const NO_MORE: u64 = 2;
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

// SAFETY: a place in memory, like an `Arc`; its words are atomic, and its bytes belong to one side
// at a time.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// A new one for so many bytes, of which none takes memory before it is used.
    pub(super) fn create(bytes: usize, token: SegmentToken) -> io::Result<Self> {
        // SAFETY: a name that ends in 0.
        let file = unsafe {
            libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
        };
        let file = owned(file)?;
        let size = i64::try_from(FRONT + bytes).map_err(io::Error::other)?;
        // SAFETY: a file of ours.
        done(unsafe { libc::ftruncate(file.as_raw_fd(), size) })?;
        // SAFETY: as above.
        done(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
        let this = Self::map(file, bytes)?;
        for (place, word) in this.front().token.iter().zip(token) {
            place.store(word, Ordering::Relaxed);
        }
        Ok(this)
    }

    /// That of another process, if it is one and has this token.
    pub(super) fn open(pid: u32, fd: u32, bytes: usize, token: SegmentToken) -> io::Result<Self> {
        let no = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let path = format!("/proc/{pid}/fd/{fd}");
        if !std::fs::read_link(&path)?.as_os_str().to_string_lossy().starts_with(LINK) {
            return Err(no("it is no segment"));
        }
        let flags = libc::O_NONBLOCK | libc::O_NOCTTY;
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
        // SAFETY: an open file. Only those of this kind have seals at all.
        let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
        if seals & SEALS != SEALS || seals < 0 {
            return Err(no("it could change its size"));
        }
        if bytes == 0 || bytes > MOST || File::metadata(&file)?.len() != (FRONT + bytes) as u64 {
            return Err(no("it has another size"));
        }
        let this = Self::map(file.into(), bytes)?;
        let found = this.front().token.each_ref().map(|word| word.load(Ordering::Relaxed));
        if found == token { Ok(this) } else { Err(no("it is another one")) }
    }

    fn map(file: OwnedFd, bytes: usize) -> io::Result<Self> {
        let (access, all) = (libc::PROT_READ | libc::PROT_WRITE, FRONT + bytes);
        // SAFETY: fresh memory anywhere, of a file that has this size.
        let start = unsafe {
            libc::mmap(std::ptr::null_mut(), all, access, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let front = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { front, bytes, file })
    }

    fn front(&self) -> &Front {
        // SAFETY: mapped, as long as this lives; all of it is atomic words, and zero is one.
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

    /// Where a piece lies that comes behind so many others.
    pub(super) fn entry(&self, number: u64) -> &RingEntry {
        let at = usize::try_from(number % QUEUE as u64).unwrap_or_default();
        &self.front().queue.0[at]
    }

    /// What was written before this is for the receiver, up to `head`; wakes it if it sleeps.
    pub(super) fn publish(&self, head: u64) {
        // Sequentially consistent, here and in `sleep`: either the receiver sees this, or we see that it
        // is about to sleep.
        self.head().store(head, Ordering::SeqCst);
        let bell = &self.front().bell.0;
        if bell.load(Ordering::SeqCst) == ASLEEP {
            self.wake();
        }
    }

    /// Wakes the receiver.
    pub(super) fn wake(&self) {
        let bell = &self.front().bell.0;
        if bell.swap(AWAKE, Ordering::SeqCst) == ASLEEP {
            futex(bell, libc::FUTEX_WAKE, 1, None);
        }
    }

    /// Sleeps until the sender wakes it, for so long at most, unless there is something behind `read` or
    /// `is_over` says that nobody is to sleep here any more. Whoever changes that calls `wake` afterwards.
    pub(super) fn sleep(&self, read: u64, most: Duration, is_over: impl FnOnce() -> bool) {
        let bell = &self.front().bell.0;
        bell.store(ASLEEP, Ordering::SeqCst);
        if self.head().load(Ordering::SeqCst) == read && !is_over() {
            futex(bell, libc::FUTEX_WAIT, ASLEEP, Some(most));
        }
        bell.store(AWAKE, Ordering::SeqCst);
    }

    /// How many bytes there are.
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    pub(super) fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Bytes that the sender has written and does not touch before they are said to be read.
    ///
    /// A sender that breaks this promise changes what is read, which the checksum of a frame finds
    /// after it has been copied; that is why nothing is believed before.
    ///
    /// # Panics
    /// They are not inside.
    pub(super) fn bytes(&self, at: usize, len: usize) -> &[u8] {
        let start = self.place(at, len);
        // SAFETY: inside of what is mapped; the sender leaves it alone.
        unsafe { std::slice::from_raw_parts(start, len) }
    }

    /// Where so many bytes are.
    fn place(&self, at: usize, len: usize) -> *mut u8 {
        assert!(at.checked_add(len).is_some_and(|end| end <= self.bytes), "inside of the segment");
        // SAFETY: behind the front, and inside as asked above.
        unsafe { self.front.as_ptr().cast::<u8>().add(FRONT + at) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: what `map` has mapped, which nobody uses any more.
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
    /// The receiver has read what was there, and nobody else has the place.
    pub(super) unsafe fn new(segment: std::sync::Arc<Segment>, at: usize, len: usize) -> Self {
        let _ = segment.place(at, len);
        Self { segment, at, len }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        let start = self.segment.place(self.at, self.len);
        // SAFETY: inside of what is mapped; the promise of `new`.
        unsafe { std::slice::from_raw_parts_mut(start, self.len) }
    }
}

/// A call of futex(2), for words that two processes share; whatever it says, its callers look again.
fn futex(word: &AtomicU32, operation: i32, value: u32, most: Option<Duration>) {
    let time = most.map(|most| libc::timespec {
        tv_sec: libc::time_t::try_from(most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: most.subsec_nanos().into(),
    });
    let time = time.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: a word that is mapped, and a time that lives, or none.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, value, time) };
}

fn owned(fd: RawFd) -> io::Result<OwnedFd> {
    done(fd)?;
    // SAFETY: a file that was just opened, and that nobody else has.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn done(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
