//! Refusals of processes that do not belong to the job, with a rate limit (also: token bucket).

use super::Scheduler;
use crate::job::{Data, Failure, MS, Reason, Time};
use crate::message::kinds::Refused;
use crate::message::{Field as _, Hello, Message, MessageKind};

/// Burst of refusals. A refusal is a frame outside of the streams, to an address of its own, and a flood of
/// refused processes must not delay members.
const MOST_AT_ONCE: Time = 256;
/// Interval at which one more refusal may be sent. A process without an answer repeats its hello.
const PAUSE: Time = 5 * MS;

/// Token bucket of refusals.
#[derive(Debug, Default)]
pub(super) struct TokenBucket {
    /// Moment at which the bucket is full.
    full_at: Time,
}

impl TokenBucket {
    fn take(&mut self, now: Time) -> bool {
        let full_at = self.full_at.max(now) + PAUSE;
        let may = full_at <= now + MOST_AT_ONCE * PAUSE;
        if may {
            self.full_at = full_at;
        }
        may
    }
}

impl<D: Data> Scheduler<D> {
    pub(super) fn refuse(&mut self, address: &str, incarnation: u64, text: String) {
        self.refuse_in(self.net.limits.job, address, incarnation, text);
    }

    /// Refuses a process of another job, unless this one has ended: the next may be at the same address.
    pub(super) fn turn_away(&mut self, message: &Message<D>) {
        if self.ending {
            return;
        }
        let hello = Hello::decode(message.fields());
        let Some(hello) = hello.filter(|_| message.head.kind == MessageKind::Hello) else { return };
        let text = "the scheduler belongs to another job: give all processes of a job the same \
                    option job, and every job a scheduler of its own";
        self.refuse_in(message.head.job, &hello.address, message.head.incarnation, text.into());
    }

    fn refuse_in(&mut self, job: u64, address: &str, incarnation: u64, text: String) {
        if self.allowance.take(self.net.last_now()) {
            let failure = Failure::new(Reason::Refused, text);
            self.net.cast_into(job, address, incarnation, Refused { failure }.into());
        }
    }
}
