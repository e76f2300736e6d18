//! Connections that are reset while their processes live: they are made again, and the job ends with the
//! undisturbed bits.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]
#![allow(unsafe_code, reason = "resets of sockets of other processes")]

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::thread;
use std::time::{Duration, Instant};

use super::common::random::{self, Random};
use super::job::{End, Job, Process, Running, Turn, amount};
use super::keys::{Keys, certified, start};
use super::program::{PAUSE_MS, ROUNDS};

/// Longest pause between two resets.
const MOST_MS: usize = 50;
const ESTABLISHED: &str = "01";

fn check(result: i64) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(i32::try_from(result).unwrap()) }
}

fn owned(number: i64) -> io::Result<OwnedFd> {
    let number = check(number)?;
    // SAFETY: the descriptor is new, and only this function has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Resets a TCP connection of another process, as its system does when it gives the connection up: what was not
/// sent or read there is lost, and the other side receives a reset.
fn reset(process: u32, descriptor: i32) -> io::Result<()> {
    // SAFETY: touches no memory of ours.
    let process = owned(unsafe { libc::syscall(libc::SYS_pidfd_open, process, 0) })?;
    let number = process.as_raw_fd();
    // SAFETY: touches no memory of ours.
    let socket = owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, number, descriptor, 0) })?;
    // SAFETY: zeros are an address of no family.
    let nowhere: libc::sockaddr = unsafe { mem::zeroed() };
    let size = mem::size_of::<libc::sockaddr>() as libc::socklen_t;
    // SAFETY: the address is as long as the call is told.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const nowhere, size) };
    check(result.into()).map(drop)
}

/// The sockets of all established TCP connections of this machine.
fn established() -> BTreeSet<String> {
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    let socket = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        (*words.get(3)? == ESTABLISHED).then(|| format!("socket:[{}]", words[9]))
    };
    table.lines().skip(1).filter_map(socket).collect()
}

/// The descriptors of the connections of a process.
fn connections(process: &Process) -> Vec<i32> {
    let known = established();
    let folder = fs::read_dir(format!("/proc/{}/fd", process.number())).into_iter().flatten();
    let descriptor = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?.display().to_string();
        known.contains(&link).then(|| entry.file_name().to_str()?.parse().ok()).flatten()
    };
    folder.flatten().filter_map(descriptor).collect()
}

/// Resets connections of the processes of a job, drawn at random.
fn disturb(running: &Running, count: usize, random: &mut Random) {
    let (mut resets, begin) = (0, Instant::now());
    while resets < count {
        assert!(begin.elapsed() < Duration::from_secs(600), "{resets} of {count} resets");
        let process = &running.all[random.index(running.all.len())];
        let all = connections(process);
        if !all.is_empty() {
            let descriptor = all[random.index(all.len())];
            match reset(process.number(), descriptor) {
                Ok(()) => resets += 1,
                // It has ended meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => {}
                Err(error) => panic!("{}: {error}", process.name),
            }
        }
        thread::sleep(Duration::from_millis(random.index(MOST_MS) as u64));
    }
}

/// The times between the rounds of a worker, longest last.
fn pauses(end: &End) -> Vec<Duration> {
    let rounds = end.lines.iter().filter(|line| line.text.starts_with("round "));
    let times: Vec<Instant> = rounds.map(|line| line.at).collect();
    let mut pauses: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    pauses.sort();
    pauses
}

fn job(resets: usize) -> Job {
    // Each worker checks the bits of each round. The rounds take longer than the resets.
    Job::new("float sums", 2, 2)
        .with("shm", "no")
        .with("timeout_ms", 600_000)
        .told(ROUNDS, resets * 10)
        .told(PAUSE_MS, 5)
}

fn survives_resets(name: &str, mut running: Running, resets: usize) {
    let mut random = random::from_environment(name);
    running.hear("round 3");
    disturb(&running, resets, &mut random);
    for end in running.end_well() {
        let pauses = pauses(&end);
        let at = |part: usize| pauses[(pauses.len() - 1) * part / 1_000];
        let (most, longest) = (at(990), at(1_000));
        println!(
            "{name}, {}: {resets} resets, 99 of 100 rounds {most:?}, all {longest:?}",
            end.name
        );
    }
}

#[test]
fn a_job_whose_connections_are_reset_ends_with_the_undisturbed_bits() {
    let _turn = Turn::take();
    let resets = amount(100, 1_000);
    survives_resets("resets over tcp", job(resets).start(), resets);
}

#[test]
fn a_job_with_several_connections_that_are_reset_ends_with_the_undisturbed_bits() {
    let _turn = Turn::take();
    let resets = amount(100, 1_000);
    let job = job(resets).with("connections", 6);
    survives_resets("resets of several connections", job.start(), resets);
}

#[test]
fn a_job_over_tls_whose_connections_are_reset_ends_with_the_undisturbed_bits() {
    let _turn = Turn::take();
    let (resets, keys) = (amount(100, 1_000), Keys::new("resets"));
    let give = certified(&keys);
    survives_resets("resets over tls", start(&job(resets), give), resets);
}
