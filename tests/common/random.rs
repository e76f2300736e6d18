//! Random numbers that a printed seed repeats.

use std::env;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

/// `SplitMix64` (Steele, Lea and Flood, 2014).
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Starts from `KV_TEST_SEED`, else from the clock, and prints the seed.
    ///
    /// It goes to standard error itself, past the capture of the test runner, so that it can be
    /// read even when the program hangs.
    pub fn from_environment(test: &str) -> Self {
        let clock =
            || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
        #[allow(clippy::cast_possible_truncation, reason = "the low bits are the changing ones")]
        let seed = number("KV_TEST_SEED").unwrap_or_else(|| clock() as u64);
        let _ = writeln!(io::stderr(), "{test}: KV_TEST_SEED={seed}");
        Self(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// A number from 0 to `end` - 1.
    #[allow(clippy::cast_possible_truncation, reason = "below a usize")]
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    /// True once in `times`.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}, not a number")))
}

/// How much work a test does: `KV_TEST_OPERATIONS`, else little for slow tools
/// (`KV_TEST_SCALE=small`), else `usual`.
#[allow(clippy::cast_possible_truncation, reason = "numbers of operations")]
pub fn operations(usual: usize) -> usize {
    number("KV_TEST_OPERATIONS").map_or_else(|| usual / reduction(), |number| number as usize)
}

/// By how much slow tools do less.
pub fn reduction() -> usize {
    let small = env::var("KV_TEST_SCALE").is_ok_and(|scale| scale == "small");
    if small { 50 } else { 1 }
}
