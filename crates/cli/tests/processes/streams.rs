//! How many connections and threads the processes of a job have for one another.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

use std::collections::BTreeSet;
use std::fs;
use std::thread::{self, available_parallelism};
use std::time::Duration;

use super::common::wait::free_address;
use super::job::{Job, LIMIT, Process, Turn, soon};
use super::keys::{Keys, certified, start};
use super::program::ROUNDS;
use super::session::{Login, Session};

const ESTABLISHED: &str = "01";

/// How many threads of a process have this name.
fn threads(process: &Process, name: &str) -> usize {
    let folder = fs::read_dir(format!("/proc/{}/task", process.number())).into_iter().flatten();
    let name_of = |entry: fs::DirEntry| fs::read_to_string(entry.path().join("comm"));
    let names = folder.flatten().filter_map(|entry| name_of(entry).ok());
    names.filter(|found| found.trim() == name).count()
}

/// The numbers of the sockets of a process.
fn sockets(process: &Process) -> BTreeSet<String> {
    let folder = fs::read_dir(format!("/proc/{}/fd", process.number())).into_iter().flatten();
    let link = |entry: fs::DirEntry| Some(fs::read_link(entry.path()).ok()?.display().to_string());
    let links = folder.flatten().filter_map(link);
    let number = |link: String| Some(link.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned());
    links.filter_map(number).collect()
}

/// The established TCP connections of a process, each as its own port and that of the peer.
fn connections(process: &Process) -> Vec<(u16, u16)> {
    let own = sockets(process);
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let port = |address: &str| u16::from_str_radix(address.split_once(':')?.1, 16).ok();
    let connection = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let is_own = *words.get(3)? == ESTABLISHED && own.contains(*words.get(9)?);
        is_own.then(|| Some((port(words[1])?, port(words[2])?))).flatten()
    };
    table.lines().skip(1).filter_map(connection).collect()
}

/// Gives credentials to the processes of a role.
type Give<'a> = &'a dyn Fn(&Job, &str) -> Job;

fn port_of(address: &str) -> u16 {
    address.rsplit_once(':').unwrap().1.parse().unwrap()
}

fn load(workers: usize) -> Job {
    Job::new("load", workers, 1).told(ROUNDS, 4_000).with("shm", "no")
}

