//! Operating system and processor state per process and per thread: forks, processors, pages, the
//! floating-point control state; and prefetching. Also called: platform layer.
#![allow(unsafe_code, reason = "calls of the system, and instructions without a safe form")]

pub(crate) mod caches;
#[cfg(feature = "dist")]
pub(crate) mod descriptors;
pub(crate) mod kept;
pub(crate) mod spin;
pub(crate) mod sync;

use std::hint::black_box;
#[cfg(feature = "dist")]
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Once, OnceLock};
#[cfg(feature = "dist")]
use std::thread::available_parallelism;

/// Number of forks between the first process that used the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Fork handler of the thread pool, once there is a pool.
static AFTER_FORK: OnceLock<fn()> = OnceLock::new();

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    if let Some(forget) = AFTER_FORK.get() {
        forget();
    }
}

/// Makes the child of a fork call `forget`, which only touches atomics. Only the first call counts.
pub(crate) fn after_fork(forget: fn()) {
    let _ = AFTER_FORK.set(forget);
}

/// Fork generation of this process; a store with another generation is the parent's.
///
/// Cheaper than `getpid()`, which is a system call.
pub(crate) fn fork_generation() -> u32 {
    GENERATION.load(Ordering::SeqCst)
}

/// Makes forks from now on count in [`fork_generation`].
pub(crate) fn watch_forks() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: `in_child` only touches atomics, one of them a cell that is set once, which is allowed in a fork handler. It fails
        // only without memory, and forks are then not noticed.
        #[cfg(not(miri))]
        unsafe {
            libc::pthread_atfork(None, None, Some(in_child))
        };
    });
}

/// Reads what has arrived on a socket, without waiting whatever its mode.
#[cfg(feature = "dist")]
pub(crate) fn receive_now(socket: RawFd, room: &mut [u8]) -> std::io::Result<usize> {
    let (start, len) = (room.as_mut_ptr().cast(), room.len());
    // SAFETY: the same memory. The system writes bytes with values.
    receive_into(socket, unsafe { std::slice::from_raw_parts_mut(start, len) })
}

/// As [`receive_now`], to memory without a value: that of the bytes whose number is returned is written.
#[cfg(feature = "dist")]
pub(crate) fn receive_into(
    socket: RawFd,
    room: &mut [std::mem::MaybeUninit<u8>],
) -> std::io::Result<usize> {
    // SAFETY: the memory is as long as the call is told.
    let count =
        unsafe { libc::recv(socket, room.as_mut_ptr().cast(), room.len(), libc::MSG_DONTWAIT) };
    usize::try_from(count).map_err(|_| std::io::Error::last_os_error())
}

/// The round trip of a TCP connection, as far as the system has measured it. Where it had to repeat the first
/// packet and has no measure, this is the time after which it does.
#[cfg(all(feature = "dist", target_os = "linux"))]
pub(crate) fn round_trip(socket: RawFd) -> Option<std::time::Duration> {
    const REPEATED: std::time::Duration = std::time::Duration::from_secs(1);
    let mut info = std::mem::MaybeUninit::<libc::tcp_info>::zeroed();
    let mut size = libc::socklen_t::try_from(size_of::<libc::tcp_info>()).ok()?;
    // SAFETY: the memory is as long as the call is told; any bytes are a `tcp_info`.
    let (result, info) = unsafe {
        let at = info.as_mut_ptr().cast();
        let result = libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, at, &raw mut size);
        (result, info.assume_init())
    };
    let measured = std::time::Duration::from_micros(info.tcpi_rtt.into());
    let is_unknown = measured.is_zero() && info.tcpi_total_retrans > 0;
    (result == 0).then_some(if is_unknown { REPEATED } else { measured })
}

/// The round trip of a TCP connection, which is not asked for on this system.
#[cfg(all(feature = "dist", not(target_os = "linux")))]
pub(crate) fn round_trip(_socket: RawFd) -> Option<std::time::Duration> {
    None
}

/// Number of processors of this process, as far as is known.
#[cfg(feature = "dist")]
pub(crate) fn processors() -> usize {
    static PROCESSORS: OnceLock<usize> = OnceLock::new();
    *PROCESSORS.get_or_init(|| available_parallelism().map_or(1, usize::from))
}

