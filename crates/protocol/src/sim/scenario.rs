//! Scenario of a seed: the size of the job, the network, and the trouble.

use crate::job::{Limits, MS, Mode, OnLoss, SumOrder, Time};
use crate::testing::Random;

/// Fault of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Trouble {
    /// Only the network is unreliable.
    Network,
    /// A worker dies; the job continues, or fails.
    WorkerDies,
    ServerDies,
    /// The scheduler dies and is restarted.
    SchedulerRestarts,
    /// As `SchedulerRestarts`, and a worker dies at about that time.
    SchedulerAndWorker,
    /// A process stops, or two are cut off from each other, for less than the lease.
    ShortSilence,
    /// A worker stops for longer than the lease, and resumes.
    WorkerSleeps,
    /// A worker and a server are cut off from each other for longer than the lease.
    WorkerCutOff,
    /// All members are cut off from the scheduler for a while, or it stops; rounds continue.
    SchedulerCutOff,
}

impl Trouble {
    pub(super) const ALL: [Self; 9] = [
        Self::Network,
        Self::WorkerDies,
        Self::ServerDies,
        Self::SchedulerRestarts,
        Self::SchedulerAndWorker,
        Self::ShortSilence,
        Self::WorkerSleeps,
        Self::WorkerCutOff,
        Self::SchedulerCutOff,
    ];
}

/// By the remainder of a seed.
const TROUBLES: [Trouble; 11] = [
    Trouble::Network,
    Trouble::WorkerDies,
    Trouble::ServerDies,
    Trouble::SchedulerRestarts,
    Trouble::Network,
    Trouble::SchedulerAndWorker,
    Trouble::ShortSilence,
    Trouble::SchedulerCutOff,
    Trouble::WorkerSleeps,
    Trouble::WorkerCutOff,
    Trouble::WorkerDies,
];

#[derive(Debug, Clone)]
pub(super) struct Scenario {
    pub(super) seed: u64,
    pub(super) trouble: Trouble,
    pub(super) limits: Limits,
    /// Rates of loss, duplication and corruption of frames, of 1,000.
    pub(super) loss: u64,
    pub(super) doubling: u64,
    pub(super) damage: u64,
    pub(super) latency: Time,
    pub(super) jitter: Time,
    /// Average time until the next connection is lost; 0: none is.
    pub(super) connection_lasts: Time,
    /// Rate of pushes that are delivered again outside of their stream, of 1,000.
    pub(super) again: u64,
    /// Whether the processes request their ranks.
    pub(super) own_ranks: bool,
    pub(super) keys: u64,
    pub(super) phases: u64,
    /// The last worker is a hostile reader.
    pub(super) reader: bool,
}

impl Scenario {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x5eed);
        let kinds = TROUBLES.len() as u64;
        let trouble = TROUBLES[usize::try_from(seed % kinds).unwrap()];
        let on_loss = match trouble {
            Trouble::WorkerDies if random.one_in(2) => OnLoss::Fail,
            _ => OnLoss::Continue,
        };
        let mode = match random.below(6) {
            0 => Mode::Async { staleness: None },
            1 => Mode::Async { staleness: Some(random.below(3)) },
            _ => Mode::Sync,
        };
        let limits = Limits {
            job: seed,
            workers: u32::try_from(1 + random.below(5)).unwrap(),
            servers: u32::try_from(1 + random.below(4)).unwrap(),
            mode,
            on_loss,
            peer_timeout: 5_000 * MS,
            start_timeout: 60_000 * MS,
            embedded: false,
            block_elements: 4,
            slice_bytes: 16 << random.below(3),
            hold_bytes: [40, 200, 1_000, 100_000][random.index(4)],
            max_rounds_ahead: 1 + random.below(3),
            sum_order: if seed % 2 == 1 { SumOrder::Tree } else { SumOrder::Linear },
            window_frames: usize::try_from(1 + random.below(32)).unwrap(),
            window_bytes: 16 << random.below(8),
            one_way_at_a_time: random.one_in(2),
        };
        // Low enough that six heartbeats in a row are never lost.
        let bad = random.below(2);
        Self {
            seed,
            trouble,
            limits,
            loss: bad * random.below(30),
            doubling: bad * random.below(200),
            damage: bad * random.below(10),
            latency: 20 + random.below(3_000),
            jitter: 1 + bad * random.below(20 * MS),
            connection_lasts: connection_lasts(seed),
            again: random.below(2) * 100,
            own_ranks: random.one_in(2),
            keys: 1 + random.below(4),
            phases: 2 + random.below(6),
            reader: false,
        }
    }

    /// A job with an additional reader.
    pub(super) fn with_reader(seed: u64) -> Self {
        let mut scenario = Self::new(seed);
        scenario.limits.workers += 1;
        scenario.reader = true;
        scenario
    }
}

/// In every other job connections are lost, each after 50 ms to 3.2 s on average.
fn connection_lasts(seed: u64) -> Time {
    let mut random = Random::new(seed ^ 0x10_57);
    random.below(2) * ((50 * MS) << random.below(7))
}
