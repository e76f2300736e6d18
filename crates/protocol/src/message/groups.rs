//! Groups of workers (also: communicator, process set), as their workers describe them.

use super::fields::{Field, FieldReader, record};

/// Maximum bytes of a name.
const LONGEST_NAME: usize = 255;

/// Some workers of the job, with keys, settings and barriers of their own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTerms {
    /// Name, unique in the job.
    pub name: String,
    /// Ranks of its workers in the job, ascending.
    pub ranks: Vec<u32>,
}

record!(GroupTerms: 6 { name, ranks });

impl GroupTerms {
    pub(super) fn is_valid(&self) -> bool {
        (1..=LONGEST_NAME).contains(&self.name.len())
            && !self.ranks.is_empty()
            && self.ranks.is_sorted_by(|one, next| one < next)
    }

    /// Whether a worker is in the group.
    pub(crate) fn has(&self, rank: u32) -> bool {
        self.ranks.binary_search(&rank).is_ok()
    }
}
