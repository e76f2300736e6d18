//! CRC-64/NVME (NVM Express NVM Command Set Specification 1.0, section 5.2.1.3.4), the digest of values. The
//! sum of a whole follows from the sums and the lengths of its parts.

use crate::tables64::{by_tables, power, times_x};

/// x to the powers of 8 times 2^0, 2^1, ..., modulo the polynomial: each shifts by that many bytes.
static SHIFTS: [u64; 64] = shifts();

/// The product of two polynomials, modulo the polynomial.
pub(crate) const fn product(left: u64, right: u64) -> u64 {
    let (mut sum, mut factor, mut bit) = (0, right, 1 << 63);
    while bit != 0 {
        if left & bit != 0 {
            sum ^= factor;
        }
        factor = times_x(factor);
        bit >>= 1;
    }
    sum
}

const fn shifts() -> [u64; 64] {
    let mut all = [power(8); 64];
    let mut at = 1;
    while at < all.len() {
        all[at] = product(all[at - 1], all[at - 1]);
        at += 1;
    }
    all
}

/// The digest of `bytes`; 0 if there are none.
#[must_use]
pub fn crc64(bytes: &[u8]) -> u64 {
    append(0, bytes)
}

/// Continues a digest: `sum` is that of the bytes before `bytes`.
#[must_use]
pub fn append(sum: u64, bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    let (sum, bytes) = crate::folding64::append(sum, bytes);
    !by_tables(!sum, bytes)
}

/// The digest of a whole: of a part with the digest `first`, and of one of `len` bytes with the digest
/// `second` behind it.
#[must_use]
pub fn combine(first: u64, second: u64, len: u64) -> u64 {
    let (mut shifted, mut rest) = (first, len);
    // Most parts end at a power of two: few bits are set.
    while rest != 0 && shifted != 0 {
        let shift = SHIFTS[rest.trailing_zeros() as usize];
        #[cfg(target_arch = "x86_64")]
        let made = crate::folding64::product(shifted, shift);
        #[cfg(not(target_arch = "x86_64"))]
        let made = None;
        shifted = made.unwrap_or_else(|| product(shifted, shift));
        rest &= rest - 1;
    }
    shifted ^ second
}

#[cfg(test)]
mod tests {
    use super::{append, combine, crc64, product};
    use crate::tables64::{POLYNOMIAL, by_tables};

    /// Bit by bit, as the definition.
    fn slow(bytes: &[u8]) -> u64 {
        !bytes.iter().fold(!0, |sum, byte| {
            (0..8).fold(sum ^ u64::from(*byte), |sum: u64, _| {
                (sum >> 1) ^ if sum & 1 == 1 { POLYNOMIAL } else { 0 }
            })
        })
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        // NVM Command Set Specification 1.0, figure 115, and the check value of the CRC catalogue.
        assert_eq!(crc64(&[0; 4096]), 0x6482_d367_eb22_b64e);
        assert_eq!(crc64(&[0xff; 4096]), 0xc0dd_ba73_02ec_a3ac);
        assert_eq!(crc64(b"123456789"), 0xae8b_1486_0a79_9888);
        assert_eq!(crc64(b""), 0);
    }

    #[test]
    fn digests_of_any_length_in_any_parts_are_those_of_the_definition() {
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * at % 251) as u8).collect();
        for len in (0..1_300).step_by(7).chain([2_048, 4_095, 16_384, 19_999]) {
            let expected = slow(&bytes[1..=len]);
            assert_eq!(crc64(&bytes[1..=len]), expected, "{len} bytes");
            assert_eq!(!by_tables(!0, &bytes[1..=len]), expected, "{len} bytes by tables");
            let (first, rest) = bytes[1..=len].split_at(len / 3);
            assert_eq!(append(crc64(first), rest), expected, "{len} bytes in two parts");
            let combined = combine(crc64(first), crc64(rest), rest.len() as u64);
            assert_eq!(combined, expected, "{len} bytes combined");
        }
    }

    #[test]
    #[cfg(target_arch = "x86_64")]
    fn products_by_instructions_are_those_bit_by_bit() {
        let factors = [0, 1, 1 << 63, !0, crc64(b"one"), crc64(b"another"), POLYNOMIAL];
        for (left, right) in factors.into_iter().flat_map(|left| factors.map(|right| (left, right)))
        {
            let made = crate::folding64::product(left, right);
            assert!(made.is_none_or(|made| made == product(left, right)), "{left:x} x {right:x}");
        }
    }

    #[test]
    fn a_part_of_many_gigabytes_can_be_combined() {
        // Zeros alone: the digest of twice as many follows from itself.
        let (mut sum, mut len) = (crc64(&[0; 1 << 10]), 1_u64 << 10);
        let slow = crc64(&vec![0; 1 << 20]);
        while len < 1 << 40 {
            sum = combine(sum, sum, len);
            len *= 2;
            assert!(len != 1 << 20 || sum == slow);
        }
        assert_eq!(
            combine(combine(5, 0, 3), 9, 1 << 40),
            combine(5, combine(0, 9, 1 << 40), (1 << 40) + 3)
        );
    }
}
