//! Which processes of a job have called `kv_create`: queries the scheduler, as `kvstore status`
//! does.
//!
//! A job whose processes start quickly and end together is never queried. The scheduler is queried
//! at each interval while the job has not started, and after a program has ended while others wait.

use std::sync::mpsc::{self, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kvstore::{Config, Node, Observer, Result, Role, View};

use crate::launch::plan::ProcessName;

/// Interval of the lines that name processes which have not called `kv_create`.
const LINE: Duration = Duration::from_secs(10);
/// Delay of the query after the last worker has ended: servers need a moment to follow it.
const AFTER_ALL: Duration = Duration::from_millis(400);
/// Delay of the query after the end of one worker of several: most others end soon.
const AFTER_ONE: Duration = Duration::from_secs(1);
/// Timeout of an answer of the scheduler.
const LOOK: Duration = Duration::from_secs(1);

/// Whether a process has joined its job, as the scheduler sees it.
pub(crate) fn has_joined(view: &View, name: ProcessName) -> bool {
    let is_it = |node: &Node| node.role == name.role.name() && node.rank == name.rank;
    name.role == Role::Scheduler || view.nodes.iter().any(is_it)
}

/// Result of a query.
pub(crate) type AttendanceResult = Result<View>;
type JoinCallback = Box<dyn FnMut(AttendanceResult) + Send>;

/// The schedule of queries, and the thread that sends them.
pub(crate) struct JoinMonitor {
    begun: Instant,
    /// Target of queries; None once the thread has it, and in a job without a scheduler.
    target: Option<(Config, JoinCallback)>,
    questions: Option<(Sender<()>, JoinHandle<()>)>,
    next_line: Instant,
    ask_at: Option<Instant>,
    is_asked: bool,
    /// A worker has ended, and no answer has arrived since.
    has_ended: bool,
}

impl JoinMonitor {
    /// `tell` receives the answers; without `config` the job has no scheduler.
    pub(crate) fn new(config: Option<Config>, now: Instant, tell: JoinCallback) -> Self {
        Self {
            begun: now,
            target: config.map(|config| (config, tell)),
            questions: None,
            next_line: now + LINE,
            ask_at: None,
            is_asked: false,
            has_ended: false,
        }
    }

    fn is_over(&self) -> bool {
        self.target.is_none() && self.questions.is_none()
    }

    /// When to call [`JoinMonitor::tick`] next; None is never.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let next = self.ask_at.map_or(self.next_line, |at| at.min(self.next_line));
        (!self.is_over() && !self.is_asked).then_some(next)
    }

    /// A worker has ended successfully, and may have been the last one.
    pub(crate) fn ended(&mut self, was_last: bool, now: Instant) {
        self.has_ended = true;
        let at = now + if was_last { AFTER_ALL } else { AFTER_ONE };
        self.ask_at = Some(self.ask_at.map_or(at, |known| known.min(at)));
    }

    /// Sends a query if it is due.
    pub(crate) fn tick(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        self.ask_at = None;
        if let Some((config, tell)) = self.target.take() {
            self.questions = start(config, tell);
        }
        self.is_asked =
            self.questions.as_ref().is_some_and(|(questions, _)| questions.send(()).is_ok());
        if !self.is_asked {
            self.end();
        }
    }

    /// Handles an answer, or its failure; returns how long the job has waited, if a line about it
    /// is due.
    pub(crate) fn answered(&mut self, is_known: bool, now: Instant) -> Option<Duration> {
        self.is_asked = false;
        if is_known {
            self.has_ended = false;
        } else if self.has_ended {
            // The scheduler may not listen yet.
            self.ended(false, now);
        }
        if now < self.next_line {
            return None;
        }
        self.next_line = now + LINE;
        Some(now.saturating_duration_since(self.begun))
    }

    /// Sends no further queries.
    pub(crate) fn end(&mut self) {
        self.target = None;
        if let Some((questions, thread)) = self.questions.take() {
            drop(questions);
            let _ = thread.join();
        }
    }
}

