//! Random bytes of the system, for secrets, tokens and names that other processes must not guess.

use ring::rand::{SecureRandom, SystemRandom};

/// New random bytes; None if the system has none.
pub(super) fn random_bytes<const COUNT: usize>() -> Option<[u8; COUNT]> {
    let mut bytes = [0; COUNT];
    SystemRandom::new().fill(&mut bytes).ok()?;
    Some(bytes)
}
