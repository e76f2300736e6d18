//! Echo test: whether frames of a size reach a process of a job, and return.

use std::time::{Duration, Instant};

use super::{Look, Observer, ObserverReply};
use crate::config::Config;
use crate::error::Result;

/// Interval between repeated requests: the process may not have been reachable yet.
const AGAIN: Duration = Duration::from_millis(500);

impl Observer {
    /// Whether a request with `there` bytes reaches a process, and its answer with `back` bytes returns in
    /// time. The process is the scheduler at the option `root`, or a server of its job.
    ///
    /// Each call has connections of its own: a blocked one does not affect the next.
    ///
    /// # Errors
    /// As [`Observer::open`].
    pub fn echo(
        config: &Config,
        server: Option<&str>,
        there: usize,
        back: u32,
        timeout: Duration,
    ) -> Result<bool> {
        let mut observer = Self::connect(config, server).map_err(|error| error.at("observe"))?;
        let end = Instant::now() + timeout;
        let look = Look { address: observer.transport.address().into(), skip: u32::MAX };
        let fields = look.encode_echo(there, back);
        while Instant::now() < end {
            observer.send_look(&fields, end);
            if observer.hears_echo(end.min(Instant::now() + AGAIN)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// An answer to any of the requests counts.
    fn hears_echo(&self, until: Instant) -> bool {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            match self.answers.recv_timeout(left) {
                Ok(ObserverReply::Echo) => return true,
                Ok(_) => {}
                Err(_) => return false,
            }
        }
    }
}
