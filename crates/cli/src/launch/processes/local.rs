//! The processes of a job on this machine while they run.

use std::env;
use std::fs::{self, DirEntry};
use std::io;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGKILL;

use kvstore::Role;

use crate::ending::{ExitReason, Failure};
use crate::launch::plan::{OutputStream, Process, SignalTarget};
use crate::launch::processes::input;
use crate::launch::processes::output::OutputSource;
use crate::launch::processes::reaper::Reaper;
use crate::sys;

/// Timeout for the end of a killed process. Only one that waits for a device takes any time.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const KILL_STEP: Duration = Duration::from_millis(2);

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
    /// Its number in the job.
    member: usize,
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

    /// Starts the member of a job with this number, and returns its process id and its output
    /// pipes. Only the main thread may call this.
    pub(crate) fn start(
        &mut self,
        member: usize,
        process: &Process,
    ) -> Result<(u32, [OutputSource; 2]), Failure> {
        let mut command = process.command(&self.executable);
        let input = if process.reads_input { input::source() } else { Stdio::null() };
        self.connect(member, process.name.role, command.stdin(input))
            .map_err(|error| Failure::start(command.get_program(), &error))
    }

    fn connect(
        &mut self,
        member: usize,
        role: Role,
        command: &mut Command,
    ) -> io::Result<(u32, [OutputSource; 2])> {
        let (out, out_writer) = OutputSource::new(OutputStream::Out)?;
        let (err, err_writer) = OutputSource::new(OutputStream::Err)?;
        command.stdout(out_writer).stderr(err_writer);
        self.keeper.look_after(command)?;
        let child = command.spawn();
        // Our copies of the write ends of its pipes would keep them open.
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = child?;
        let (number, stdin) = (child.id(), child.stdin.take());
        self.members.push(RunningChild { member, role, child, told: false });
        stdin.map_or(Ok(()), input::relay)?;
        Ok((number, [out, err]))
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
        for running in self.members.iter_mut().filter(|running| !running.told) {
            if let Some(ending) = sys::ending(running.child.id()) {
                running.told = true;
                ended.push((running.member, ending));
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

    /// Whether the ends of all of them have been reported.
    pub(crate) fn have_ended(&self) -> bool {
        self.members.iter().all(|running| running.told)
    }

    /// Whether a descendant of this member is alive and has not left its group.
    pub(crate) fn lives_on(&self, member: usize) -> bool {
        self.has_left_over(|running| running.member == member)
    }

    /// Whether a descendant of one of these is alive and has not left its group.
    pub(crate) fn have_left_over(&self) -> bool {
        self.has_left_over(|_| true)
    }

    fn has_left_over(&self, is_asked: impl Fn(&RunningChild) -> bool) -> bool {
        let Ok(folders) = fs::read_dir("/proc") else { return false };
        let stat = |folder: DirEntry| fs::read_to_string(folder.path().join("stat")).ok();
        let mut groups = folders.flatten().filter_map(|folder| living_group(&stat(folder)?));
        groups.any(|group| {
            self.members.iter().any(|running| running.child.id() == group && is_asked(running))
        })
    }

    /// Kills all remaining processes, and returns the unreported ends.
    pub(crate) fn finish(mut self) -> Vec<(usize, ExitReason)> {
        self.signal(SignalTarget::All, SIGKILL);
        let start = Instant::now();
        let mut ended = self.newly_ended();
        while (!self.have_ended() || self.have_left_over()) && start.elapsed() < KILL_LIMIT {
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
