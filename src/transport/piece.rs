//! Pieces of deliveries, and the memory that they are copied to. A piece may lie in memory that another process
//! writes at any time, and the memory has no value before the copy, so there is no reference to either.
#![allow(unsafe_code, reason = "memory that another process writes, and memory without a value")]

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::sync::atomic::{Ordering, compiler_fence};

use kvstore_checksum::CopySums;

/// A part of a delivery. It is read only by copying it.
#[derive(Clone, Copy)]
pub(crate) struct Piece<'a> {
    start: *const u8,
    len: usize,
    life: PhantomData<&'a [u8]>,
}

impl Piece<'_> {
    /// A part of memory that another process may write.
    ///
    /// # Safety
    /// `len` bytes from `start` are mapped for `'a`, and no thread of this process writes them.
    pub(super) unsafe fn shared(start: *const u8, len: usize) -> Self {
        Self { start, len, life: PhantomData }
    }

    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The first `at` bytes, and the rest.
    ///
    /// # Panics
    /// There are fewer bytes.
    pub(crate) fn split_at(self, at: usize) -> (Self, Self) {
        assert!(at <= self.len, "a split inside of the piece");
        let (start, len) = (self.start.wrapping_add(at), self.len - at);
        (Self { len: at, ..self }, Self { start, len, ..self })
    }

    fn copy_to(self, out: &mut [MaybeUninit<u8>]) {
        assert_eq!(out.len(), self.len, "a copy of the piece");
        // SAFETY: `out` is memory of this process alone, and as long as the piece, which is mapped. If another
        // process writes the piece meanwhile, the copy has any bytes: its reader checks them.
        unsafe { std::ptr::copy_nonoverlapping(self.start, out.as_mut_ptr().cast(), self.len) };
        // Without the fence the compiler might read the piece again in place of the copy, after a check.
        compiler_fence(Ordering::SeqCst);
    }

    fn copy_summed_to(self, out: &mut [MaybeUninit<u8>], sums: &mut CopySums) {
        assert_eq!(out.len(), self.len, "a copy of the piece");
        // SAFETY: as in `copy_to`.
        unsafe { kvstore_checksum::copy(self.start, out.as_mut_ptr().cast(), self.len, sums) };
    }

    /// A copy of the bytes.
    #[cfg(any(fuzzing, test))]
    pub(crate) fn to_vec(self) -> Vec<u8> {
        let mut bytes = vec![0; self.len];
        Unwritten::from(&mut bytes[..]).put(self);
        bytes
    }
}

impl<'a> From<&'a [u8]> for Piece<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        Self { start: bytes.as_ptr(), len: bytes.len(), life: PhantomData }
    }
}

/// Memory that is written from its front, and has no value before. Also called: write cursor, uninitialised
/// buffer.
pub(crate) struct Unwritten<'a> {
    memory: &'a mut [MaybeUninit<u8>],
    /// Number of bytes written.
    len: usize,
}

impl<'a> Unwritten<'a> {
    pub(crate) fn new(memory: &'a mut [MaybeUninit<u8>]) -> Self {
        Self { memory, len: 0 }
    }

    /// Appends a copy of a piece.
    ///
    /// # Panics
    /// There is less space.
    pub(crate) fn put(&mut self, piece: Piece<'_>) {
        piece.copy_to(&mut self.memory[self.len..][..piece.len]);
        self.len += piece.len;
    }

    /// Appends a copy of a piece, and continues its sums.
    ///
    /// # Panics
    /// There is less space.
    pub(crate) fn put_summed(&mut self, piece: Piece<'_>, sums: &mut CopySums) {
        piece.copy_summed_to(&mut self.memory[self.len..][..piece.len], sums);
        self.len += piece.len;
    }

    /// Writes zeros to the rest, and returns it for other content.
    pub(crate) fn zeroed(&mut self) -> &mut [u8] {
        let rest = &mut self.memory[self.len..];
        self.len += rest.len();
        rest.fill(MaybeUninit::new(0));
        // SAFETY: all of these bytes were written just now.
        unsafe { std::slice::from_raw_parts_mut(rest.as_mut_ptr().cast(), rest.len()) }
    }
}

impl<'a> From<&'a mut [u8]> for Unwritten<'a> {
    fn from(memory: &'a mut [u8]) -> Self {
        let (start, len) = (memory.as_mut_ptr().cast(), memory.len());
        // SAFETY: the same memory. Through it only bytes with a value are written.
        Self::new(unsafe { std::slice::from_raw_parts_mut(start, len) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_in_parts_has_the_bytes_of_the_whole() {
        let bytes: Vec<u8> = (0..=255).collect();
        for at in [0, 1, 100, 255, 256] {
            let (front, rest) = Piece::from(&bytes[..]).split_at(at);
            assert_eq!((front.len(), rest.len()), (at, 256 - at));
            assert_eq!([front.to_vec(), rest.to_vec()].concat(), bytes);
        }
    }

    #[test]
    fn memory_without_a_value_is_written_once_from_its_front() {
        let mut memory = [const { MaybeUninit::uninit() }; 10];
        let mut room = Unwritten::new(&mut memory);
        room.put(Piece::from(&b"abc"[..]));
        room.put(Piece::from(&b""[..]));
        let mut sums = CopySums::default();
        room.put_summed(Piece::from(&b"defg"[..]), &mut sums);
        assert_eq!(sums.crc32c, kvstore_checksum::crc32c(b"defg"));
        let rest = room.zeroed();
        assert_eq!(rest, [0; 3]);
        rest[1] = 9;
        assert!(room.zeroed().is_empty());
        // SAFETY: `zeroed` has written the rest.
        let written = memory.map(|byte| unsafe { byte.assume_init() });
        assert_eq!(written, *b"abcdefg\0\x09\0");
    }

    #[test]
    #[should_panic(expected = "range end index 4 out of range")]
    fn a_piece_without_space_is_not_copied() {
        let mut memory = [0; 3];
        Unwritten::from(&mut memory[..]).put(Piece::from(&b"abcd"[..]));
    }

    #[test]
    fn a_piece_has_the_bytes_of_the_moment_of_its_copy() {
        use std::sync::atomic::AtomicU8;

        let memory: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(1)).collect();
        // SAFETY: it lives until the end of the test. This thread writes it, and not during the copy.
        let piece = unsafe { Piece::shared(memory.as_ptr().cast(), memory.len()) };
        assert_eq!(piece.to_vec(), [1; 64]);
        memory.iter().for_each(|byte| byte.store(2, Ordering::Relaxed));
        assert_eq!(piece.to_vec(), [2; 64]);
    }
}
