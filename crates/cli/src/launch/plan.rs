//! The processes of a job, and the configuration of each.

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::Command;

use kvstore::{Config, Role};
use serde::{Deserialize, Serialize};

use crate::settings;
use crate::sys::random;

/// How agents are told a [`Role`].
#[derive(Serialize, Deserialize)]
#[serde(remote = "Role")]
enum RoleName {
    Scheduler,
    Server,
    Worker,
}

/// A process by its role and its rank in it, as messages name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessName {
    #[serde(with = "RoleName")]
    pub(crate) role: Role,
    pub(crate) rank: u32,
}

impl fmt::Display for ProcessName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.role {
            // A job has only one scheduler.
            Role::Scheduler => formatter.pad("scheduler"),
            role => formatter.pad(&format!("{} {}", role.name(), self.rank)),
        }
    }
}

/// Where the scheduler listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SchedulerAddress {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl fmt::Display for SchedulerAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The colons of an address of version 6 need brackets.
        if self.host.contains(':') {
            write!(formatter, "[{}]:{}", self.host, self.port)
        } else {
            write!(formatter, "{}:{}", self.host, self.port)
        }
    }
}

/// Which processes of a job get a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SignalTarget {
    Workers,
    /// The servers and the scheduler.
    Servers,
    All,
}

impl SignalTarget {
    pub(crate) fn has(self, role: Role) -> bool {
        match self {
            Self::Workers => role == Role::Worker,
            Self::Servers => role != Role::Worker,
            Self::All => true,
        }
    }
}

/// Which of the two outputs of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) enum OutputStream {
    Out,
    Err,
}

/// A process to start.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) name: ProcessName,
    /// None is this program itself.
    pub(crate) program: Option<OsString>,
    pub(crate) arguments: Vec<OsString>,
    /// None is a variable that must not be there.
    pub(crate) environment: Vec<(String, Option<String>)>,
    /// Whether it inherits the launcher's standard input.
    pub(crate) reads_input: bool,
    /// The secret number by which the launcher announces its end; None if no launcher does.
    pub(crate) launch: Option<String>,
}

/// The variable of the launch.
const LAUNCH: &str = "KV_LAUNCH";

impl Process {
    pub(crate) fn command(&self, executable: &Path) -> Command {
        let program = self.program.as_deref().unwrap_or(executable.as_os_str());
        let mut command = Command::new(program);
        command.args(&self.arguments);
        for (variable, value) in &self.environment {
            match value {
                Some(value) => command.env(variable, value),
                None => command.env_remove(variable),
            };
        }
        // That of an outer job is not inherited.
        match &self.launch {
            Some(launch) => command.env(LAUNCH, launch),
            None => command.env_remove(LAUNCH),
        };
        command
    }
}

/// A job.
#[derive(Debug)]
pub(crate) struct LaunchPlan {
    pub(crate) workers: u32,
    pub(crate) servers: u32,
    pub(crate) serve_with_program: bool,
    /// The program of the workers, then its arguments.
    pub(crate) program: Vec<OsString>,
    /// Where the scheduler listens; None without servers.
    pub(crate) root: Option<SchedulerAddress>,
    /// The name that distinguishes this job from all others.
    pub(crate) job: String,
    /// The join token of a job that was given no credential.
    pub(crate) token: Option<String>,
    /// Options of the library that all processes get.
    pub(crate) settings: Vec<(String, String)>,
    /// Number of earlier starts of this job.
    pub(crate) restarts: u32,
}

impl LaunchPlan {
    /// The processes in the order in which they are to be started.
    pub(crate) fn processes(&self) -> Vec<Process> {
        let ranks = |role, count| (0..count).map(move |rank| ProcessName { role, rank });
        ranks(Role::Scheduler, u32::from(self.root.is_some()))
            .chain(ranks(Role::Server, self.servers))
            .chain(ranks(Role::Worker, self.workers))
            .map(|name| self.process(name))
            .collect()
    }

    /// Whether processes of this role run the program of the user.
    pub(crate) fn has_program(&self, role: Role) -> bool {
        role == Role::Worker || (role == Role::Server && self.serve_with_program)
    }

    fn process(&self, name: ProcessName) -> Process {
        let (program, arguments) = match self.program.split_first() {
            Some((program, arguments)) if self.has_program(name.role) => {
                (Some(program.clone()), arguments.to_vec())
            }
            _ => (None, vec![name.role.name().into()]),
        };
        Process {
            name,
            program,
            arguments,
            environment: self.environment(name),
            reads_input: name.role == Role::Worker && self.workers == 1,
            launch: None,
        }
    }

