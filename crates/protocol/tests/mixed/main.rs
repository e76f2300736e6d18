//! Jobs of processes of two releases: this build, and one with the feature `wire-next`, whose messages have one
//! more field, which sends one more kind of messages, has one more term and one more feature. Each process runs the
//! machines of its build, and frames pass between them as bytes, over a network that loses, duplicates and reorders
//! them. All results are those of one release.
#![allow(clippy::unwrap_used, reason = "a failed test")]

mod network;

/// Processes of this build.
mod plain {
    use kvstore_protocol as protocol;

    include!("process.rs");
}

/// Processes of the later release.
mod next {
    use kvstore_protocol_next as protocol;

    include!("process.rs");
}

use network::Network;

const WORKERS: u32 = 2;
const SERVERS: u32 = 2;
const SCHEDULER: &str = "scheduler";
/// The bit of the mask of features that docs/internals/wire.md keeps for the build with `wire-next`.
const FEATURE: u64 = 1 << 63;
/// The features of both builds.
const SHARED: u64 = 63;
/// Maximum virtual time of a job, in microseconds.
const END: u64 = 120_000_000;

/// Role and rank of a process, which its address names.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seat {
    Scheduler,
    Worker(u32),
    Server(u32),
}

impl Seat {
    fn all() -> Vec<Self> {
        let workers = (0..WORKERS).map(Self::Worker);
        workers.chain((0..SERVERS).map(Self::Server)).chain([Self::Scheduler]).collect()
    }

    fn address(self) -> String {
        match self {
            Self::Scheduler => SCHEDULER.into(),
            Self::Worker(rank) => format!("worker-{rank}"),
            Self::Server(rank) => format!("server-{rank}"),
        }
    }

    /// Whether two processes have a stream.
    fn exchanges_with(self, other: Self) -> bool {
        let worker = |seat| matches!(seat, Self::Worker(_));
        let server = |seat| matches!(seat, Self::Server(_));
        let data = worker(self) && server(other) || server(self) && worker(other);
        data || (self == Self::Scheduler) != (other == Self::Scheduler)
    }
}

/// What a process has ignored.
#[derive(Debug, Default, PartialEq, Eq)]
struct Ignored {
    kinds: u64,
    fields: u64,
    /// Messages that no correct process sends, as texts.
    faults: Vec<String>,
}

/// A process of any build.
trait Process {
    /// Takes a frame.
    fn receive(&mut self, frame: &[u8], now: u64);

    /// Handles timers and actions, makes the next calls of the program; gives the frames to send, and their
    /// receivers.
    fn step(&mut self, now: u64) -> Vec<(String, Vec<u8>)>;

    fn wake_at(&self) -> u64;

    /// The result of the job for the process, once it has ended.
    fn end(&self) -> Option<Result<(), String>>;

    fn ignored(&mut self, now: u64) -> Ignored;

    /// The mask of features of a process that this one has a stream to, once the job has started.
    fn features(&self, of: Seat) -> Option<u64>;
}

/// Starts a process of this build, or of the later release.
fn start(seat: Seat, is_next: bool, now: u64) -> Box<dyn Process> {
    if is_next { next::start(seat, now) } else { plain::start(seat, now) }
}

struct Job {
    network: Network,
    /// Processes, and whether each is of the later release.
    processes: Vec<(Seat, bool, Box<dyn Process>)>,
    /// What ended processes have ignored.
    ended: Vec<(Seat, bool, Ignored)>,
    /// Masks of features that members have shown each other.
    compared: u64,
    /// Another scheduler runs, whose features members do not know at once.
    taken_over: bool,
}

impl Job {
    fn new(seed: u64, is_next: impl Fn(usize) -> bool) -> Self {
        let seats = Seat::all().into_iter().enumerate();
        let processes = seats.map(|(at, seat)| (seat, is_next(at), start(seat, is_next(at), 1)));
        let processes = processes.collect();
        Self {
            network: Network::new(seed),
            processes,
            ended: Vec::new(),
            compared: 0,
            taken_over: false,
        }
    }

    /// Runs until all processes have ended; a scheduler of the other release takes over at a moment, if there is
    /// one.
    fn run(mut self, takes_over_at: Option<u64>) -> Self {
        let mut takes_over_at = takes_over_at.unwrap_or(u64::MAX);
        while !self.processes.is_empty() {
            let wake = self.processes.iter().map(|(.., process)| process.wake_at()).min();
            let now = self.network.advance(wake.unwrap_or(u64::MAX).min(takes_over_at));
            assert!(now < END, "the job does not end");
            if now >= takes_over_at {
                takes_over_at = u64::MAX;
                self.taken_over = true;
                let of = self.processes.iter_mut().find(|(seat, ..)| *seat == Seat::Scheduler);
                let (seat, is_next, process) = of.unwrap();
                *is_next = !*is_next;
                *process = start(*seat, *is_next, now);
            }
            for (to, frame) in self.network.arrived() {
                let to = self.processes.iter_mut().find(|(seat, ..)| seat.address() == to);
                if let Some((.., process)) = to {
                    process.receive(&frame, now);
                }
            }
            for (_, _, process) in &mut self.processes {
                process
                    .step(now)
                    .into_iter()
                    .for_each(|(to, frame)| self.network.send(&to, &frame));
            }
            if !self.taken_over {
                self.compare_features();
            }
            for (seat, is_next, mut process) in std::mem::take(&mut self.processes) {
                match process.end() {
                    Some(end) => {
                        assert_eq!(end, Ok(()), "{}", seat.address());
                        self.ended.push((seat, is_next, process.ignored(now)));
                    }
                    None => self.processes.push((seat, is_next, process)),
                }
            }
        }
        self
    }

    /// Each process knows the features of its peers.
    fn compare_features(&mut self) {
        for (of, is_next, _) in &self.processes {
            for (seat, _, process) in &self.processes {
                let mask = process.features(*of).filter(|_| seat.exchanges_with(*of));
                let Some(mask) = mask else { continue };
                let expected = if *is_next { FEATURE | SHARED } else { SHARED };
                assert_eq!(mask, expected, "{} of {}", seat.address(), of.address());
                self.compared += 1;
            }
        }
    }
}

#[test]
fn processes_of_two_releases_make_up_a_job() {
    let seats = Seat::all().len();
    for mask in 0..1 << seats {
        let job = Job::new(mask, |at| mask >> at & 1 == 1).run(None);
        assert!(job.compared > 0, "no member has seen the features of another one");
        for (seat, is_next, ignored) in &job.ended {
            let name = seat.address();
            assert_eq!(ignored.faults, Vec::<String>::new(), "{name} in job {mask}");
            let hears_later =
                job.ended.iter().any(|(other, is_next, _)| *is_next && seat.exchanges_with(*other));
            let skips = hears_later && !is_next;
            assert_eq!(ignored.kinds > 0, skips, "{name} in job {mask}: {ignored:?}");
            assert_eq!(ignored.fields > 0, skips, "{name} in job {mask}: {ignored:?}");
        }
    }
}

#[test]
fn a_scheduler_of_another_release_takes_over() {
    for mask in 0..1 << Seat::all().len() {
        // The scheduler dies soon after the start of the job.
        let job = Job::new(mask, |at| mask >> at & 1 == 1).run(Some(20_000));
        assert!(job.taken_over, "the job has ended before");
        for (seat, _, ignored) in &job.ended {
            assert_eq!(ignored.faults, Vec::<String>::new(), "{} in job {mask}", seat.address());
        }
    }
}
