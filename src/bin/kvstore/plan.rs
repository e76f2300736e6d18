//! Which processes a job consists of, and what each of them gets to know.

use std::ffi::OsString;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;

/// What a process is in its job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Scheduler,
    Server,
    Worker,
}

impl Role {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Role::Scheduler => "scheduler",
            Role::Server => "server",
            Role::Worker => "worker",
        }
    }
}

/// A process by its role and its rank in it, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) role: Role,
    pub(crate) rank: u32,
}

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            // There is only one.
            Role::Scheduler => formatter.pad("scheduler"),
            role => formatter.pad(&format!("{} {}", role.name(), self.rank)),
        }
    }
}

/// A process to start.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: Name,
    pub(crate) command: Command,
    /// Whether it reads what the launcher is given to read.
    pub(crate) reads_input: bool,
}

/// A job on one machine.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) serve_with_program: bool,
    /// The program of the workers, then its arguments.
    pub(crate) program: Vec<OsString>,
    /// This program.
    pub(crate) executable: PathBuf,
    /// Where the scheduler listens; None without servers.
    pub(crate) root: Option<SocketAddr>,
    /// What tells this job from all others.
    pub(crate) token: String,
}

impl Plan {
    /// The processes in the order in which they are to be started.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let ranks = |role, count| (0..count).map(move |rank| Name { role, rank });
        ranks(Role::Scheduler, u32::from(self.root.is_some()))
            .chain(ranks(Role::Server, self.servers))
            .chain(ranks(Role::Worker, self.workers))
            .map(|name| self.process(name))
            .collect()
    }

    fn process(&self, name: Name) -> Process {
        let own = match name.role {
            Role::Scheduler => true,
            Role::Server => !self.serve_with_program,
            Role::Worker => false,
        };
        let mut command = if own {
            let mut command = Command::new(&self.executable);
            command.arg(name.role.name());
            command
        } else {
            let mut command = Command::new(&self.program[0]);
            command.args(&self.program[1..]);
            command
        };
        self.describe(name, &mut command);
        let reads_input = name.role == Role::Worker && self.workers == 1;
        Process { name, command, reads_input }
    }

    /// Sets the variables of the environment; those of an outer job must not show through.
    fn describe(&self, name: Name, command: &mut Command) {
        let number = |number: u32| Some(number.to_string());
        let rank_of = |role| (name.role == role).then(|| name.rank.to_string());
        let variables = [
            ("KV_ROLE", Some(name.role.name().to_owned())),
            ("KV_RANK", number(name.rank)),
            ("KV_NUM_WORKERS", number(self.workers)),
            ("KV_NUM_SERVERS", number(self.servers)),
            ("KV_ROOT", self.root.map(|root| root.to_string())),
            ("KV_JOB", Some(self.token.clone())),
            ("DMLC_ROLE", Some(name.role.name().to_owned())),
            ("DMLC_PS_ROOT_URI", self.root.map(|root| root.ip().to_string())),
            ("DMLC_PS_ROOT_PORT", self.root.map(|root| root.port().to_string())),
            ("DMLC_NUM_WORKER", number(self.workers)),
            ("DMLC_NUM_SERVER", number(self.servers)),
            ("DMLC_WORKER_ID", rank_of(Role::Worker)),
            ("DMLC_SERVER_ID", rank_of(Role::Server)),
        ];
        for (variable, value) in variables {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
    }
}

/// Random text that no other job has.
pub(crate) fn token() -> io::Result<String> {
    use fmt::Write;

    let mut bytes = [0u8; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let mut text = String::new();
    for byte in bytes {
        let _ = write!(text, "{byte:02x}");
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::process::Command;

    use super::{Plan, Process, token};

    fn plan(servers: u32, serve_with_program: bool) -> Plan {
        Plan {
            workers: 2,
            servers,
            serve_with_program,
            program: vec!["train".into(), "--fast".into()],
            executable: "/bin/kvstore".into(),
            root: (servers > 0).then(|| "127.0.0.1:9091".parse().unwrap()),
            token: "1234".into(),
        }
    }

    /// What a process is called, and its command line.
    fn lines(processes: &[Process]) -> Vec<String> {
        let line = |process: &Process| {
            let arguments = process.command.get_args().map(|it| it.to_string_lossy().into_owned());
            let program = process.command.get_program().to_string_lossy().into_owned();
            let words: Vec<String> = std::iter::once(program).chain(arguments).collect();
            format!("{}: {}", process.name, words.join(" "))
        };
        processes.iter().map(line).collect()
    }

    fn environment(command: &Command) -> BTreeMap<String, Option<String>> {
        let text = |text: &std::ffi::OsStr| text.to_string_lossy().into_owned();
        command.get_envs().map(|(name, value)| (text(name), value.map(text))).collect()
    }

    #[test]
    fn the_scheduler_is_started_first_and_workers_last() {
        assert_eq!(
            lines(&plan(2, false).processes()),
            [
                "scheduler: /bin/kvstore scheduler",
                "server 0: /bin/kvstore server",
                "server 1: /bin/kvstore server",
                "worker 0: train --fast",
                "worker 1: train --fast",
            ]
        );
    }

    #[test]
    fn the_program_serves_when_it_is_told_to() {
        let lines = lines(&plan(1, true).processes());
        assert_eq!(lines[..2], ["scheduler: /bin/kvstore scheduler", "server 0: train --fast"]);
    }

    #[test]
    fn every_process_learns_its_place_under_both_families_of_names() {
        let processes = plan(2, true).processes();
        let server = environment(&processes[2].command);
        for (variable, value) in [
            ("KV_ROLE", Some("server")),
            ("KV_RANK", Some("1")),
            ("KV_NUM_WORKERS", Some("2")),
            ("KV_NUM_SERVERS", Some("2")),
            ("KV_ROOT", Some("127.0.0.1:9091")),
            ("KV_JOB", Some("1234")),
            ("DMLC_ROLE", Some("server")),
            ("DMLC_PS_ROOT_URI", Some("127.0.0.1")),
            ("DMLC_PS_ROOT_PORT", Some("9091")),
            ("DMLC_NUM_WORKER", Some("2")),
            ("DMLC_NUM_SERVER", Some("2")),
            ("DMLC_SERVER_ID", Some("1")),
            ("DMLC_WORKER_ID", None),
        ] {
            assert_eq!(server[variable].as_deref(), value, "{variable}");
        }
        let worker = environment(&processes[4].command);
        assert_eq!(worker["DMLC_WORKER_ID"].as_deref(), Some("1"));
        assert_eq!(worker["DMLC_SERVER_ID"], None);
    }

    #[test]
    fn without_servers_there_is_no_scheduler_and_no_address() {
        let processes = plan(0, false).processes();
        assert_eq!(lines(&processes), ["worker 0: train --fast", "worker 1: train --fast"]);
        let worker = environment(&processes[0].command);
        assert_eq!((&worker["KV_ROOT"], &worker["DMLC_PS_ROOT_PORT"]), (&None, &None));
    }

    #[test]
    fn only_the_single_worker_reads_input() {
        assert!(plan(1, true).processes().iter().all(|process| !process.reads_input));
        let processes = Plan { workers: 1, ..plan(1, true) }.processes();
        let readers: Vec<bool> = processes.iter().map(|process| process.reads_input).collect();
        assert_eq!(readers, [false, false, true]);
    }

    #[test]
    fn two_jobs_have_different_tokens() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert_eq!(one.len(), 32);
        assert!(one.chars().all(|digit| digit.is_ascii_hexdigit()));
        assert_ne!(one, other);
    }
}
