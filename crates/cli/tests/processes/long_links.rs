//! Jobs over a link with long round trips, or that loses packets: they start, with a token and with TLS, and the
//! first calls succeed. A relay in this process is the link between two network namespaces. Where these may not
//! be made, the tests say so and do nothing.
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]
#![allow(unsafe_code, reason = "devices of the system, in a chosen network namespace")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::common::network::{FAR, NEAR, ip};
use super::common::random::{self, Random};
use super::job::{Job, LIMIT, Running, amount, soon};
use super::keys::Keys;
use super::network::is_inside;
use super::program::{COUNT, PAUSE_MS, ROUNDS};

/// Longest packet of the link.
const PACKET: usize = 2_048;

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A network device whose packets this process reads and writes.
fn device(name: &str) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: zeros are a request without a name and without flags.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an `ifreq`, as this call takes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    Ok(device)
}

/// A device in the network namespace of another process.
fn device_at(process: u32, name: &'static str) -> io::Result<File> {
    let work = move || {
        let namespace = File::open(format!("/proc/{process}/ns/net"))?;
        // SAFETY: touches no memory; this thread ends with the namespace.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        device(name)
    };
    thread::spawn(work).join().expect("a thread")
}

/// Carries packets in one direction; they take so long, and so many of a thousand are lost.
fn relay(mut from: File, mut to: File, delay: Duration, loss: usize, mut random: Random) {
    let (sender, packets) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, packet) in packets {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A device that is not up yet takes none.
            let _ = to.write(&packet);
        }
    });
    thread::spawn(move || {
        let mut packet = [0; PACKET];
        while let Ok(count) = from.read(&mut packet) {
            let is_lost = random.index(1_000) < loss;
            if !is_lost && sender.send((Instant::now() + delay, packet[..count].into())).is_err() {
                return;
            }
        }
    });
}

/// Two machines with a link between them, as long as this process lives.
struct LongLink {
    /// Is on the far machine, and keeps it.
    keeper: Child,
}

impl LongLink {
    fn new(round_trip: Duration, loss: usize) -> io::Result<Self> {
        let keeper = Command::new("unshare").args(["-n", "sleep", "3600"]).spawn()?;
        let link = Self { keeper };
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let name = format!("/proc/{}/ns/net", link.keeper.id());
        assert!(soon(LIMIT, || std::fs::read_link(&name).is_ok_and(|it| it != own)));
        let (near, far) = (device("near")?, device_at(link.keeper.id(), "far")?);
        let random = || random::from_environment("long links");
        relay(near.try_clone()?, far.try_clone()?, round_trip / 2, loss, random());
        relay(far, near, round_trip / 2, loss, random());
        for arguments in [
            &["addr", "add", NEAR, "peer", FAR, "dev", "near"][..],
            &["link", "set", "near", "up"],
            &["link", "set", "lo", "up"],
        ] {
            ip(arguments);
        }
        for arguments in [
            &["addr", "add", FAR, "peer", NEAR, "dev", "far"][..],
            &["link", "set", "far", "up"],
            &["link", "set", "lo", "up"],
        ] {
            let mut command = Command::new("nsenter");
            command.args(link.way()).arg("ip").args(arguments);
            assert!(command.status()?.success(), "ip {arguments:?} on the far machine");
        }
        Ok(link)
    }

    /// The arguments of `nsenter` for the far machine.
    fn way(&self) -> [String; 3] {
        ["-t".into(), self.keeper.id().to_string(), "-n".into()]
    }
}

impl Drop for LongLink {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Whether this machine lets us make such links.
fn can_be_made() -> bool {
    OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
        && Command::new("nsenter").arg("--version").stdout(Stdio::null()).status().is_ok()
}

/// The credentials of a job: a token, or a token and certificates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    Token,
    TokenAndTls,
}

/// The default of `peer_timeout_ms`, and a time in which some packet arrives even if three of ten are lost: TCP
/// sends a lost one again after 0.2 s, and then after twice the time each.
const PEER_TIMEOUT_MS: u64 = 5_000;
const LOSSY_TIMEOUT_MS: u64 = 60_000;

/// A job of which all other options have their defaults: the scheduler and a server on the near machine, two
/// workers on the far one.
fn start(link: &LongLink, keys: &Keys, access: Access, peer_timeout_ms: u64) -> Running {
    let mut job = Job::new("train", 2, 1)
        .with("peer_timeout_ms", peer_timeout_ms)
        .with("start_timeout_ms", 60_000)
        .with("timeout_ms", 600_000)
        .with("tls_verify_names", "no")
        .told(ROUNDS, 3)
        .told(COUNT, 1_000)
        .told(PAUSE_MS, 1);
    job.root = format!("{NEAR}:9000");
    let give = |job: &Job, role: &str| {
        let job = keys.tokened(job, "job");
        if access == Access::TokenAndTls { keys.secured(&job, role) } else { job }
    };
    let here = job.clone().with("bind", NEAR);
    let mut all = vec![give(&here, "scheduler").start_scheduler()];
    all.push(give(&here, "server").start_server(0));
    let mut there = give(&job, "worker");
    there.through = std::iter::once("nsenter".to_owned()).chain(link.way()).collect();
    all.extend((0..job.workers).map(|rank| there.start_worker(rank)));
    Running { all, job }
}

/// Starts jobs, each of which must start. Where no packet is lost they end with their sums; with lost packets
/// another job does, whose processes may be silent for longer.
fn starts(name: &str, round_trip: Duration, loss: usize, times: usize) {
    if !is_inside(&format!("long_links::{name}")) {
        return;
    }
    if !can_be_made() {
        println!("skipped: this machine does not let us make network devices");
        return;
    }
    let link = LongLink::new(round_trip, loss).unwrap();
    let keys = Keys::new("long-links");
    ["scheduler", "server", "worker"].iter().for_each(|role| keys.make(&[role]));
    for access in [Access::Token, Access::TokenAndTls] {
        for _ in 0..times {
            let began = Instant::now();
            let mut running = start(&link, &keys, access, PEER_TIMEOUT_MS);
            running.hear("ready ");
            println!("{name}, {access:?}: ready after {:?}", began.elapsed());
            if loss == 0 {
                running.end_well();
            }
        }
        if loss > 0 {
            let began = Instant::now();
            let ends = start(&link, &keys, access, LOSSY_TIMEOUT_MS).end(10 * LIMIT);
            assert!(ends.iter().all(|end| end.status == Some(0)), "{ends:?}");
            println!("{name}, {access:?}: a whole job took {:?}", began.elapsed());
        }
    }
}

#[test]
fn a_job_starts_over_a_round_trip_of_340_ms() {
    let name = "a_job_starts_over_a_round_trip_of_340_ms";
    starts(name, Duration::from_millis(340), 0, amount(1, 10));
}

#[test]
#[ignore = "long: ten jobs with a token, and ten with TLS"]
fn a_job_starts_over_a_round_trip_of_a_second() {
    starts("a_job_starts_over_a_round_trip_of_a_second", Duration::from_secs(1), 0, 10);
}

#[test]
#[ignore = "long: ten jobs with a token, and ten with TLS"]
fn a_job_starts_where_three_packets_of_ten_are_lost() {
    starts("a_job_starts_where_three_packets_of_ten_are_lost", Duration::from_millis(20), 300, 10);
}