/// Whether processors are so few that the threads of a job on this machine wait for each other.
/// Work handed to another thread is then done later, not concurrently. The processor count from
/// which that ends is not known yet.
#[cfg(feature = "dist")]
pub(crate) fn has_few_processors() -> bool {
    processors() <= 4
}

/// Effective user id of this process.
#[cfg(feature = "dist")]
pub(crate) fn user() -> u32 {
    // SAFETY: touches no memory of this process, and does not fail.
    unsafe { libc::geteuid() }
}

/// Maximum number of open files of this process, if the system reports it.
#[cfg(feature = "dist")]
pub(crate) fn file_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (result == 0).then_some(limit.rlim_cur)
}

/// Name of this machine, in letters, digits, dots and dashes.
#[cfg(feature = "dist")]
pub(crate) fn host_name() -> String {
    let mut name = [0u8; 256];
    // SAFETY: room for the name, of which one byte less may be written.
    unsafe { libc::gethostname(name.as_mut_ptr().cast(), name.len() - 1) };
    let text = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let plain = |&byte: &u8| byte.is_ascii_alphanumeric() || b".-".contains(&byte);
    text.iter().map(|byte| if plain(byte) { char::from(*byte) } else { '-' }).collect()
}

/// An anonymous file that is freed with its last descriptor.
#[cfg(all(feature = "dist", any(fuzzing, test)))]
pub(crate) fn memory_file(content: &[u8]) -> std::io::Result<std::fs::File> {
    use std::io::Write;
    use std::os::fd::FromRawFd;

    // SAFETY: a name that ends with a zero.
    let number = unsafe { libc::memfd_create(c"kvstore".as_ptr(), libc::MFD_CLOEXEC) };
    if number < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor was just created, and has no other owner.
    let mut file = unsafe { std::fs::File::from_raw_fd(number) };
    file.write_all(content)?;
    Ok(file)
}

/// Sizes are rounded up to this, a multiple of every page size.
#[cfg(not(miri))]
const ROUND: usize = 64 << 10;

/// Zeroed memory without physical pages until written, aligned to a power of two from 64 KiB on;
/// None if there is none. Free it with [`unmap_pages`].
#[cfg(not(miri))]
pub(crate) fn map_pages(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let bytes = bytes.checked_next_multiple_of(ROUND)?;
    // Maps more; the parts before and after the aligned range are unmapped.
    let more = bytes.checked_add(align)?;
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: asks for fresh memory anywhere.
    let all = unsafe { libc::mmap(std::ptr::null_mut(), more, access, kind, -1, 0) };
    if all == libc::MAP_FAILED {
        return None;
    }
    let before = all.addr().wrapping_neg() % align;
    let start = all.cast::<u8>().wrapping_add(before);
    // SAFETY: parts of the new mapping, to which no pointer exists. An empty part is refused, which
    // changes nothing.
    unsafe {
        libc::munmap(all, before);
        libc::munmap(start.wrapping_add(bytes).cast(), more - bytes - before);
    }
    NonNull::new(start)
}

/// Unmaps memory.
///
/// # Safety
/// It came from [`map_pages`] with this size and alignment, and no other code uses it.
#[cfg(not(miri))]
pub(crate) unsafe fn unmap_pages(start: NonNull<u8>, bytes: usize, _: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        libc::munmap(start.as_ptr().cast(), bytes.next_multiple_of(ROUND));
    }
}

/// Heap replacement of [`map_pages`] for systems without pages.
#[cfg(miri)]
pub(crate) fn map_pages(bytes: usize, align: usize) -> Option<NonNull<u8>> {
    let layout = std::alloc::Layout::from_size_align(bytes, align).ok()?;
    // SAFETY: callers ask for large sizes only.
    NonNull::new(unsafe { std::alloc::alloc_zeroed(layout) })
}

