//! CRC-32C (also called: Castagnoli; RFC 3720, section 12.1), the checksum of files and messages, and
//! CRC-64/NVME, the digest of values.

mod copy;
pub mod crc64;
#[cfg(target_arch = "x86_64")]
mod folding;
#[cfg(target_arch = "x86_64")]
mod folding64;
#[cfg(target_arch = "x86_64")]
mod registers;
mod tables64;

pub use copy::{CopySums, copy, copy_slice};
#[cfg(target_arch = "x86_64")]
pub use registers::RegisterFold;

/// The checksum of `bytes`.
#[must_use]
pub fn crc32c(bytes: &[u8]) -> u32 {
    append(0, bytes)
}

/// Continues a checksum: `sum` is that of the bytes before `bytes`.
#[must_use]
pub fn append(sum: u32, bytes: &[u8]) -> u32 {
    #[cfg(target_arch = "x86_64")]
    let (sum, bytes) = folding::append(sum, bytes);
    ::crc32c::crc32c_append(sum, bytes)
}

#[cfg(test)]
mod tests {
    use super::{append, crc32c};

    /// Bit by bit, as the definition.
    fn slow(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |sum, byte| {
            (0..8).fold(sum ^ u32::from(*byte), |sum: u32, _| {
                (sum >> 1) ^ if sum & 1 == 1 { 0x82f6_3b78 } else { 0 }
            })
        })
    }

    #[test]
    fn sums_are_those_of_the_standard() {
        // RFC 3720, section B.4.
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }

    #[test]
    fn sums_of_any_length_in_any_parts_are_those_of_the_definition() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * at % 251) as u8).collect();
        for len in (0..1_300).step_by(7).chain([2_048, 4_095, 16_384, 19_999]) {
            let expected = slow(&bytes[1..=len]);
            assert_eq!(crc32c(&bytes[1..=len]), expected, "{len} bytes");
            let (first, rest) = bytes[1..=len].split_at(len / 3);
            assert_eq!(append(crc32c(first), rest), expected, "{len} bytes in two parts");
        }
    }
}