    /// The variables of the environment; those of an outer job must not be inherited.
    fn environment(&self, name: ProcessName) -> Vec<(String, Option<String>)> {
        let number = |number: u32| Some(number.to_string());
        let rank_of = |role| (name.role == role).then(|| name.rank.to_string());
        let root = self.root.as_ref();
        let variables = [
            ("KV_ROLE", Some(name.role.name().to_owned())),
            ("KV_RANK", number(name.rank)),
            ("KV_NUM_WORKERS", number(self.workers)),
            ("KV_NUM_SERVERS", number(self.servers)),
            ("KV_ROOT", root.map(SchedulerAddress::to_string)),
            ("KV_JOB", Some(self.job.clone())),
            ("KV_RESTARTS", number(self.restarts)),
            ("DMLC_ROLE", Some(name.role.name().to_owned())),
            ("DMLC_PS_ROOT_URI", root.map(|root| root.host.clone())),
            ("DMLC_PS_ROOT_PORT", root.map(|root| root.port.to_string())),
            ("DMLC_NUM_WORKER", number(self.workers)),
            ("DMLC_NUM_SERVER", number(self.servers)),
            ("DMLC_WORKER_ID", rank_of(Role::Worker)),
            ("DMLC_SERVER_ID", rank_of(Role::Server)),
        ];
        let set = |(name, value): &(String, String)| {
            (format!("KV_{}", name.to_uppercase()), Some(value.clone()))
        };
        let own = variables.into_iter().map(|(variable, value)| (variable.to_owned(), value));
        let token = self.token.iter().map(|token| ("KV_TOKEN".to_owned(), Some(token.clone())));
        self.settings.iter().map(set).chain(own).chain(token).collect()
    }

    /// Configuration of an observer of the job; None without a scheduler.
    pub(crate) fn target(&self) -> Option<Config> {
        let root = self.root.as_ref()?.to_string();
        let named = [("root", Some(root)), ("token", self.token.clone())];
        settings::config(&self.settings, &named).ok()
    }

    /// Makes all processes wait in `kv_create` for programs that start slowly, unless the user has
    /// set that timeout: the launcher detects ends.
    pub(crate) fn wait_for_slow_programs(&mut self) {
        const NAME: &str = "start_timeout_ms";
        /// 30 minutes: a large program that many nodes read from one disk is imported by then.
        const TIMEOUT_MS: &str = "1800000";
        let config = settings::config(&self.settings, &[]);
        if config.and_then(|config| config.get(NAME)).is_ok_and(|told| told.is_none()) {
            self.settings.push((NAME.into(), TIMEOUT_MS.into()));
        }
    }
}

/// A number for a process that is started, which no other process can guess.
pub(crate) fn launch() -> io::Result<String> {
    random::<16>()
}

/// A unique job name.
pub(crate) fn job_name() -> io::Result<String> {
    random::<16>()
}