/// # Safety
/// As for the [`unmap_pages`] of systems with pages.
#[cfg(miri)]
pub(crate) unsafe fn unmap_pages(start: NonNull<u8>, bytes: usize, align: usize) {
    let layout = std::alloc::Layout::from_size_align(bytes, align);
    // SAFETY: the caller's promise.
    layout.into_iter().for_each(|it| unsafe { std::alloc::dealloc(start.as_ptr(), it) });
}

/// Asks for large pages under memory of our own that is still untouched. A hint: without them all
/// works as well, only slower.
pub(crate) fn prefer_huge_pages(start: NonNull<u8>, bytes: usize) {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: advice about a range that we have allocated; it changes no content.
    unsafe {
        libc::madvise(start.as_ptr().cast(), bytes, libc::MADV_HUGEPAGE);
    }
    #[cfg(not(all(target_os = "linux", not(miri))))]
    let _ = (start, bytes);
}

/// Prefetches the cache line at an address, and those after it, as [`prefetch`].
#[inline]
pub(crate) fn prefetch_lines<const LINES: usize>(at: *const u8) {
    (0..LINES).for_each(|line| prefetch(at.wrapping_add(64 * line)));
}

/// Prefetches the cache line at an address, which need not be ours.
#[inline]
pub(crate) fn prefetch(at: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: part of the base instruction set; never faults, and changes nothing but the caches.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast());
    }
    #[cfg(all(target_arch = "aarch64", not(miri)))]
    // SAFETY: a prefetch never faults, and changes nothing but the caches.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = at;
}

/// The default floating-point environment for as long as the value lives: round to nearest even,
/// denormals kept, exceptions masked. A host built with -ffast-math must not change our bits.
pub(crate) struct DefaultFloats {
    host: fp::Control,
}

impl DefaultFloats {
    pub(crate) fn enter() -> Self {
        let host = fp::read();
        if !fp::is_default(host) {
            fp::write(fp::DEFAULT);
        }
        Self { host }
    }
}

/// Computes in the default floating-point environment. The compiler does not know that the environment matters to
/// arithmetic: it can move none of it out of here, neither before nor behind.
#[inline]
pub(crate) fn with_default_floats<T>(compute: impl FnOnce() -> T) -> T {
    let _floats = DefaultFloats::enter();
    black_box(black_box(compute)())
}

impl Drop for DefaultFloats {
    fn drop(&mut self) {
        if !fp::is_default(self.host) {
            fp::write(self.host);
        }
    }
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fp {
    use std::arch::asm;

    pub(super) type Control = u32;
    /// All exceptions masked, round to nearest, neither flush to zero nor denormals are zero.
    pub(super) const DEFAULT: Control = 0x1F80;
    /// The sticky exception flags, which do not affect how results are computed.
    const FLAGS: Control = 0x3F;

    pub(super) fn is_default(control: Control) -> bool {
        control & !FLAGS == DEFAULT
    }

    pub(super) fn read() -> Control {
        let mut control: Control = 0;
        // SAFETY: stores MXCSR to a place of our own.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &raw mut control, options(nostack, preserves_flags));
        };
        control
    }

    pub(super) fn write(control: Control) {
        // SAFETY: loads MXCSR with a value that is valid: the default, or one read before.
        unsafe {
            asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, preserves_flags));
        }
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod fp {
    use std::arch::asm;

    pub(super) type Control = u64;
    /// Round to nearest, no flush to zero, no trapped exceptions.
    pub(super) const DEFAULT: Control = 0;

    pub(super) fn is_default(control: Control) -> bool {
        control == DEFAULT
    }

    pub(super) fn read() -> Control {
        let control: Control;
        // SAFETY: reads a register.
        unsafe { asm!("mrs {}, fpcr", out(reg) control, options(nostack, nomem)) };
        control
    }

    pub(super) fn write(control: Control) {
        // SAFETY: writes a value that is valid: the default, or one read before.
        unsafe { asm!("msr fpcr, {}", in(reg) control, options(nostack)) };
    }
}

#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod fp {
    pub(super) type Control = ();
    pub(super) const DEFAULT: Control = ();

    pub(super) fn is_default((): Control) -> bool {
        true
    }

    pub(super) fn read() -> Control {}

    pub(super) fn write((): Control) {}
}
