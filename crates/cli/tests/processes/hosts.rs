//! Whole jobs on several hosts and inside of Slurm, which scripts play on this machine; jobs that are
//! started again; and what many starts and stops leave.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::common::folder::Folder;
use super::job::{
    End, KVSTORE, LIMIT, MARGIN, Process, Turn, amount, free_address, living, soon, worker,
};
use super::launcher;
use super::program::{FILE, PAUSE_MS, PROGRAM, ROUNDS};

const SCRIPTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/run/");

/// `kvstore` with these words, for one of the programs.
fn kvstore(words: &[&str], program: &str) -> Command {
    let mut command = Command::new(KVSTORE);
    let worker = worker();
    command.args(words).arg("--").arg(worker.get_program()).args(worker.get_args());
    for (name, value) in [(PROGRAM, program), ("KV_THREADS", "1"), ("KV_PEER_TIMEOUT_MS", "3000")] {
        command.env(name, value);
    }
    command
}

fn count(end: &End, word: &str) -> usize {
    end.lines.iter().filter(|line| line.text == word).count()
}

#[test]
fn a_job_on_hosts_has_the_sums_of_all() {
    let _turn = Turn::take();
    let ssh = format!("bash '{SCRIPTS}fake_ssh.sh'");
    // Names that the system knows, so that the launcher finds its own address on the way.
    let words = ["run", "--ssh", &ssh, "--hosts", "127.0.0.2:2,127.0.0.3:1", "-s", "2", "-v"];
    let mut command = kvstore(&words, "unequal counts");
    command.env("TEST_MARK", "hosts");
    let end = Process::start("launcher", command).end(LIMIT);
    assert_eq!((end.status, count(&end, "closed")), (Some(0), 3), "{}", end.text());
    let text = end.text();
    assert!(text.contains("kvstore run: server 1 on 127.0.0.3 ended with status 0"), "{text}");
    assert!(text.contains("kvstore run: worker 2 on 127.0.0.3 ended with status 0"), "{text}");
    assert!(soon(MARGIN, || living("TEST_MARK=hosts").is_empty()));
}

#[test]
fn a_death_on_a_host_is_known_by_the_word_of_the_launcher() {
    let _turn = Turn::take();
    let ssh = format!("bash '{SCRIPTS}fake_ssh.sh'");
    let words = ["run", "--ssh", &ssh, "--hosts", "127.0.0.2:2,127.0.0.3:1", "-s", "1", "-v"];
    let words = [&words[..], &["--linger-ms", "20000"]].concat();
    // A busy machine may be later than the second after which the end of a connection tells.
    let is_told = (0..5).any(|_| {
        let (end, took) = launcher::kill(kvstore(&words, "train"), "worker 2 on 127.0.0.3", 3);
        assert!(took < MARGIN, "{took:?}");
        launcher::repeats_the_word(&end, "worker 2")
    });
    assert!(is_told);
}

#[test]
fn the_tasks_of_srun_make_up_a_job() {
    let _turn = Turn::take();
    // The job's number decides on its port.
    let number = free_address();
    let mut command = Command::new("bash");
    command.arg(format!("{SCRIPTS}fake_srun.sh")).args(["--ntasks=5", KVSTORE]);
    let join = kvstore(&["join", "-s", "1"], "closed forms");
    command.args(join.get_args()).env("SLURM_JOB_ID", number.rsplit(':').next().unwrap());
    command.env("SLURM_JOB_NODELIST", "node01").env(PROGRAM, "closed forms").env(ROUNDS, "2");
    let end = Process::start("srun", command).end(LIMIT);
    assert_eq!((end.status, count(&end, "closed")), (Some(0), 3), "{}", end.text());
}

#[test]
fn a_job_that_is_started_again_goes_on_from_its_checkpoint() {
    let _turn = Turn::take();
    let folder = Folder::new("resume");
    let words = ["run", "-n", "3", "-s", "2", "--restarts", "1"];
    let mut command = kvstore(&words, "resume");
    command.env(FILE, folder.file("checkpoint"));
    let end = Process::start("launcher", command).end(LIMIT);
    assert_eq!((end.status, count(&end, "closed")), (Some(0), 3), "{}", end.text());
    let text = end.text();
    assert!(text.contains("failed because worker 1 ended first, with status 7"), "{text}");
    assert!(text.contains("kvstore run: starts the job again, 1 of 1"), "{text}");
}

