//! Starts the processes of a job one by one, listens to them, and ends them whatever happens.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

pub use super::common::wait::{free_address, soon};
use super::program::{MARK, PROGRAM};

pub const KVSTORE: &str = env!("CARGO_BIN_EXE_kvstore");

/// Far above what anything here takes.
pub const LIMIT: Duration = Duration::from_secs(60);
/// What a busy machine may add to a time that the library promises.
pub const MARGIN: Duration = Duration::from_secs(8);

/// Held by one test at a time: the times that they check are those of a machine with little else to
/// do.
pub struct Turn(#[allow(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Turn {
    pub fn take() -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        Self(TURN.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Whether this is the long suite.
fn is_long() -> bool {
    std::env::var_os("KV_TEST_OPERATIONS").is_some()
}

pub fn amount(usual: usize, long: usize) -> usize {
    if is_long() { long } else { usual }
}

/// What the processes of one job are told.
#[derive(Clone)]
pub struct Job {
    pub workers: usize,
    pub servers: usize,
    pub root: String,
    /// The program that starts its processes, with its arguments, if there is one.
    pub through: Vec<String>,
    options: Vec<(String, String)>,
}

impl Job {
    /// A job whose workers run one of the programs.
    pub fn new(program: &str, workers: usize, servers: usize) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::SeqCst);
        let job = Self {
            workers,
            servers,
            root: free_address(),
            through: Vec::new(),
            options: Vec::new(),
        };
        job.with("job", format!("{}-{serial}", process::id()))
            .with("num_workers", workers)
            .with("num_servers", servers)
            .with("timeout_ms", 60_000)
            .with("start_timeout_ms", 30_000)
            .with("peer_timeout_ms", 3_000)
            .with("threads", 1)
            .told(PROGRAM, program)
    }

    /// With an option of the library.
    pub fn with(self, name: &str, value: impl ToString) -> Self {
        self.told(&format!("KV_{}", name.to_uppercase()), value)
    }

    /// With a variable of the environment.
    #[allow(clippy::needless_pass_by_value, reason = "numbers and texts as they are")]
    pub fn told(mut self, variable: &str, value: impl ToString) -> Self {
        self.options.retain(|(known, _)| known != variable);
        self.options.push((variable.into(), value.to_string()));
        self
    }

    /// What an option of the library was set to.
    pub fn option(&self, name: &str) -> Option<String> {
        let variable = format!("KV_{}", name.to_uppercase());
        self.options.iter().find(|(known, _)| *known == variable).map(|(_, value)| value.clone())
    }

    /// The mark by which its processes are found.
    fn mark(&self) -> String {
        let job = self.options.iter().find(|(name, _)| name == "KV_JOB").unwrap();
        format!("KV_JOB={}", job.1)
    }

    fn command(&self, role: &str, rank: Option<usize>) -> Command {
        let command = if role == "worker" { worker() } else { kvstore(role) };
        let mut command = through(&self.through, command);
        command.env("KV_ROOT", &self.root).env("KV_ROLE", role).envs(self.options.clone());
        if let Some(rank) = rank {
            command.env("KV_RANK", rank.to_string());
        }
        command
    }

    pub fn start_scheduler(&self) -> Process {
        Process::start("scheduler", self.command("scheduler", None))
    }

    pub fn start_server(&self, rank: usize) -> Process {
        Process::start(&format!("server {rank}"), self.command("server", Some(rank)))
    }

    pub fn start_worker(&self, rank: usize) -> Process {
        Process::start(&format!("worker {rank}"), self.command("worker", Some(rank)))
    }

    /// Starts all of them.
    pub fn start(&self) -> Running {
        let mut all = vec![self.start_scheduler()];
        all.extend((0..self.servers).map(|rank| self.start_server(rank)));
        all.extend((0..self.workers).map(|rank| self.start_worker(rank)));
        Running { all, job: self.clone() }
    }

    /// Runs it to its good end; gives what the workers have said.
    pub fn run(&self) -> Vec<End> {
        self.start().end_well()
    }
}

