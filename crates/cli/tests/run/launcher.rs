//! Starts `kvstore run` as a user does, listens to it, and leaves nobody behind.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{self, Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

pub use super::common::wait::soon;

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_kvstore");

/// Far above what anything here takes.
pub const LIMIT: Duration = Duration::from_secs(30);
/// Within this nobody may be left of a launcher that was killed.
pub const VANISH: Duration = Duration::from_secs(2);

/// What a program writes, line by line.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut pipe = BufReader::new(pipe);
        let mut line = Vec::new();
        while pipe.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if sender.send(std::mem::take(&mut line)).is_err() {
                return;
            }
        }
    });
    lines
}

/// A launcher at work. All its processes have a mark in their environment by which they are found.
pub struct Launcher {
    pub process: Child,
    pub mark: String,
    pub out: Receiver<Vec<u8>>,
    pub err: Receiver<Vec<u8>>,
}

/// How a launcher ended.
pub struct End {
    pub status: Option<i32>,
    pub out: Vec<u8>,
    pub err: String,
}

impl End {
    pub fn out(&self) -> &str {
        str::from_utf8(&self.out).unwrap()
    }

    pub fn last_line(&self) -> &str {
        self.err.lines().last().unwrap_or("")
    }
}

/// The command `kvstore run` with these words as options and program.
pub fn command(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("run").args(words).stdin(Stdio::null());
    command
}

impl Launcher {
    pub fn start(words: &[&str]) -> Self {
        Self::spawn(&mut command(words))
    }

    /// Starts workers that run a script.
    pub fn script(options: &str, script: &str) -> Self {
        let mut words: Vec<&str> = options.split(' ').collect();
        words.extend(["-s", "0", "--", "sh", "-c", script]);
        Self::start(&words)
    }

    pub fn spawn(command: &mut Command) -> Self {
        static SERIAL: AtomicU32 = AtomicU32::new(0);
        let serial = SERIAL.fetch_add(1, Ordering::SeqCst);
        let mark = format!("TEST_MARK=<{}.{serial}>", process::id());
        let (name, value) = mark.split_once('=').unwrap();
        command.env(name, value).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let out = lines(process.stdout.take().unwrap());
        let err = lines(process.stderr.take().unwrap());
        Self { process, mark, out, err }
    }

    /// Waits until the workers have written a line that ends with this word, `count` times.
    pub fn hear(&self, word: &str, count: u32) {
        for _ in 0..count {
            let line = self.out.recv_timeout(LIMIT).unwrap_or_else(|error| {
                let said: Vec<u8> = self.err.try_iter().flatten().collect();
                panic!("{error} before {word:?}: {}", said.escape_ascii())
            });
            assert!(line.ends_with(format!("{word}\n").as_bytes()), "{}", line.escape_ascii());
        }
    }

    pub fn signal(&self, name: &str) {
        let number = self.process.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &number]).status().unwrap().success());
    }

    /// The numbers of the launcher's processes that live, its own included.
    pub fn living(&self) -> Vec<String> {
        let is_alive = |folder: &PathBuf| {
            let environment = fs::read(folder.join("environ")).unwrap_or_default();
            let state = fs::read_to_string(folder.join("stat")).unwrap_or_default();
            environment.split(|&byte| byte == 0).any(|it| it == self.mark.as_bytes())
                && !state.contains(") Z ")
        };
        let folders = fs::read_dir("/proc").unwrap().flatten().map(|folder| folder.path());
        folders.filter(is_alive).map(|folder| folder.display().to_string()).collect()
    }

    /// Waits for the end, and checks that nobody is left.
    pub fn end(self) -> End {
        self.end_within(Duration::ZERO)
    }

    /// As [`Launcher::end`], where others may take a moment longer to end.
    pub fn end_within(mut self, limit: Duration) -> End {
        if !soon(LIMIT, || self.process.try_wait().unwrap().is_some()) {
            self.process.kill().unwrap();
            self.process.wait().unwrap();
            panic!("the launcher hangs");
        }
        let left: Vec<String> = self.living().iter().map(|folder| about(folder)).collect();
        assert!(soon(limit, || self.living().is_empty()), "left over: {left:?}");
        let status = self.process.wait().unwrap().code();
        let read = |lines: &Receiver<Vec<u8>>| lines.iter().flatten().collect::<Vec<u8>>();
        let (out, err) = (read(&self.out), String::from_utf8(read(&self.err)).unwrap());
        End { status, out, err }
    }
}

impl Drop for Launcher {
    /// A failed test leaves nothing behind either: the keeper ends the workers.
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A script that says `ready`, and lives until it is ended.
pub fn waiting(before: &str) -> String {
    format!("{before}; echo ready; while :; do sleep 0.02; done")
}

/// A process in words.
fn about(folder: &str) -> String {
    let read = |file: &str| fs::read(format!("{folder}/{file}")).unwrap_or_default();
    let text = |file: &str| read(file).escape_ascii().to_string();
    format!("{folder} {} {} {}", text("cmdline"), text("stat"), text("wchan"))
}
