//! CRC-64/NVME of short inputs, by tables, and the arithmetic of its polynomials.

/// The polynomial with its bits reversed, without the highest one.
pub(crate) const POLYNOMIAL: u64 = 0x9a6c_9329_ac4b_c9b5;

/// Bytes that one step of the tables takes.
const STEP: usize = 8;

/// Sums of a byte with 0 to 7 zero bytes behind it (slicing by 8: Kounavis and Berry, 2005).
static TABLES: [[u64; 256]; STEP] = tables();

/// The product of a polynomial and x, with reversed bits.
pub(crate) const fn times_x(value: u64) -> u64 {
    (value >> 1) ^ if value & 1 == 1 { POLYNOMIAL } else { 0 }
}

/// A polynomial over x, modulo the polynomial.
#[cfg(target_arch = "x86_64")]
pub(crate) const fn over_x(value: u64) -> u64 {
    let lowest = value >> 63;
    ((value ^ (lowest * POLYNOMIAL)) << 1) | lowest
}

/// x to the power of `exponent`, modulo the polynomial.
pub(crate) const fn power(exponent: u32) -> u64 {
    let (mut value, mut done) = (1 << 63, 0);
    while done < exponent {
        value = times_x(value);
        done += 1;
    }
    value
}

const fn tables() -> [[u64; 256]; STEP] {
    let mut all = [[0; 256]; STEP];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u64, 0);
        while bit < 8 {
            sum = times_x(sum);
            bit += 1;
        }
        all[0][byte] = sum;
        byte += 1;
    }
    let mut table = 1;
    while table < STEP {
        let mut byte = 0;
        while byte < 256 {
            let before: u64 = all[table - 1][byte];
            all[table][byte] = (before >> 8) ^ all[0][(before & 0xff) as usize];
            byte += 1;
        }
        table += 1;
    }
    all
}

/// The remainder of `bytes` behind that of the bytes before them, without the inversions of a digest.
pub(crate) fn by_tables(sum: u64, bytes: &[u8]) -> u64 {
    let (steps, rest) = bytes.as_chunks::<STEP>();
    let at = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
    let sum = steps.iter().fold(sum, |sum, step| {
        let bytes = (sum ^ u64::from_le_bytes(*step)).to_le_bytes();
        bytes.iter().zip((0..STEP).rev()).fold(0, |all, (byte, table)| all ^ at(table, *byte))
    });
    rest.iter().fold(sum, |sum, byte| (sum >> 8) ^ at(0, sum.to_le_bytes()[0] ^ byte))
}