/// A process has one connection with the scheduler, and one for each direction with another peer, whatever
/// the credentials, with shared memory and without.
#[test]
fn two_processes_have_a_connection_for_each_direction() {
    let _turn = Turn::take();
    let keys = Keys::new("streams");
    let give = certified(&keys);
    let plain = |job: &Job, _: &str| job.clone();
    let token = |job: &Job, _: &str| keys.tokened(job, "job");
    let ways: [Give<'_>; 3] = [&plain, &token, &give];
    let shares = load(2).with("shm", "yes");
    let jobs = ways.iter().map(|give| (load(2), give)).chain([(shares, &ways[0])]);
    for (job, give) in jobs {
        let bind = free_address();
        let (root, bound) = (port_of(&job.root), port_of(&bind));
        let mut running = start(&job, |job, role| {
            let job = give(job, role);
            if role == "server" { job.with("bind", &bind) } else { job }
        });
        running.workers()[0].hear("round 20");
        let [scheduler, server, workers @ ..] = &running.all[..] else { panic!("a job") };
        let count = |process: &Process, is_one: &dyn Fn(u16, u16) -> bool| {
            connections(process).into_iter().filter(|(own, peer)| is_one(*own, *peer)).count()
        };
        for worker in workers {
            let all = connections(worker);
            let peers: BTreeSet<u16> = all.iter().map(|(_, peer)| *peer).collect();
            assert_eq!((all.len(), peers), (3, [root, bound].into()), "{all:?}");
        }
        assert_eq!(count(server, &|own, _| own == bound), 4);
        assert_eq!(count(server, &|_, peer| peer == root), 1);
        assert_eq!(connections(server).len(), 5);
        assert_eq!(count(scheduler, &|own, _| own == root), 3);
        assert_eq!(connections(scheduler).len(), 3);
    }
}

/// How many threads the scheduler, the server, and the first worker of a job have: without those that read
/// from connections, which are at most as many as processors.
fn threads_of(workers: usize) -> Vec<usize> {
    let mut running = load(workers).start();
    running.workers().iter_mut().for_each(|worker| _ = worker.hear("round 5"));
    let most = available_parallelism().unwrap().get();
    let all = running.all[..3].iter().map(|process| {
        let (io, greet) = (threads(process, "kvstore-io"), threads(process, "kvstore-greet"));
        let all = usize::try_from(process.kilobytes("Threads").unwrap()).unwrap();
        println!("{workers} workers: {} has {all} threads, {io} of them read", process.name);
        assert!((1..=most).contains(&io), "{}: {io} threads", process.name);
        assert_eq!(greet, 1, "{}", process.name);
        all - io
    });
    all.collect()
}

#[test]
fn threads_do_not_grow_with_the_processes_of_a_job() {
    let _turn = Turn::take();
    let (few, many) = (threads_of(1), threads_of(8));
    assert_eq!(few, many);
}

/// Number of connections that a process is to have.
const CONNECTIONS: usize = 256;
/// Threads of the library in a process with so many connections, beside one for each processor.
const MOST_THREADS: usize = 6;
/// Memory of an idle connection in a process, in kilobytes.
const MOST_KILOBYTES: u64 = 64;

/// Calls a process that listens, under a name of its own.
fn call(to: &str, number: usize, login: &Login) -> Session {
    let mut session = Session::open(to, &format!("idle.{number}"), login).unwrap();
    // A message of an unknown kind, which is read and skipped.
    session.send(99, &[0; 100]).unwrap();
    session
}

fn check_idle_connections(process: &Process, to: &str, login: &Login) {
    assert!(soon(LIMIT, || Session::open(to, "first", login).is_ok()));
    let warm: Vec<Session> = (0..16).map(|number| call(to, number, login)).collect();
    thread::sleep(Duration::from_millis(200));
    let memory = || process.kilobytes("VmRSS").unwrap();
    let before = memory();
    let all: Vec<Session> = (0..CONNECTIONS).map(|number| call(to, 16 + number, login)).collect();
    let has_all = || connections(process).len() >= CONNECTIONS + warm.len();
    assert!(soon(LIMIT, has_all), "{}", connections(process).len());
    thread::sleep(Duration::from_millis(200));
    let each = memory().saturating_sub(before) / CONNECTIONS as u64;
    let threads = usize::try_from(process.kilobytes("Threads").unwrap()).unwrap();
    println!("{}: {threads} threads, {each} kB for a connection", process.name);
    assert!(threads <= available_parallelism().unwrap().get() + MOST_THREADS, "{threads}");
    assert!(each < MOST_KILOBYTES, "{each} kB");
    drop(all);
}

#[test]
fn an_idle_connection_has_no_thread_and_little_memory() {
    let _turn = Turn::take();
    let job = Job::new("train", 200, 1);
    check_idle_connections(&job.start_scheduler(), &job.root, &Login::default());
    let keys = Keys::new("idle");
    ["scheduler", "worker"].iter().for_each(|role| keys.make(&[role]));
    let secured = keys.secured(&Job::new("train", 200, 1), "scheduler");
    let login = Login::certificate(&keys, "worker");
    check_idle_connections(&secured.start_scheduler(), &secured.root, &login);
}

#[test]
fn a_process_that_is_gone_leaves_no_connection() {
    let _turn = Turn::take();
    let job = load(2).with("on_worker_loss", "continue").with("peer_timeout_ms", 1_000);
    let mut running = job.start();
    running.workers()[0].hear("round 20");
    let [scheduler, server] = [0, 1].map(|at| connections(&running.all[at]).len());
    assert_eq!((scheduler, server), (3, 5));
    let files = running.servers()[0].files();
    running.workers()[1].kill();
    let [scheduler, server, ..] = &running.all[..] else { panic!("a job") };
    for (process, left) in [(scheduler, 2), (server, 3)] {
        let fewer = soon(LIMIT, || connections(process).len() == left);
        assert!(fewer, "{}: {:?}", process.name, connections(process));
    }
    assert!(soon(LIMIT, || server.files() < files));
}