#[test]
fn a_job_goes_on_without_a_worker_if_the_library_does() {
    let _turn = Turn::take();
    let words = ["run", "-n", "3", "-s", "2", "--set", "on_worker_loss=continue"];
    let mut command = kvstore(&words, "fails");
    command.env(ROUNDS, "20").env(PAUSE_MS, "1");
    let end = Process::start("launcher", command).end(LIMIT);
    assert_eq!((end.status, count(&end, "closed")), (Some(0), 2), "{}", end.text());
    assert!(end.text().contains("kvstore run: worker 1  ended with status 7"), "{}", end.text());
}

/// The ports at which processes listen.
fn ports(processes: &[String]) -> BTreeSet<u16> {
    let links = |folder: &String| fs::read_dir(Path::new(folder).join("fd")).into_iter().flatten();
    let target = |entry: fs::DirEntry| fs::read_link(entry.path()).ok();
    let links = processes.iter().flat_map(links).flatten().filter_map(target);
    let sockets: BTreeSet<String> = links.map(|link| link.to_string_lossy().into_owned()).collect();
    listening().into_iter().filter(|(_, socket)| sockets.contains(socket)).map(|it| it.0).collect()
}

/// The ports at which somebody listens, with the names of the sockets.
fn listening() -> Vec<(u16, String)> {
    let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let lines = read("/proc/net/tcp") + &read("/proc/net/tcp6");
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (_, port) = fields.get(1)?.rsplit_once(':')?;
        let port = u16::from_str_radix(port, 16).ok()?;
        (fields[3] == "0A").then(|| (port, format!("socket:[{}]", fields[9])))
    };
    lines.lines().filter_map(line).collect()
}

/// The files of shared memory that processes have.
fn shared_memory(processes: &[String]) -> Vec<String> {
    let maps = |folder: &String| fs::read_to_string(Path::new(folder).join("maps"));
    let maps: String = processes.iter().filter_map(|folder| maps(folder).ok()).collect();
    let files = maps.lines().filter_map(|line| Some(line.split_once("/dev/shm/")?.1));
    files.map(|file| format!("/dev/shm/{}", file.trim_end_matches(" (deleted)"))).collect()
}

#[test]
fn many_starts_and_stops_leave_no_process_no_port_and_no_shared_memory() {
    let _turn = Turn::take();
    for turn in 0..amount(5, 100) {
        let mark = format!("starts-{}-{turn}", std::process::id());
        let mut command = kvstore(&["run", "-n", "4", "-s", "2", "--linger-ms", "100"], "train");
        command.env("TEST_MARK", &mark).env(PAUSE_MS, "1");
        // Some end by themselves.
        command.env(ROUNDS, if turn % 5 == 0 { "40" } else { "1000000" });
        let mark = format!("TEST_MARK={mark}");
        let mut launcher = Process::start("launcher", command);
        launcher.hear("sum 3");
        let processes = living(&mark);
        let (ports, files) = (ports(&processes), shared_memory(&processes));
        let status = match turn % 5 {
            0 => Some(0),
            1 => {
                launcher.signal("TERM");
                Some(143)
            }
            2 => {
                launcher.signal("INT");
                Some(130)
            }
            3 => {
                launcher.kill();
                None
            }
            _ => {
                end_a_worker(&processes);
                Some(137)
            }
        };
        let end = launcher.end(LIMIT);
        assert_eq!(end.status, status, "turn {turn}: {}", end.text());
        assert!(turn % 5 == 0 || ports.len() == 3, "turn {turn}: {ports:?}");
        let limit = Duration::from_secs(2) + MARGIN;
        assert!(soon(limit, || living(&mark).is_empty()), "turn {turn}: {:?}", living(&mark));
        let open = || listening().into_iter().filter(|(port, _)| ports.contains(port)).count();
        assert!(soon(limit, || open() == 0), "turn {turn}: {ports:?}");
        assert!(files.iter().all(|file| !Path::new(file).exists()), "turn {turn}: {files:?}");
    }
}

fn end_a_worker(processes: &[String]) {
    let is_worker = |folder: &&String| {
        let environment = fs::read(Path::new(folder).join("environ")).unwrap_or_default();
        environment.split(|&byte| byte == 0).any(|it| it == b"KV_ROLE=worker")
    };
    let worker = processes.iter().find(is_worker).unwrap().trim_start_matches("/proc/");
    assert!(Command::new("kill").args(["-s", "KILL", worker]).status().unwrap().success());
}
