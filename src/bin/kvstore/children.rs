//! The processes of a job while they run.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::io;
use std::process::{Child, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use signal_hook::consts::SIGKILL;

use crate::input;
use crate::job::Ending;
use crate::keeper::Keeper;
use crate::output::Source;
use crate::plan::{Name, Process};
use crate::sys;

/// How long a killed process may take to vanish. Only one that waits for a device takes any time.
const KILL_LIMIT: Duration = Duration::from_secs(5);
const KILL_STEP: Duration = Duration::from_millis(2);

/// A process that could not be started.
#[derive(Debug)]
pub(crate) struct StartError {
    name: Name,
    program: OsString,
    error: io::Error,
}

impl StartError {
    /// The status by which shells report it.
    pub(crate) fn status(&self) -> u8 {
        if self.error.kind() == io::ErrorKind::NotFound { 127 } else { 126 }
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "cannot start {}: {}: ", self.name, self.program.display())?;
        match self.error.kind() {
            io::ErrorKind::NotFound => formatter.write_str("program not found"),
            io::ErrorKind::PermissionDenied => formatter.write_str("not executable"),
            _ => self.error.fmt(formatter),
        }
    }
}

/// The processes of a job, each the leader of a group of its own.
#[derive(Debug)]
pub(crate) struct Children {
    keeper: Keeper,
    /// With whether its end has been told.
    members: Vec<(Child, bool)>,
}

impl Children {
    pub(crate) fn new(keeper: Keeper) -> Self {
        Self { keeper, members: Vec::new() }
    }

    /// Starts a process, and gives what it will write. Only the main thread may call this.
    pub(crate) fn start(&mut self, process: Process) -> Result<[Source; 2], StartError> {
        let (name, program) = (process.name, process.command.get_program().to_owned());
        self.start_and_connect(process).map_err(|error| StartError { name, program, error })
    }

    fn start_and_connect(&mut self, process: Process) -> io::Result<[Source; 2]> {
        let Process { name, mut command, reads_input } = process;
        command.stdin(if reads_input { input::source() } else { Stdio::null() });
        let (out, out_writer) = io::pipe()?;
        let (err, err_writer) = io::pipe()?;
        command.stdout(out_writer).stderr(err_writer);
        self.keeper.look_after(&mut command)?;
        let mut child = command.spawn()?;
        let stdin = child.stdin.take();
        self.members.push((child, false));
        stdin.map_or(Ok(()), input::relay)?;
        Ok([Source::out(name, out), Source::err(name, err)])
    }

    /// The processes that have ended since the last call, those that a signal ended first: in
    /// doubt they were the cause.
    pub(crate) fn newly_ended(&mut self) -> Vec<(usize, Ending)> {
        let mut ended = Vec::new();
        for (member, (child, told)) in self.members.iter_mut().enumerate() {
            if !*told && let Some(ending) = sys::ending(child.id()) {
                *told = true;
                ended.push((member, ending));
            }
        }
        ended.sort_by_key(|(_, ending)| matches!(ending, Ending::Status(_)));
        ended
    }

    /// Sends a signal to all groups. Their numbers are theirs until [`Children::finish`].
    pub(crate) fn signal(&self, signal: i32) {
        for (child, _) in &self.members {
            sys::signal_group(child.id(), signal);
        }
    }

    /// The numbers of the processes, in the order in which they were started.
    pub(crate) fn numbers(&self) -> impl Iterator<Item = u32> {
        self.members.iter().map(|(child, _)| child.id())
    }

    /// Whether a process lives that one of these has started and that has not left its group.
    pub(crate) fn have_left_over(&self) -> bool {
        let Ok(folders) = fs::read_dir("/proc") else { return false };
        folders
            .flatten()
            .filter_map(|folder| {
                living_group(&fs::read_to_string(folder.path().join("stat")).ok()?)
            })
            .any(|group| self.numbers().any(|number| number == group))
    }

    /// Kills whoever is left, and gives the ends that had not been told.
    pub(crate) fn finish(mut self) -> Vec<(usize, Ending)> {
        self.signal(SIGKILL);
        let start = Instant::now();
        let mut ended = self.newly_ended();
        while self.members.iter().any(|(_, told)| !told) && start.elapsed() < KILL_LIMIT {
            thread::sleep(KILL_STEP);
            ended.extend(self.newly_ended());
        }
        for (child, _) in self.members.iter_mut().filter(|(_, told)| *told) {
            let _ = child.wait();
        }
        self.keeper.dismiss();
        ended
    }
}

/// The group of a process by its line in `/proc/<number>/stat`; None if it has ended.
fn living_group(line: &str) -> Option<u32> {
    // The name of the program stands in parentheses, and may contain anything.
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
