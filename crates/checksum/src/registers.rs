//! CRC-64 of registers while a loop stores them, so that no second pass has to read them: the loop waits for memory,
//! and the multiplications are made meanwhile.

use std::arch::x86_64::{__m512i, _mm_cvtsi64_si128, _mm512_setzero_si512, _mm512_zextsi128_si512};

use crate::crc64::product;
use crate::folding::{self, further, lanes_of, pair};
use crate::folding64::{BY_STEP as BY_WIDE, end, factors, product_by_instructions};
use crate::tables64::over_x;

/// Bytes of two registers.
const TWO: u32 = 128;

const BY_TWO: (i64, i64) = factors(TWO);

/// 1 over x to the power of the bits of two registers, modulo the polynomial.
const BEFORE: u64 = {
    let (mut value, mut bit) = (1 << 63, 0);
    while bit < 8 * TWO {
        value = over_x(value);
        bit += 1;
    }
    value
};

/// The start of a digest of nothing, two registers before the first ones.
const EMPTY: u64 = product(!0, BEFORE);

/// A digest that continues with registers of 64 bytes, in the order of their places.
#[derive(Clone, Copy)]
pub struct RegisterFold {
    two: [__m512i; 2],
}

impl RegisterFold {
    /// Whether the processor has the instructions.
    #[must_use]
    pub fn is_available() -> bool {
        folding::is_there()
    }

    /// Continues a digest: `sum` is that of the bytes before the first register.
    ///
    /// # Safety
    /// [`RegisterFold::is_available`].
    #[must_use]
    #[inline]
    #[target_feature(enable = "avx512f,pclmulqdq,sse4.1")]
    pub fn new(sum: u64) -> Self {
        let start = if sum == 0 { EMPTY } else { product_by_instructions(!sum, BEFORE) };
        let first = _mm512_zextsi128_si512(_mm_cvtsi64_si128(start.cast_signed()));
        Self { two: [first, _mm512_setzero_si512()] }
    }

    /// Continues with two registers.
    ///
    /// # Safety
    /// [`RegisterFold::is_available`].
    #[inline]
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq")]
    pub fn add(&mut self, [next, last]: [__m512i; 2]) {
        let (factors, [first, second]) = (pair(BY_TWO), self.two);
        self.two = [further(first, factors, next), further(second, factors, last)];
    }

    /// The digest of all bytes so far.
    ///
    /// # Safety
    /// [`RegisterFold::is_available`].
    #[must_use]
    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.1")]
    pub fn end(self) -> u64 {
        let [first, second] = self.two;
        end(lanes_of(further(first, pair(BY_WIDE), second)))
    }
}

#[cfg(test)]
mod tests {
    use std::arch::x86_64::_mm512_loadu_si512;

    use super::RegisterFold;
    use crate::crc64::{append, crc64};

    #[target_feature(enable = "avx512f,avx512dq,vpclmulqdq,pclmulqdq,sse4.1")]
    fn by_registers(sum: u64, bytes: &[u8]) -> u64 {
        let mut fold = RegisterFold::new(sum);
        let load = |register: &[u8]| {
            assert_eq!(register.len(), 64);
            // SAFETY: so many bytes are there.
            unsafe { _mm512_loadu_si512(register.as_ptr().cast()) }
        };
        for two in bytes.chunks_exact(128) {
            fold.add([load(&two[..64]), load(&two[64..])]);
        }
        fold.end()
    }

    #[test]
    fn registers_have_the_digest_of_their_bytes() {
        if !RegisterFold::is_available() {
            return;
        }
        let bytes: Vec<u8> = (0..40_000_u32).map(|at| (at * at % 251) as u8).collect();
        for len in (0..=20).chain([100, 301]).map(|registers| registers * 128) {
            for sum in [0, 1, crc64(b"before"), u64::MAX] {
                // SAFETY: the processor has the instructions.
                let folded = unsafe { by_registers(sum, &bytes[..len]) };
                assert_eq!(folded, append(sum, &bytes[..len]), "{len} bytes behind {sum:x}");
            }
        }
    }
}
