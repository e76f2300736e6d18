//! The processes of a job on this machine while they run.

use std::env;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::Role;
use signal_hook::consts::SIGKILL;

use crate::ending::ExitReason;
use crate::launch::plan::{Process, SignalTarget};
use crate::launch::processes::input;
use crate::launch::processes::output::OutputSource;
use crate::launch::processes::reaper::Reaper;
use crate::sys;

/// Timeout for the end of a killed process. Only one that waits for a device takes any time.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const KILL_STEP: Duration = Duration::from_millis(2);

/// Why a process could not be started, in a few words, with the status by which shells report it.
#[derive(Debug)]
pub(crate) struct StartError {
    pub(crate) text: String,
    pub(crate) status: u8,
}

impl StartError {
    pub(crate) fn new(program: &OsStr, error: &io::Error) -> Self {
        let program = program.display();
        let text = match error.kind() {
            io::ErrorKind::NotFound => format!("{program}: program not found"),
            io::ErrorKind::PermissionDenied => format!("{program}: not executable"),
            _ => format!("{program}: {error}"),
        };
        let status = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
        Self { text, status }
    }
}

/// Processes of a job on this machine, each the leader of a group of its own.
#[derive(Debug)]
pub(crate) struct LocalProcesses {
    keeper: Reaper,
    /// This program.
    executable: PathBuf,
    members: Vec<RunningChild>,
}

#[derive(Debug)]
struct RunningChild {
    role: Role,
    child: Child,
    /// Whether its end has been reported.
    told: bool,
}

impl LocalProcesses {
    /// `files` are removed with the launcher.
    pub(crate) fn new(files: &[PathBuf]) -> io::Result<Self> {
        let executable = env::current_exe()?;
        Ok(Self { keeper: Reaper::start(&executable, files)?, executable, members: Vec::new() })
    }

    /// Starts a process, and returns its output pipes. Only the main thread may call this.
    pub(crate) fn start(&mut self, process: &Process) -> Result<[OutputSource; 2], StartError> {
        let mut command = process.command(&self.executable);
        let input = if process.reads_input { input::source() } else { Stdio::null() };
        self.connect(process.name.role, command.stdin(input))
            .map_err(|error| StartError::new(command.get_program(), &error))
    }

    fn connect(&mut self, role: Role, command: &mut Command) -> io::Result<[OutputSource; 2]> {
        let (out, out_writer) = io::pipe()?;
        let (err, err_writer) = io::pipe()?;
        command.stdout(out_writer).stderr(err_writer);
        self.keeper.look_after(command)?;
        let child = command.spawn();
        // Our copies of the write ends of its pipes would keep them open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child?;
        let stdin = child.stdin.take();
        self.members.push(RunningChild { role, child, told: false });
        stdin.map_or(Ok(()), input::relay)?;
        Ok([OutputSource::out(out), OutputSource::err(err)])
    }

    /// Starts a command that connects to another machine, in a group that the keeper watches.
    pub(crate) fn start_connection(&self, command: &mut Command) -> io::Result<Child> {
        self.keeper.look_after(command)?;
        command.spawn()
    }

    /// The processes that have ended since the last call, those killed by a signal first: in doubt
    /// they were the cause.
    pub(crate) fn newly_ended(&mut self) -> Vec<(usize, ExitReason)> {
        let mut ended = Vec::new();
        for (member, running) in self.members.iter_mut().enumerate() {
            if !running.told
                && let Some(ending) = sys::ending(running.child.id())
            {
                running.told = true;
                ended.push((member, ending));
            }
        }
        ended.sort_by_key(|(_, ending)| matches!(ending, ExitReason::Status(_)));
        ended
    }

    /// Sends a signal to groups. Their ids are not reused until [`LocalProcesses::finish`].
    pub(crate) fn signal(&self, audience: SignalTarget, signal: i32) {
        for running in self.members.iter().filter(|running| audience.has(running.role)) {
            sys::signal_group(running.child.id(), signal);
        }
    }

    /// The numbers of the processes, in the order in which they were started.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|running| running.child.id())
    }

    /// Whether a descendant of this process is alive and has not left its group.
    pub(crate) fn lives_on(&self, member: usize) -> bool {
        let number = self.members.get(member).map(|running| running.child.id());
        number.is_some_and(|number| has_members(|group| group == number))
    }

    /// Whether a descendant of one of these is alive and has not left its group.
    pub(crate) fn have_left_over(&self) -> bool {
        has_members(|group| self.numbers().any(|number| number == group))
    }

    /// Kills all remaining processes, and returns the unreported ends.
    pub(crate) fn finish(mut self) -> Vec<(usize, ExitReason)> {
        self.signal(SignalTarget::All, SIGKILL);
        let start = Instant::now();
        let mut ended = self.newly_ended();
        let lives =
            |it: &Self| it.members.iter().any(|running| !running.told) || it.have_left_over();
        while lives(&self) && start.elapsed() < KILL_LIMIT {
            thread::sleep(KILL_STEP);
            ended.extend(self.newly_ended());
        }
        for running in self.members.iter_mut().filter(|running| running.told) {
            let _ = running.child.wait();
        }
        self.keeper.dismiss();
        ended
    }
}

/// Whether a process lives in one of the groups that this accepts.
fn has_members(is_asked: impl Fn(u32) -> bool) -> bool {
    let Ok(folders) = fs::read_dir("/proc") else { return false };
    folders
        .flatten()
        .filter_map(|folder| living_group(&fs::read_to_string(folder.path().join("stat")).ok()?))
        .any(is_asked)
}

/// The group of a process by its line in `/proc/<number>/stat`; None if it has ended.
fn living_group(line: &str) -> Option<u32> {
    // The name of the program is in parentheses, and may contain any character.
    let mut fields = line.rsplit_once(')')?.1.split_ascii_whitespace();
    let (state, _parent, group) = (fields.next()?, fields.next()?, fields.next()?);
    if matches!(state, "Z" | "X") { None } else { group.parse().ok() }
}

#[cfg(test)]
mod tests {
    use super::living_group;

    #[test]
    fn the_group_of_a_process_is_found_whatever_it_is_called() {
        assert_eq!(living_group("12 (sh) S 3 12 3 0 -1"), Some(12));
        assert_eq!(living_group("13 (a) Z 1 ) (b) R 3 12 3 0 -1"), Some(12));
        assert_eq!(living_group("14 (sh) Z 3 12 3 0 -1"), None);
        assert_eq!(living_group(""), None);
    }
}
