//! Exit notices (also: exit notifications): the launcher tells the scheduler which processes have ended, so that
//! the others know it at once. Without its word a worker is missed for the grace period of a lost connection.

use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use kvstore::{Config, Observer, Result};

use crate::ending::ExitReason;

/// Timeout of one word: without it the end is known later.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The words of a launcher, and the thread that sends them.
pub(crate) struct ExitNotices {
    /// The scheduler; None once the thread has it, and in a job without a scheduler.
    target: Option<Config>,
    words: Option<Sender<(String, String)>>,
}

impl ExitNotices {
    pub(crate) fn new(target: Option<Config>) -> Self {
        Self { target, words: None }
    }

    /// Sends word of a process that has ended, by its launch. Does not wait.
    pub(crate) fn tell(&mut self, launch: &str, ending: ExitReason) {
        if let Some(config) = self.target.take() {
            self.words = start(config);
        }
        if let Some(words) = &self.words {
            let _ = words.send((launch.to_owned(), text(ending)));
        }
    }
}

/// How a process ended, as the errors of the others repeat it.
fn text(ending: ExitReason) -> String {
    match ending {
        ExitReason::Signal(signal) => format!("ended by signal {signal}, said kvstore run"),
        ending => format!("ended with {ending}, said kvstore run"),
    }
}

/// Starts the thread that sends; None if the system has no thread for it. It ends with this program, or when
/// nothing can be sent any more.
fn start(config: Config) -> Option<Sender<(String, String)>> {
    let (sender, words) = mpsc::channel::<(String, String)>();
    let work = move || {
        let mut observer = None;
        for (launch, how) in words {
            // Others find out by themselves if the scheduler is not there.
            let _ = send(&config, &mut observer, &launch, &how);
        }
    };
    thread::Builder::new().name("exit-notices".into()).spawn(work).ok()?;
    Some(sender)
}

fn send(config: &Config, observer: &mut Option<Observer>, launch: &str, how: &str) -> Result<()> {
    let observer = match observer {
        Some(observer) => observer,
        None => observer.insert(Observer::open(config)?),
    };
    observer.report_end(launch, how, TIMEOUT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_says_how_a_process_ended_and_who_has_seen_it() {
        for (ending, expected) in [
            (ExitReason::Signal(9), "ended by signal 9, said kvstore run"),
            (ExitReason::Status(7), "ended with status 7, said kvstore run"),
        ] {
            assert_eq!(text(ending), expected);
        }
    }

    #[test]
    fn a_word_without_a_scheduler_goes_nowhere_and_takes_no_time() {
        let mut none = ExitNotices::new(None);
        none.tell("1", ExitReason::Signal(9));
        assert!(none.words.is_none());
        // Port 0 has no scheduler.
        let config = Config::new().with("root", "127.0.0.1:0").unwrap();
        let mut lost = ExitNotices::new(Some(config));
        let start = std::time::Instant::now();
        (0..100).for_each(|_| lost.tell("1", ExitReason::Signal(9)));
        assert!(start.elapsed() < TIMEOUT, "{:?}", start.elapsed());
    }
}
