//! Random numbers that a printed seed repeats.

use std::env;
use std::io::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

pub use kvstore_protocol::testing::Random;

/// Starts from `KV_TEST_SEED`, else from the clock, and prints the seed.
///
/// It goes to standard error itself, past the capture of the test runner, so that it can be read even when
/// the program hangs.
pub fn from_environment(test: &str) -> Random {
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos());
    #[allow(clippy::cast_possible_truncation, reason = "the low bits are the changing ones")]
    let seed = number("KV_TEST_SEED").unwrap_or_else(|| clock() as u64);
    let _ = writeln!(io::stderr(), "{test}: KV_TEST_SEED={seed}");
    Random::new(seed)
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
