//! What became of operations that did not succeed. Those that are not here did.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, ErrorKind, Result, fail};

/// How many operations that did not succeed are remembered.
const KEPT: usize = 65_536;

/// How many of them keep their text.
const KEPT_TEXTS: usize = 1_024;

#[derive(Default)]
pub(super) struct Outcomes {
    by_sequence: HashMap<u64, Outcome>,
    /// Oldest first.
    order: VecDeque<u64>,
    /// Those with a text, oldest first.
    texts: VecDeque<u64>,
    /// Nothing is remembered up to this number, unless `by_sequence` has it.
    forgotten: u64,
}

struct Outcome {
    kind: ErrorKind,
    text: Option<Error>,
    told: bool,
}

impl Outcome {
    fn error(&self) -> Error {
        let gone = || {
            let text = "the operation failed; only the last 1,024 failures keep their text";
            Error::new(self.kind, text)
        };
        self.text.clone().unwrap_or_else(gone)
    }
}

impl Outcomes {
    /// Remembers a failure that nobody has been told of.
    pub(super) fn fail(&mut self, sequence: u64, error: Error) {
        let kind = error.kind();
        self.insert(sequence, Outcome { kind, text: Some(error), told: false });
        self.texts.push_back(sequence);
        if self.texts.len() > KEPT_TEXTS
            && let Some(oldest) = self.texts.pop_front()
            && let Some(outcome) = self.by_sequence.get_mut(&oldest)
        {
            outcome.text = None;
        }
    }

    /// Remembers a cancellation; whoever cancelled knows of it.
    pub(super) fn cancel(&mut self, sequence: u64) {
        let kind = ErrorKind::Cancelled;
        self.insert(sequence, Outcome { kind, text: None, told: true });
    }

    fn insert(&mut self, sequence: u64, outcome: Outcome) {
        self.by_sequence.insert(sequence, outcome);
        self.order.push_back(sequence);
        if self.order.len() > KEPT
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_sequence.remove(&oldest);
            self.forgotten = self.forgotten.max(oldest);
        }
    }

    /// Whether the result of an operation that has ended is known.
    pub(super) fn knows(&self, sequence: u64) -> bool {
        sequence > self.forgotten || self.by_sequence.contains_key(&sequence)
    }

    /// The result of an operation that has ended; it counts as told.
    pub(super) fn result(&mut self, sequence: u64) -> Result<()> {
        let Some(outcome) = self.by_sequence.get_mut(&sequence) else { return Ok(()) };
        outcome.told = true;
        if outcome.kind == ErrorKind::Cancelled {
            return Err(fail!(
                Cancelled,
                "the operation was cancelled; keys it had not come to are unchanged"
            ));
        }
        Err(outcome.error())
    }

    /// The first failure below `end` that nobody has been told of; all of them count as told.
    pub(super) fn untold(&mut self, end: u64) -> Result<()> {
        let mut first: Option<(u64, Error)> = None;
        let mut count = 0usize;
        for (&sequence, outcome) in &mut self.by_sequence {
            if outcome.told || sequence >= end {
                continue;
            }
            outcome.told = true;
            count += 1;
            if first.as_ref().is_none_or(|&(earliest, _)| sequence < earliest) {
                first = Some((sequence, outcome.error()));
            }
        }
        match first {
            None => Ok(()),
            Some((_, error)) if count == 1 => Err(error),
            Some((_, error)) => {
                let others = count - 1;
                let text = format!("{} (and {others} more operations failed)", error.message());
                Err(Error::new(error.kind(), text))
            }
        }
    }

    pub(super) fn count_untold(&self) -> usize {
        self.by_sequence.values().filter(|outcome| !outcome.told).count()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_cancellations_does_not_push_a_success_out() {
        let mut outcomes = Outcomes::default();
        (2..60_000).for_each(|sequence| outcomes.cancel(sequence));
        assert!(outcomes.knows(1));
        assert!(outcomes.result(1).is_ok());
        assert_eq!(outcomes.result(2).unwrap_err().kind(), ErrorKind::Cancelled);
    }

    #[test]
    fn old_failures_lose_their_text_then_their_place() {
        let mut outcomes = Outcomes::default();
        (1..=70_000).for_each(|sequence| outcomes.fail(sequence, fail!(Callback, "no {sequence}")));
        assert!(!outcomes.knows(1));
        assert!(outcomes.knows(10_000));
        assert!(outcomes.result(10_000).unwrap_err().message().contains("only the last 1,024"));
        assert_eq!(outcomes.result(70_000).unwrap_err().message(), "no 70000");
        let text = outcomes.untold(u64::MAX).unwrap_err();
        assert!(text.message().ends_with("(and 65533 more operations failed)"), "{text}");
        assert!(outcomes.untold(u64::MAX).is_ok());
    }
}