fn through(starter: &[String], command: Command) -> Command {
    let Some((program, arguments)) = starter.split_first() else { return command };
    let mut started = Command::new(program);
    started.args(arguments).arg(command.get_program()).args(command.get_args());
    started
}

fn kvstore(command: &str) -> Command {
    let mut kvstore = Command::new(KVSTORE);
    kvstore.arg(command);
    kvstore
}

/// This test program as a worker.
pub fn worker() -> Command {
    this_program("program::worker")
}

/// This test program, for one test.
pub fn this_program(test: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--nocapture"]);
    command
}

/// A job at work: the scheduler, then the servers, then the workers.
pub struct Running {
    pub all: Vec<Process>,
    pub job: Job,
}

impl Running {
    pub fn scheduler(&mut self) -> &mut Process {
        &mut self.all[0]
    }

    pub fn servers(&mut self) -> &mut [Process] {
        &mut self.all[1..=self.job.servers]
    }

    pub fn workers(&mut self) -> &mut [Process] {
        &mut self.all[1 + self.job.servers..]
    }

    /// Waits until all workers have said this.
    pub fn hear(&mut self, word: &str) {
        self.workers().iter_mut().for_each(|worker| _ = worker.hear(word));
    }

    /// Waits for all of them.
    pub fn end(self, limit: Duration) -> Vec<End> {
        let until = Instant::now() + limit;
        let ends: Vec<End> = self.all.into_iter().map(|it| it.end_until(until)).collect();
        assert_eq!(living(&self.job.mark()), [""; 0], "left over");
        ends
    }

    /// Waits for all of them, which must end with status 0; gives the ends of the workers.
    pub fn end_well(self) -> Vec<End> {
        let servers = self.job.servers;
        let ends = self.end(LIMIT * if is_long() { 20 } else { 1 });
        for end in &ends {
            assert!(end.status == Some(0), "{end:?}");
        }
        ends.into_iter().skip(1 + servers).collect()
    }
}

/// The processes with this in their environment, except those that have ended.
pub fn living(mark: &str) -> Vec<String> {
    let is_alive = |folder: &PathBuf| {
        let environment = fs::read(folder.join("environ")).unwrap_or_default();
        let state = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|it| it == mark.as_bytes())
            && !state.contains(") Z ")
    };
    let folders = fs::read_dir("/proc").unwrap().flatten().map(|folder| folder.path());
    folders.filter(is_alive).map(|folder| folder.display().to_string()).collect()
}

/// One line that a process has written, and when.
#[derive(Debug, Clone)]
pub struct Line {
    pub text: String,
    pub at: Instant,
}

/// How a process ended.
#[derive(Debug)]
pub struct End {
    pub name: String,
    pub status: Option<i32>,
    pub signal: Option<i32>,
    pub at: Instant,
    pub lines: Vec<Line>,
}

impl End {
    /// What it said behind this word, first.
    pub fn said(&self, word: &str) -> Option<&str> {
        self.lines.iter().find_map(|line| line.text.strip_prefix(word)).map(str::trim)
    }

    /// When it said this word first.
    pub fn said_at(&self, word: &str) -> Option<Instant> {
        self.lines.iter().find(|line| line.text.starts_with(word)).map(|line| line.at)
    }

    pub fn text(&self) -> String {
        let lines: Vec<&str> = self.lines.iter().map(|line| line.text.as_str()).collect();
        lines.join("\n")
    }
}

/// A process that is killed when the test is over, if it has not ended before.
pub struct Process {
    pub name: String,
    child: Child,
    lines: Receiver<Line>,
    heard: Vec<Line>,
}

impl Process {
    pub fn start(name: &str, mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        die_with_us(&mut command);
        let mut child = command.spawn().unwrap();
        let (sender, lines) = mpsc::channel();
        listen(child.stdout.take().unwrap(), sender.clone());
        listen(child.stderr.take().unwrap(), sender);
        Self { name: name.into(), child, lines, heard: Vec::new() }
    }

