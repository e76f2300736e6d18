//! Exit notices (also: exit notifications): a launcher tells the scheduler which of its processes have ended.

use std::time::{Duration, Instant};

use super::Observer;
use crate::error::{Result, fail};
use kvstore_protocol::{ExitNotice, MessageKind};

/// Interval between repeated words: a connection may have been lost.
const AGAIN: Duration = Duration::from_millis(500);

impl Observer {
    /// Tells the scheduler that all processes have ended that got a number in the variable `KV_LAUNCH`, in
    /// hexadecimal digits, and how: `ended by signal 9, said kvstore run`. They are lost at once, unless they
    /// have left, and calls of the other processes fail with this text. Returns when the scheduler has it.
    ///
    /// The number is the proof: it is 16 random bytes of a launcher, which gives each process another one.
    ///
    /// # Errors
    /// `InvalidArgument` for another form of the number. Otherwise as [`Observer::look`].
    pub fn report_end(&mut self, launch: &str, how: &str, timeout: Duration) -> Result<()> {
        let number = u128::from_str_radix(launch, 16).map_err(|_| {
            fail!(InvalidArgument, "observe: the number of a launcher has hexadecimal digits")
        })?;
        let word = ExitNotice { launch: number, how: how.into() }.encode();
        let end = Instant::now() + timeout;
        loop {
            self.send_fields(MessageKind::ExitNotice, &word, end);
            // Messages of a connection arrive in order: the answer says that the word has arrived too.
            let request = self.send(u32::MAX, 0, end);
            if !self.line.is_connected() {
                self.explain(end)?;
            }
            if self.receive(request, end.min(Instant::now() + AGAIN))?.is_some() {
                return Ok(());
            }
            if Instant::now() >= end {
                let root = &self.root;
                return Err(fail!(Timeout, "observe: the scheduler at {root} does not answer"));
            }
        }
    }
}
