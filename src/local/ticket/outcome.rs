//! Results of operations that did not succeed. An operation without an entry succeeded.

use std::collections::{HashMap, VecDeque};

use crate::error::{Error, ErrorKind, Result};

/// How many operations that did not succeed are remembered.
const KEPT: usize = 65_536;

/// How many failures keep their text, and how many cancellations.
const KEPT_TEXTS: usize = 1_024;

#[derive(Default)]
pub(super) struct Outcomes {
    by_sequence: HashMap<u64, OperationOutcome>,
    /// Oldest first.
    order: VecDeque<u64>,
    /// Failures with a text, oldest first.
    failure_texts: VecDeque<u64>,
    /// Cancellations with a text, oldest first. Apart from failures: a flood of cancellations
    /// evicts no text of a failure.
    cancel_texts: VecDeque<u64>,
    /// No result is remembered up to this number, unless `by_sequence` has it.
    forgotten: u64,
}

struct OperationOutcome {
    kind: ErrorKind,
    text: Option<Error>,
    told: bool,
}

impl OperationOutcome {
    fn error(&self) -> Error {
        let gone = || {
            let text = match self.kind {
                ErrorKind::Cancelled => {
                    "the operation was cancelled; only the last 1,024 cancellations keep their text"
                }
                _ => "the operation failed; only the last 1,024 failures keep their text",
            };
            Error::new(self.kind, text)
        };
        self.text.clone().unwrap_or_else(gone)
    }
}

impl Outcomes {
    /// Records an unreported failure. A waiter that gets `Timeout` waits again, for ever if that were the result.
    pub(super) fn fail(&mut self, sequence: u64, error: Error) {
        let error = match error.kind() {
            ErrorKind::Timeout => Error::new(ErrorKind::Expired, error.message()),
            _ => error,
        };
        let kind = error.kind();
        self.insert(sequence, OperationOutcome { kind, text: Some(error), told: false });
        keep_text(&mut self.failure_texts, &mut self.by_sequence, sequence);
    }

    /// Records a cancellation, with the operation's progress; its caller knows of it.
    pub(super) fn cancel(&mut self, sequence: u64, error: Error) {
        let kind = ErrorKind::Cancelled;
        self.insert(sequence, OperationOutcome { kind, text: Some(error), told: true });
        keep_text(&mut self.cancel_texts, &mut self.by_sequence, sequence);
    }

    fn insert(&mut self, sequence: u64, outcome: OperationOutcome) {
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

    /// The result of an operation that has ended; it counts as reported.
    pub(super) fn result(&mut self, sequence: u64) -> Result<()> {
        if let Some(outcome) = self.by_sequence.get_mut(&sequence) {
            outcome.told = true;
        }
        self.look(sequence)
    }

    /// The result of an operation that has ended; whether it counts as reported does not change.
    pub(super) fn look(&self, sequence: u64) -> Result<()> {
        self.by_sequence.get(&sequence).map_or(Ok(()), |outcome| Err(outcome.error()))
    }

    /// The first unreported failure below `end`; all of them count as reported.
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

/// Adds the newest text of a kind; evicts the oldest if there are too many.
fn keep_text(
    texts: &mut VecDeque<u64>,
    outcomes: &mut HashMap<u64, OperationOutcome>,
    newest: u64,
) {
    texts.push_back(newest);
    if texts.len() > KEPT_TEXTS
        && let Some(oldest) = texts.pop_front()
        && let Some(outcome) = outcomes.get_mut(&oldest)
    {
        outcome.text = None;
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::error::fail;

    #[test]
    fn a_failure_by_a_timeout_is_no_reason_to_wait_again() {
        let mut outcomes = Outcomes::default();
        outcomes.fail(1, fail!(Timeout, "too late"));
        let error = outcomes.look(1).unwrap_err();
        assert_eq!((error.kind(), error.message()), (ErrorKind::Expired, "too late"));
        assert_eq!(outcomes.untold(u64::MAX).unwrap_err().kind(), ErrorKind::Expired);
    }

    #[test]
    fn a_flood_of_cancellations_does_not_push_a_success_or_a_failure_out() {
        let mut outcomes = Outcomes::default();
        outcomes.fail(2, fail!(Callback, "no 2"));
        (3..60_000).for_each(|sequence| outcomes.cancel(sequence, fail!(Cancelled, "{sequence}")));
        assert!(outcomes.knows(1));
        assert!(outcomes.result(1).is_ok());
        assert_eq!(outcomes.result(2).unwrap_err().message(), "no 2");
        let first = outcomes.result(3).unwrap_err();
        assert_eq!(first.kind(), ErrorKind::Cancelled);
        assert!(first.message().contains("only the last 1,024 cancellations"), "{first}");
        assert_eq!(outcomes.result(59_999).unwrap_err().message(), "59999");
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
