//! Strangers that hold connections whose greeting does not end: a job with credentials starts in time, and
//! one that runs goes on.
#![allow(unsafe_code, reason = "connections from a chosen address")]
#![allow(clippy::print_stdout, reason = "a test prints what it has measured")]

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::mem;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::common::wait::free_address;
use super::forged::{Access, with_both};
use super::greeting::Call;
use super::hostile::{job, survives};
use super::job::{End, Job, LIMIT, MARGIN, Running, amount, soon};
use super::program::ROUNDS;

/// From another address than the job's, and from the job's own.
const SOURCES: [Ipv4Addr; 2] = [Ipv4Addr::new(127, 0, 0, 2), Ipv4Addr::LOCALHOST];
/// How many connections a stranger holds at each listener.
const HELD: usize = 1_100;
/// How many in the long suite, if this process may open so many.
const MOST_HELD: usize = 15_000;
/// Within this a job starts meanwhile.
const START: Duration = Duration::from_secs(10);
/// The pause of a worker after each round of `survives`.
const TRAINING_PAUSE: Duration = Duration::from_millis(20);
/// How often a byte follows on each connection, and how often those that have ended are made again.
const DRIP: Duration = Duration::from_millis(500);
/// How long a stranger waits for a connection: the queue of a listener may be full.
static PATIENCE: libc::timeval = libc::timeval { tv_sec: 0, tv_usec: 200_000 };

/// A connection from this address of the machine.
fn dial(source: Ipv4Addr, to: SocketAddrV4) -> io::Result<TcpStream> {
    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    let name = |ip: Ipv4Addr, port: u16| libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
        sin_zero: [0; 8],
    };
    let size = mem::size_of::<libc::sockaddr_in>() as libc::socklen_t;
    // SAFETY: touches no memory of ours.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    // SAFETY: the descriptor is new, and only this function has it.
    let socket = unsafe { OwnedFd::from_raw_fd(check(socket)?) };
    let (number, patience) = (socket.as_raw_fd(), &raw const PATIENCE);
    let of_time = mem::size_of::<libc::timeval>() as libc::socklen_t;
    // SAFETY: the value is a `timeval`, of the size that is given.
    check(unsafe {
        libc::setsockopt(number, libc::SOL_SOCKET, libc::SO_SNDTIMEO, patience.cast(), of_time)
    })?;
    let (source, target) = (name(source, 0), name(*to.ip(), to.port()));
    // SAFETY: the address is a `sockaddr_in`, of the size that is given.
    check(unsafe { libc::bind(number, (&raw const source).cast(), size) })?;
    // SAFETY: the address is a `sockaddr_in`, of the size that is given.
    check(unsafe { libc::connect(number, (&raw const target).cast(), size) })?;
    Ok(socket.into())
}

/// One connection of a stranger, and how many of its words it has said. One in two says nothing after the
/// first half.
struct Held {
    stream: TcpStream,
    said: usize,
    waits: bool,
}

impl Held {
    /// Says half of the words.
    fn new(source: Ipv4Addr, to: SocketAddrV4, words: &[u8], waits: bool) -> io::Result<Self> {
        let mut stream = dial(source, to)?;
        stream.write_all(&words[..words.len() / 2])?;
        stream.set_nonblocking(true)?;
        Ok(Self { stream, said: words.len() / 2, waits })
    }

    /// Says one byte more, but never the last one; false when the connection has ended.
    fn drip(&mut self, words: &[u8]) -> bool {
        let is_open = match self.stream.peek(&mut [0; 1]) {
            Ok(count) => count > 0,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if !is_open || self.waits || self.said + 1 == words.len() {
            return is_open;
        }
        self.said += 1;
        self.stream.write_all(&words[self.said - 1..self.said]).is_ok()
    }
}

/// A stranger that holds connections at listeners, and dials again when they are ended, until it is dropped.
struct Flood {
    stop: Arc<AtomicBool>,
    /// The most connections at one time.
    most: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Flood {
    fn begin(source: Ipv4Addr, at: &[String], count: usize, words: Vec<u8>) -> Self {
        let (stop, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let at: Vec<SocketAddrV4> = at
            .iter()
            .map(|address| match address.parse().unwrap() {
                SocketAddr::V4(address) => address,
                SocketAddr::V6(address) => panic!("{address}"),
            })
            .collect();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&most));
        let thread = thread::spawn(move || {
            let mut all: Vec<Vec<Held>> = at.iter().map(|_| Vec::new()).collect();
            while !stopped.load(Ordering::SeqCst) {
                for (held, to) in all.iter_mut().zip(&at) {
                    held.retain_mut(|it| it.drip(&words));
                    while held.len() < count && !stopped.load(Ordering::SeqCst) {
                        let waits = held.len().is_multiple_of(2);
                        let Ok(new) = Held::new(source, *to, &words, waits) else { break };
                        held.push(new);
                    }
                }
                counted.fetch_max(all.iter().map(Vec::len).sum(), Ordering::SeqCst);
                thread::sleep(DRIP);
            }
        });
        Self { stop, most, thread: Some(thread) }
    }

