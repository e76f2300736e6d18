//! Processes that do not belong to the job are told why, as fast as that harms nobody else.

use super::Scheduler;
use crate::job::{Data, Failure, MS, Reason, Time};
use crate::message::{Hello, Kind, Message, failed};

/// A refusal is the answer to a process that the scheduler has no stream to, on a way of its own. A
/// flood of such processes is not to keep members waiting: so many are answered at once,
const MOST_AT_ONCE: Time = 256;
/// and one more each time so much has passed. Who is not answered asks again.
const PAUSE: Time = 5 * MS;

/// How many refusals may be sent now: a token bucket.
#[derive(Debug, Default)]
pub(super) struct Allowance {
    /// When the bucket is full again.
    full_at: Time,
}

impl Allowance {
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

    /// A process of another job has come to the wrong place.
    pub(super) fn turn_away(&mut self, message: &Message<D>) {
        let hello = Hello::decode(message.fields());
        let Some(hello) = hello.filter(|_| message.head.kind == Kind::Hello) else { return };
        let text = "the scheduler belongs to another job: give all processes of a job the same \
                    option job, and every job a scheduler of its own";
        self.refuse_in(message.head.job, &hello.address, message.head.incarnation, text.into());
    }

    fn refuse_in(&mut self, job: u64, address: &str, incarnation: u64, text: String) {
        if self.allowance.take(self.net.last_now()) {
            let fields = failed::encode(&Failure::new(Reason::Refused, text));
            let refusal = Message::new(Kind::Refused, fields);
            self.net.cast_into(job, address, incarnation, refusal);
        }
    }
}
