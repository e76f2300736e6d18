//! The digest of docs/use/semantics.md, bit by bit.

use super::scalar::Scalar;

/// The digest of bytes.
pub fn of(bytes: &[u8]) -> u64 {
    !bytes.iter().fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u64::from(*byte), |sum: u64, _| {
            (sum >> 1) ^ if sum & 1 == 1 { 0x9a6c_9329_ac4b_c9b5 } else { 0 }
        })
    })
}

/// The digest of a value.
pub fn of_elements<T: Scalar>(elements: &[T]) -> u64 {
    let size = T::DTYPE.size();
    let bytes: Vec<u8> =
        elements.iter().flat_map(|element| element.bits().to_le_bytes()[..size].to_vec()).collect();
    of(&bytes)
}