/// A join token of 256 bits, for a job that gets a credential neither from these options nor from the
/// environment. With `insecure=yes` the user has asked for none.
pub(crate) fn token_for(settings: &[(String, String)]) -> io::Result<Option<String>> {
    const GIVEN: [&str; 5] =
        ["token", "token_file", "tls_ca_file", "tls_cert_file", "tls_key_file"];
    // Invalid values are reported by the processes that read them.
    let Ok(config) = settings::config(settings, &[]) else { return Ok(None) };
    let value = |name: &str| config.get(name).unwrap_or_else(|_| Some(String::new()));
    let has_credential = GIVEN.iter().any(|name| value(name).is_some());
    if has_credential || value("insecure").as_deref() == Some("yes") {
        return Ok(None);
    }
    random::<32>().map(Some)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsString;
    use std::path::Path;

    use super::{LAUNCH, LaunchPlan, Process, SchedulerAddress, job_name, launch, token_for};

    fn plan(servers: u32, serve_with_program: bool) -> LaunchPlan {
        LaunchPlan {
            workers: 2,
            servers,
            serve_with_program,
            program: vec!["train".into(), "--fast".into()],
            root: (servers > 0).then(|| SchedulerAddress { host: "127.0.0.1".into(), port: 9091 }),
            job: "1234".into(),
            token: Some("secret".into()),
            settings: vec![("slice_bytes".into(), "4096".into())],
            restarts: 2,
        }
    }

    /// The name of a process, and its command line.
    fn lines(processes: &[Process]) -> Vec<String> {
        let line = |process: &Process| {
            let command = process.command(Path::new("/bin/kvstore"));
            let arguments = command.get_args().map(|it| it.to_string_lossy().into_owned());
            let program = command.get_program().to_string_lossy().into_owned();
            let words: Vec<String> = std::iter::once(program).chain(arguments).collect();
            format!("{}: {}", process.name, words.join(" "))
        };
        processes.iter().map(line).collect()
    }

    fn environment(process: &Process) -> BTreeMap<String, Option<String>> {
        process.environment.iter().cloned().collect()
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
        let server = environment(&processes[2]);
        for (variable, value) in [
            ("KV_ROLE", Some("server")),
            ("KV_RANK", Some("1")),
            ("KV_NUM_WORKERS", Some("2")),
            ("KV_NUM_SERVERS", Some("2")),
            ("KV_ROOT", Some("127.0.0.1:9091")),
            ("KV_JOB", Some("1234")),
            ("KV_TOKEN", Some("secret")),
            ("KV_RESTARTS", Some("2")),
            ("KV_SLICE_BYTES", Some("4096")),
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
        let worker = environment(&processes[4]);
        assert_eq!(worker["DMLC_WORKER_ID"].as_deref(), Some("1"));
        assert_eq!(worker["DMLC_SERVER_ID"], None);
    }

    #[test]
    fn without_servers_there_is_no_scheduler_and_no_address() {
        let processes = plan(0, false).processes();
        assert_eq!(lines(&processes), ["worker 0: train --fast", "worker 1: train --fast"]);
        let worker = environment(&processes[0]);
        assert_eq!((&worker["KV_ROOT"], &worker["DMLC_PS_ROOT_PORT"]), (&None, &None));
    }

    #[test]
    fn an_address_with_colons_stands_in_brackets() {
        let root = |host: &str| SchedulerAddress { host: host.into(), port: 9091 }.to_string();
        assert_eq!(root("node1"), "node1:9091");
        assert_eq!(root("fe80::1"), "[fe80::1]:9091");
    }

    #[test]
    fn only_the_single_worker_reads_input() {
        assert!(plan(1, true).processes().iter().all(|process| !process.reads_input));
        let processes = LaunchPlan { workers: 1, ..plan(1, true) }.processes();
        let readers: Vec<bool> = processes.iter().map(|process| process.reads_input).collect();
        assert_eq!(readers, [false, false, true]);
    }

    #[test]
    fn a_process_has_the_launch_of_its_launcher_and_none_of_an_outer_one() {
        let of = |process: &Process| {
            let command = process.command(Path::new("/bin/kvstore"));
            let mut all = command.get_envs();
            all.find(|(name, _)| *name == LAUNCH).map(|(_, value)| value.map(OsString::from))
        };
        let mut process = plan(1, false).processes().remove(2);
        assert_eq!(of(&process), Some(None));
        let launches = [launch().unwrap(), launch().unwrap()];
        assert!(launches[0] != launches[1] && launches.iter().all(|launch| launch.len() == 32));
        process.launch = Some(launches[0].clone());
        assert_eq!(of(&process), Some(Some(launches[0].clone().into())));
        assert!(!environment(&process).contains_key(LAUNCH), "`--role-env` does not print it");
    }

    #[test]
    fn two_jobs_have_different_names_and_tokens() {
        let names = [job_name().unwrap(), job_name().unwrap()];
        let tokens = [token_for(&[]).unwrap().unwrap(), token_for(&[]).unwrap().unwrap()];
        for (texts, digits) in [(names, 32), (tokens, 64)] {
            assert!(texts.iter().all(|text| text.len() == digits), "{texts:?}");
            assert!(texts.iter().flat_map(|it| it.chars()).all(|digit| digit.is_ascii_hexdigit()));
            assert_ne!(texts[0], texts[1]);
        }
    }

    #[test]
    fn slow_programs_have_half_an_hour_or_what_the_user_says() {
        let timeout = |settings: &[(&str, &str)]| {
            let own = |(name, value): &(&str, &str)| ((*name).into(), (*value).into());
            let settings = settings.iter().map(own).collect();
            let mut plan = LaunchPlan { settings, ..plan(1, false) };
            plan.wait_for_slow_programs();
            environment(&plan.processes()[2])["KV_START_TIMEOUT_MS"].clone()
        };
        assert_eq!(timeout(&[]).as_deref(), Some("1800000"));
        assert_eq!(timeout(&[("start_timeout_ms", "7")]).as_deref(), Some("7"));
    }

    #[test]
    fn a_job_with_a_credential_gets_no_token() {
        for (name, value) in
            [("token_file", "job.token"), ("tls_cert_file", "a.pem"), ("insecure", "yes")]
        {
            assert_eq!(token_for(&[(name.into(), value.into())]).unwrap(), None, "{name}");
        }
    }
}