    pub fn number(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, name: &str) {
        let number = self.number().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it says this word; gives what it says behind it.
    pub fn hear(&mut self, word: &str) -> String {
        self.hear_that(word, |line| Some(line.strip_prefix(word)?.trim().into()))
    }

    /// Waits until it says this within a line, which it gives.
    pub fn hear_of(&mut self, text: &str) -> String {
        self.hear_that(text, |line| line.contains(text).then(|| line.into()))
    }

    fn hear_that(&mut self, what: &str, found: impl Fn(&str) -> Option<String>) -> String {
        let until = Instant::now() + LIMIT;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let Ok(line) = self.lines.recv_timeout(left) else {
                panic!("{} does not say {what}: {:?}", self.name, self.heard);
            };
            self.heard.push(line.clone());
            if let Some(said) = found(&line.text) {
                return said;
            }
        }
    }

    /// How many lines so far begin with this word.
    pub fn count(&mut self, word: &str) -> usize {
        self.heard.extend(self.lines.try_iter());
        self.heard.iter().filter(|line| line.text.starts_with(word)).count()
    }

    pub fn end(self, limit: Duration) -> End {
        self.end_until(Instant::now() + limit)
    }

    pub fn end_until(mut self, until: Instant) -> End {
        let left = until.saturating_duration_since(Instant::now());
        let ended = soon(left, || self.has_ended());
        let at = Instant::now();
        if !ended {
            let stacks = stacks(self.number());
            let heard: Vec<Line> = self.heard.drain(..).chain(self.lines.try_iter()).collect();
            panic!("{} does not end: {heard:?}\n{stacks}", self.name);
        }
        let status = self.child.wait().unwrap();
        let mut lines = std::mem::take(&mut self.heard);
        lines.extend(self.lines.iter());
        let (name, signal) = (self.name.clone(), status.signal());
        End { name, status: status.code(), signal, at, lines }
    }

    /// A number of its line in `/proc/<number>/status`, such as `VmRSS`.
    /// None when it has ended.
    pub fn kilobytes(&self, field: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.number())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix(field))?;
        line.trim_matches([':', '\t', ' ', 'k', 'B']).parse().ok()
    }

    /// How many files it has open; none when it has ended.
    pub fn files(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.number())).map_or(0, Iterator::count)
    }

    /// The files of shared memory that it has.
    pub fn shared_memory(&self) -> Vec<String> {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.number()));
        let maps = maps.unwrap_or_default();
        let files = maps.lines().filter_map(|line| Some(line.split_once("/dev/shm/")?.1));
        files.map(|file| format!("/dev/shm/{}", file.trim_end_matches(" (deleted)"))).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the threads of a process wait for.
fn stacks(number: u32) -> String {
    let folders = fs::read_dir(format!("/proc/{number}/task")).into_iter().flatten().flatten();
    let line = |folder: fs::DirEntry| {
        let read = |name: &str| {
            fs::read_to_string(folder.path().join(name)).unwrap_or_default().trim().to_owned()
        };
        format!("{}: {}", read("comm"), read("wchan"))
    };
    folders.map(line).collect::<Vec<_>>().join("\n")
}

fn listen(pipe: impl Read + Send + 'static, sender: Sender<Line>) {
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut bytes = Vec::new();
        while pipe.read_until(b'\n', &mut bytes).is_ok_and(|count| count > 0) {
            let line = String::from_utf8_lossy(&bytes);
            // The test runner writes too, and does not end its lines.
            let text = line.find(MARK).map_or(&*line, |at| &line[at + MARK.len()..]).trim();
            if sender.send(Line { text: text.into(), at: Instant::now() }).is_err() {
                return;
            }
            bytes.clear();
        }
    });
}

/// When the thread of the test ends, whatever ends it, its processes end.
#[allow(unsafe_code, reason = "a call of the system")]
fn die_with_us(command: &mut Command) {
    let tie = || {
        // SAFETY: touches no memory of ours.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec it makes one call of the system, and allocates nothing.
    unsafe { command.pre_exec(tie) };
}