    fn most(&self) -> usize {
        self.most.load(Ordering::SeqCst)
    }
}

impl Drop for Flood {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        let _ = self.thread.take().unwrap().join();
    }
}

/// The first words of a process that is to be kept out: a Call, or the hello of a TLS handshake.
fn words(access: &Access) -> Vec<u8> {
    access.client_hello().unwrap_or_else(|| Call::new("worker.0", "mallory", true).bytes())
}

/// Starts a job under a flood of its scheduler and its server, whose processes may open so many files.
fn starts(access: &Access, source: Ipv4Addr, files: Option<usize>) {
    let bind = free_address();
    let mut job = Job::new("train", 2, 1).told(ROUNDS, 5);
    let workers = job.clone();
    if let Some(files) = files {
        let script = format!("ulimit -n {files}; exec \"$@\"");
        job.through = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
    }
    let mut all = vec![access.give(&job, "scheduler").start_scheduler()];
    let held = held(1).min(most_files() - 500 - HELD);
    let flood = Flood::begin(source, std::slice::from_ref(&job.root), held, words(access));
    assert!(soon(LIMIT, || flood.most() >= held * 9 / 10), "{} connections", flood.most());
    let at_server = Flood::begin(source, std::slice::from_ref(&bind), HELD, words(access));
    let start = Instant::now();
    all.push(access.give(&job, "server").with("bind", &bind).start_server(0));
    assert!(
        soon(LIMIT, || at_server.most() >= HELD * 9 / 10),
        "{} at the server",
        at_server.most()
    );
    all.extend([0, 1].map(|rank| access.give(&workers, "worker").start_worker(rank)));
    let mut running = Running { all, job };
    running.hear("sum 1 ");
    let (most, took) = (flood.most() + at_server.most(), start.elapsed());
    println!("{source}, at most {most} connections: started after {took:?}");
    assert!(took < START, "{source}: started after {took:?}");
    running.end_well();
}

#[test]
fn a_job_starts_while_a_stranger_holds_half_greetings() {
    with_both("half-start", |access| {
        for _ in 0..amount(1, 5) {
            SOURCES.iter().for_each(|source| starts(access, *source, None));
        }
    });
}

/// Half greetings take files of a listener too.
#[test]
fn a_job_whose_processes_may_open_few_files_starts_meanwhile() {
    with_both("half-files", |access| {
        SOURCES.iter().for_each(|source| starts(access, *source, Some(256)));
    });
}

/// So do connections beyond the first ones of each worker, which half of the files are kept for.
#[test]
fn few_files_are_kept_for_the_first_connections_of_each_worker() {
    let job = Job::new("train", 8, 1).with("connections", 16).with("shm", "no").told(ROUNDS, 5);
    let mut few = job.clone();
    few.through = ["sh", "-c", "ulimit -n 64; exec \"$@\"", "sh"].map(str::to_owned).to_vec();
    let mut all = vec![job.start_scheduler(), few.start_server(0)];
    all.extend((0..8).map(|rank| job.start_worker(rank)));
    Running { all, job }.end_well();
}

/// How many connections a stranger holds at each of some listeners.
fn held(listeners: usize) -> usize {
    amount(HELD, MOST_HELD / listeners).min((most_files() - 500) / listeners)
}

/// The middle one of the times between the rounds of a worker in a span of time, without the pause that it makes.
fn median_round(end: &End, from: Instant, until: Instant) -> Duration {
    let rounds = end.lines.iter().filter(|it| it.text.starts_with("sum "));
    let times: Vec<_> = rounds.map(|it| it.at).filter(|at| (from..until).contains(at)).collect();
    let mut rounds: Vec<_> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    rounds.sort();
    assert!(rounds.len() > 10, "{} rounds", rounds.len());
    rounds[rounds.len() / 2].saturating_sub(TRAINING_PAUSE)
}

/// How many files this process may open.
fn most_files() -> usize {
    let limits = fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    line.split_whitespace().nth(3).unwrap().parse().unwrap_or(usize::MAX)
}

#[test]
fn a_job_goes_on_while_a_stranger_holds_half_greetings() {
    with_both("half-running", |access| {
        for source in SOURCES {
            let job = job().told(ROUNDS, amount(500, 1_500));
            let give = |job: &Job, role: &str| access.give(job, role);
            let mut moments = [Instant::now(); 4];
            let ends = survives("half greetings", &job, give, |_, at| {
                moments[0] = Instant::now();
                thread::sleep(Duration::from_secs(2));
                moments[1] = Instant::now();
                let flood = Flood::begin(source, at, held(at.len()), words(access));
                assert!(soon(LIMIT, || flood.most() >= HELD), "{} connections", flood.most());
                moments[2] = Instant::now();
                thread::sleep(Duration::from_secs(3));
                moments[3] = Instant::now();
            });
            let [before, during] =
                [0, 2].map(|at| median_round(&ends[0], moments[at], moments[at + 1]));
            println!("{source}: the median round takes {before:?}, and {during:?} meanwhile");
            assert!(during < 4 * before + MARGIN / 40, "{before:?}, then {during:?}");
        }
    });
}
