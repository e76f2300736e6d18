//! Jobs of many processes on few processors, at the defaults, whose workers are C programs: all start in time,
//! no slow starter counts as dead, and every round has its sum.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

use super::common::folder::Folder;
use super::job::{Job, KVSTORE, LIMIT, Process, Running, Turn};
use super::keys::{Connection, Keys};
use super::program::COUNT;

const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/processes/many.c");
const HEADERS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../include");
/// The default of `start_timeout_ms`.
const START: Duration = Duration::from_secs(60);
/// Elements of a value of 1 KB, and of one of 1 MB.
const SIZES: [usize; 2] = [256, 262_144];
/// Threads of a process beside one for each processor, without shared memory.
const MOST_THREADS: usize = 6;

/// The program of the workers, linked with the library beside the program `kvstore`.
fn program(folder: &Folder) -> PathBuf {
    let built = Path::new(KVSTORE).with_file_name("deps").join("libkvstore.so");
    // The name by which the loader looks for it.
    symlink(&built, folder.file("libkvstore.so.0")).unwrap();
    let (place, program) = (folder.path().display(), folder.file("many"));
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-Wall", "-Werror", SOURCE, "-I", HEADERS]).arg(&built);
    compiler.arg(format!("-Wl,-rpath,{place}")).arg("-o").arg(&program);
    assert!(compiler.status().unwrap().success());
    program
}

/// What the tests of many processes share.
struct Site {
    #[allow(dead_code, reason = "held")]
    folder: Folder,
    program: PathBuf,
    keys: Keys,
}

impl Site {
    fn new(name: &str) -> Self {
        let (folder, keys) = (Folder::new(name), Keys::new(&format!("{name}-keys")));
        keys.make_roles();
        let program = program(&folder);
        Self { folder, program, keys }
    }

    /// Starts a job at the defaults.
    fn start(
        &self,
        connection: Connection,
        workers: usize,
        servers: usize,
        count: usize,
    ) -> Running {
        let job = Job::new("", workers, servers)
            .with("peer_timeout_ms", 5_000)
            .with("start_timeout_ms", START.as_millis())
            .with("timeout_ms", 600_000)
            .with("threads", available_parallelism().unwrap())
            .told(COUNT, count);
        let give = |role: &str| connection.give(&self.keys, &job, role);
        let mut of_workers = give("worker");
        of_workers.through = vec![self.program.display().to_string()];
        let mut all = vec![give("scheduler").start_scheduler()];
        all.extend((0..servers).map(|rank| give("server").start_server(rank)));
        all.extend((0..workers).map(|rank| of_workers.start_worker(rank)));
        Running { all, job }
    }

    /// Runs a job to its good end; gives the time of its start.
    fn run(
        &self,
        connection: Connection,
        workers: usize,
        servers: usize,
        count: usize,
    ) -> Duration {
        let began = Instant::now();
        let running = self.start(connection, workers, servers, count);
        let ends = running.end(10 * LIMIT);
        let mut start = Duration::ZERO;
        for end in &ends {
            assert_eq!(end.status, Some(0), "{connection:?}, {count}: {end:?}");
        }
        for end in &ends[1 + servers..] {
            let rounds = end.lines.iter().filter(|line| line.text.starts_with("round ")).count();
            assert_eq!((rounds, end.said("closed")), (20, Some("")), "{end:?}");
            start = start.max(end.said_at("ready").unwrap() - began);
        }
        println!(
            "{workers} workers, {servers} servers, {connection:?}, {count} elements: started after \
             {start:?}, 20 rounds after {:?}",
            began.elapsed()
        );
        start
    }
}

#[test]
fn a_job_of_c_programs_has_its_sums_over_every_connection() {
    let _turn = Turn::take();
    let site = Site::new("few");
    for connection in Connection::ALL {
        SIZES.iter().for_each(|count| _ = site.run(connection, 3, 2, *count));
    }
}

#[test]
#[ignore = "long: 120 jobs of 41 processes"]
fn jobs_of_40_processes_start_and_have_their_sums() {
    let _turn = Turn::take();
    let site = Site::new("many");
    for (connection, count) in Connection::ALL.iter().flat_map(|it| SIZES.map(|count| (*it, count)))
    {
        for _ in 0..times(20) {
            site.run(connection, 32, 8, count);
        }
    }
}

#[test]
#[ignore = "long: 15 jobs of 73 processes"]
fn jobs_of_72_processes_start_in_time() {
    let _turn = Turn::take();
    let site = Site::new("very-many");
    for connection in Connection::ALL {
        for _ in 0..times(5) {
            let start = site.run(connection, 64, 8, SIZES[0]);
            assert!(start < START, "{connection:?}: {start:?}");
        }
    }
}

/// A number of repetitions, or that in a variable.
fn times(usual: usize) -> usize {
    std::env::var("KV_TEST_TIMES").map_or(usual, |text| text.parse().unwrap())
}

/// Prints the threads of the server and of the first worker of a job at work.
fn threads(site: &Site, connection: Connection, workers: usize, servers: usize) {
    let mut running = site.start(connection, workers, servers, SIZES[1]);
    running.workers().iter_mut().for_each(|worker| _ = worker.hear("round 3"));
    let count = |process: &Process| process.kilobytes("Threads").unwrap();
    let (server, worker) = (count(&running.all[1]), count(&running.all[1 + servers]));
    println!(
        "{connection:?}: a server of {workers} workers has {server} threads, a worker with {servers} \
         servers {worker}"
    );
    if connection != Connection::SharedMemory {
        let most = available_parallelism().unwrap().get() + MOST_THREADS;
        assert!(server.max(worker) <= most as u64, "{server} and {worker} threads");
    }
}

#[test]
fn threads_are_few_whatever_the_number_of_peers() {
    let _turn = Turn::take();
    let site = Site::new("threads");
    for (workers, servers) in [(1, 1), (8, 1), (1, 8)] {
        threads(&site, Connection::Tcp, workers, servers);
    }
}

#[test]
#[ignore = "long: jobs of 34 processes"]
fn threads_are_few_with_32_peers() {
    let _turn = Turn::take();
    let site = Site::new("many-threads");
    for connection in Connection::ALL {
        for peers in [1, 8, 32] {
            threads(&site, connection, peers, 1);
            threads(&site, connection, 1, peers);
        }
    }
}
