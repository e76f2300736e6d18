//! How many connections and threads the processes of a job have for one another.

use std::collections::BTreeSet;
use std::fs;
use std::thread::available_parallelism;

use super::common::wait::free_address;
use super::job::{Job, LIMIT, Process, Turn, soon};
use super::keys::{Keys, certified, start};
use super::program::ROUNDS;

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
/// from connections, which are at most as many as processors, and those that send.
fn threads_of(workers: usize) -> Vec<usize> {
    let mut running = load(workers).start();
    running.workers().iter_mut().for_each(|worker| _ = worker.hear("round 5"));
    let most = available_parallelism().unwrap().get();
    let all = running.all[..3].iter().enumerate().map(|(at, process)| {
        let (io, accept) = (threads(process, "kvstore-io"), threads(process, "kvstore-accept"));
        assert!((1..=most).contains(&io), "{}: {io} threads", process.name);
        assert_eq!(accept, usize::from(at < 2), "{}", process.name);
        let senders = threads(process, "kvstore-send");
        usize::try_from(process.kilobytes("Threads").unwrap()).unwrap() - io - senders
    });
    all.collect()
}

#[test]
fn threads_that_receive_do_not_grow_with_the_processes_of_a_job() {
    let _turn = Turn::take();
    let (few, many) = (threads_of(1), threads_of(6));
    assert_eq!(few, many);
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