impl Drop for JoinMonitor {
    fn drop(&mut self) {
        self.end();
    }
}

/// Starts the query thread; None if the system has no thread for it.
fn start(config: Config, mut tell: JoinCallback) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (sender, questions) = mpsc::channel();
    let work = move || {
        let mut observer = None;
        for () in questions {
            tell(look(&config, &mut observer));
        }
    };
    let thread = thread::Builder::new().name("attendance".into()).spawn(work).ok()?;
    Some((sender, thread))
}

fn look(config: &Config, observer: &mut Option<Observer>) -> AttendanceResult {
    let observer = match observer {
        Some(observer) => observer,
        None => observer.insert(Observer::open(config)?),
    };
    observer.look(LOOK)
}

/// `worker 1, worker 2 and 3 more`.
pub(crate) fn list(titles: &[String]) -> String {
    const MOST: usize = 8;
    let shown = titles.get(..MOST).unwrap_or(titles).join(", ");
    match titles.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use kvstore::State;

    use super::*;

    fn attendance() -> (JoinMonitor, Instant) {
        let now = Instant::now();
        // Port 0 has no scheduler: each query fails.
        let config = Config::new().with("root", "127.0.0.1:0").unwrap();
        (JoinMonitor::new(Some(config), now, Box::new(|_| {})), now)
    }

    #[test]
    fn a_line_is_due_at_each_interval_and_a_question_soon_after_an_end() {
        let (mut attendance, now) = attendance();
        assert_eq!(attendance.deadline(), Some(now + LINE));
        attendance.ended(false, now);
        assert_eq!(attendance.deadline(), Some(now + AFTER_ONE));
        attendance.ended(true, now);
        assert_eq!(attendance.deadline(), Some(now + AFTER_ALL));
        attendance.tick(now + AFTER_ALL);
        assert_eq!(attendance.deadline(), None);
        assert_eq!(attendance.answered(false, now + AFTER_ALL), None);
        assert_eq!(attendance.deadline(), Some(now + AFTER_ALL + AFTER_ONE));
        attendance.tick(now + AFTER_ALL + AFTER_ONE);
        assert_eq!(attendance.answered(true, now + AFTER_ALL + AFTER_ONE), None);
        assert_eq!(attendance.deadline(), Some(now + LINE));
        attendance.tick(now + LINE);
        assert_eq!(attendance.answered(true, now + LINE), Some(LINE));
        assert_eq!(attendance.deadline(), Some(now + LINE + LINE));
        attendance.end();
        assert_eq!(attendance.deadline(), None);
    }

    #[test]
    fn a_job_without_a_scheduler_is_never_asked() {
        let now = Instant::now();
        let mut attendance = JoinMonitor::new(None, now, Box::new(|_| {}));
        attendance.ended(true, now);
        attendance.tick(now + LINE);
        assert_eq!(attendance.deadline(), None);
    }

    #[test]
    fn processes_are_known_by_role_and_rank() {
        let node = Node {
            role: "worker",
            rank: 1,
            address: String::new(),
            state: State::Here,
            heard_ms: None,
            report_ms: None,
            facts: None,
        };
        let seen = View { nodes: vec![node], ..View::default() };
        let joined = |role, rank| has_joined(&seen, ProcessName { role, rank });
        assert!(joined(Role::Worker, 1) && joined(Role::Scheduler, 0));
        assert!(!joined(Role::Worker, 0) && !joined(Role::Server, 1));
    }

    #[test]
    fn long_lists_are_cut() {
        let titles: Vec<String> = (0..10).map(|rank| format!("worker {rank}")).collect();
        assert_eq!(list(&titles[..2]), "worker 0, worker 1");
        assert!(list(&titles).ends_with("worker 7 and 2 more"));
    }
}
