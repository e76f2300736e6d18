//! Copies that compute checksums on the way: the multiplications are made while the processor waits for memory.
#![allow(unsafe_code, reason = "memory that another process may write")]

use std::sync::atomic::{Ordering, compiler_fence};

use crate::{append, crc64};

/// Chunk size of a copy whose sums follow it, in bytes: they are computed while the chunk is in the cache.
const CHUNK: usize = 16 << 10;

/// Sums of the bytes that have been copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopySums {
    /// CRC-32C, as [`crate::append`] continues it.
    pub crc32c: u32,
    /// CRC-64/NVME, as [`crc64::append`] continues it; None if it is not wanted.
    pub crc64: Option<u64>,
}

impl CopySums {
    fn append(&mut self, bytes: &[u8]) {
        self.crc32c = append(self.crc32c, bytes);
        self.crc64 = self.crc64.map(|sum| crc64::append(sum, bytes));
    }
}

/// Copies bytes, and continues the sums with them.
///
/// # Panics
/// The lengths differ.
pub fn copy_slice(from: &[u8], to: &mut [u8], sums: &mut CopySums) {
    assert_eq!(from.len(), to.len(), "a copy of all bytes");
    // SAFETY: as many bytes, and a unique reference overlaps no other one.
    unsafe { copy(from.as_ptr(), to.as_mut_ptr(), from.len(), sums) };
}

/// Copies bytes and continues the sums with them. The sums are those of the copy, even if another process writes
/// the source meanwhile.
///
/// # Safety
/// `len` bytes from `from` are mapped, and no thread of this process writes them; `len` bytes from `to` may be
/// written, and do not overlap those.
pub unsafe fn copy(from: *const u8, to: *mut u8, len: usize, sums: &mut CopySums) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller's promise.
    let done = unsafe { wide::copy(from, to, len, sums) };
    #[cfg(not(target_arch = "x86_64"))]
    let done = 0;
    for at in (done..len).step_by(CHUNK) {
        let part = CHUNK.min(len - at);
        // SAFETY: the caller's promise; the copy has just been written.
        let copied = unsafe {
            std::ptr::copy_nonoverlapping(from.add(at), to.add(at), part);
            // Without the fence the compiler might read the source again in place of the copy.
            compiler_fence(Ordering::SeqCst);
            std::slice::from_raw_parts(to.add(at), part)
        };
        sums.append(copied);
    }
}

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::asm;
    use std::arch::x86_64::{__m512i, _mm512_loadu_si512, _mm512_storeu_si512};

    use super::CopySums;
    use crate::folding::{self, BY_STEP, BY_WIDE, STEP, WIDE, WideFold};
    use crate::folding64::{self, BY_STEP as BY_WIDE_64, BY_WIDE_STEP as BY_STEP_64};

    /// Minimum bytes: for shorter copies the ends of the sums take longer than a second pass.
    const LEAST: usize = 8 * STEP;

    /// Copies whole steps, if there are instructions for it; gives the number of bytes.
    ///
    /// # Safety
    /// See [`super::copy`].
    pub(super) unsafe fn copy(
        from: *const u8,
        to: *mut u8,
        len: usize,
        sums: &mut CopySums,
    ) -> usize {
        if len < LEAST || !folding::is_there() {
            return 0;
        }
        let steps = len / STEP;
        // SAFETY: the caller's promise; the processor has the instructions.
        unsafe {
            match sums.crc64 {
                None => copy_steps::<false>((from, to), steps, sums),
                Some(_) => copy_steps::<true>((from, to), steps, sums),
            }
        }
        steps * STEP
    }

    /// Copies a step at least.
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.2")]
    unsafe fn copy_steps<const DIGESTS: bool>(
        (from, to): (*const u8, *mut u8),
        steps: usize,
        sums: &mut CopySums,
    ) {
        // SAFETY: the caller's promise.
        let step = |at: usize| unsafe { copy_step(from.add(at * STEP), to.add(at * STEP)) };
        let first = step(0);
        let mut sum = WideFold::new(folding::start(sums.crc32c), first, BY_STEP);
        let so_far = sums.crc64.unwrap_or_default();
        let mut digest = WideFold::new(folding64::start(so_far), first, BY_STEP_64);
        for at in 1..steps {
            let next = step(at);
            sum.add(next);
            if DIGESTS {
                digest.add(next);
            }
        }
        sums.crc32c = folding::end(sum.end(BY_WIDE));
        if DIGESTS {
            sums.crc64 = Some(folding64::end(digest.end(BY_WIDE_64)));
        }
    }

    /// Copies a step; gives what was copied.
    #[target_feature(enable = "avx512f")]
    unsafe fn copy_step(from: *const u8, to: *mut u8) -> [__m512i; 4] {
        // SAFETY: the caller's promise, at offsets inside of the step.
        let register = |at: usize| unsafe {
            let mut register = _mm512_loadu_si512(from.add(at * WIDE).cast());
            // The value is opaque from here on, so that the compiler does not read the source a second time.
            asm!("/* {0} */", inout(zmm_reg) register, options(pure, nomem, nostack, preserves_flags));
            _mm512_storeu_si512(to.add(at * WIDE).cast(), register);
            register
        };
        [register(0), register(1), register(2), register(3)]
    }
}

#[cfg(test)]
mod tests {
    use super::{CopySums, copy_slice};
    use crate::{append, crc64};

    #[test]
    fn copies_of_any_length_have_the_sums_of_their_bytes() {
        let bytes: Vec<u8> = (0..70_000_u32).map(|at| (at * 31 % 251) as u8).collect();
        let lengths = (0..5_000).step_by(61).chain([16_383, 16_384, 65_536, 69_999]);
        for (len, digests) in lengths.flat_map(|len| [(len, false), (len, true)]) {
            let source = &bytes[1..=len];
            let before = CopySums { crc32c: 7, crc64: digests.then_some(9) };
            let (mut sums, mut copied) = (before, vec![0; len + 2]);
            copy_slice(source, &mut copied[1..=len], &mut sums);
            assert_eq!(copied[1..=len], *source, "{len} bytes");
            assert_eq!((copied[0], copied[len + 1]), (0, 0), "{len} bytes and no more");
            assert_eq!(sums.crc32c, append(before.crc32c, source), "{len} bytes");
            let digest = before.crc64.map(|sum| crc64::append(sum, source));
            assert_eq!(sums.crc64, digest, "{len} bytes");
        }
    }

    #[test]
    fn a_copy_in_parts_continues_the_sums() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * 7 % 253) as u8).collect();
        let mut whole = CopySums { crc32c: 0, crc64: Some(0) };
        let (mut parts, mut copied) = (whole, vec![0; bytes.len()]);
        let (first, second) = bytes.split_at(9_001);
        copy_slice(&bytes, &mut copied, &mut whole);
        copy_slice(first, &mut copied[..9_001], &mut parts);
        copy_slice(second, &mut copied[9_001..], &mut parts);
        assert_eq!((parts, copied), (whole, bytes));
    }
}
