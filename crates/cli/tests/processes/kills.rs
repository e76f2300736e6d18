//! Random deaths. A seed draws which process is hit, when, by which signal, and over which transport,
//! under which rule and which codec the job trains. Status, text and time of every process are checked,
//! and every value that a worker has seen, against a model that knows of no processes.
//!
//! `KV_TEST_SEED` repeats a run, `KV_TEST_KILLS` chooses the number of jobs.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use kvstore::{Config, Key, Store, Tensor};

use super::common::random::{self, Random};
use super::deaths::{check_leaving, is_missed};
use super::job::{End, Job, LIMIT, MARGIN, Process, Running, Turn, amount, soon};
use super::keys::{Connection, Keys};
use super::program::{CODEC, COUNT, PAUSE_MS, PROGRAM, ROUNDS, RULE, SMALL};

const PEER_TIMEOUT: Duration = Duration::from_secs(3);
/// Timeout of a job without a scheduler, and of the start.
const START_TIMEOUT: Duration = Duration::from_secs(5);
/// Latest moment of a signal: a job is at work by then.
const MOST_MS: usize = 1_200;
/// Jobs that run side by side; most of the time they wait.
const AT_ONCE: usize = 2;
/// Rounds of one job.
const TURNS: usize = 60;
const WORKERS: usize = 3;
const SERVERS: usize = 2;

/// What happens to the process that is hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blow {
    Kill,
    /// Stops for longer than the others wait for it, and wakes.
    LongStop,
    /// Stops for so short a time that no process is lost.
    ShortStop,
}

/// One job, and what happens to it.
#[derive(Debug)]
struct Drawn {
    /// Also has a reader, behind the workers.
    reader: bool,
    /// Index of the process that is hit: the scheduler, the servers, the workers, the reader.
    victim: usize,
    moment: Duration,
    blow: Blow,
    connection: Connection,
    goes_on: bool,
    rule: &'static str,
    codec: &'static str,
    count: usize,
}

impl Drawn {
    fn new(random: &mut Random) -> Self {
        let reader = random.below(3) == 0;
        Self {
            reader,
            victim: random.index(1 + SERVERS + WORKERS + usize::from(reader)),
            moment: Duration::from_millis(random.index(MOST_MS) as u64),
            blow: random.pick(&[Blow::Kill, Blow::Kill, Blow::LongStop, Blow::ShortStop]),
            connection: random.pick(&Connection::ALL),
            goes_on: random.below(2) == 0,
            rule: random.pick(&[
                "",
                "test rescale_grad=1",
                "sgd momentum=0.9",
                "adam epsilon=0.001",
            ]),
            codec: random.pick(&["", "fp16 ", "2bit threshold=0.25", "int8 "]),
            count: random.pick(&[1_000, 100_000, 500_000]),
        }
    }

    fn job(&self) -> Job {
        Job::new("modelled", WORKERS + usize::from(self.reader), SERVERS)
            .with("peer_timeout_ms", PEER_TIMEOUT.as_millis())
            .with("start_timeout_ms", START_TIMEOUT.as_millis())
            .with("on_worker_loss", if self.goes_on { "continue" } else { "fail" })
            .told(RULE, self.rule)
            .told(CODEC, self.codec)
            .told(COUNT, self.count)
            .told(ROUNDS, TURNS)
            .told(PAUSE_MS, 10)
    }

    fn start(&self, keys: &Keys) -> Running {
        let job = self.job();
        let of = |role: &str| self.connection.give(keys, &job, role);
        let mut all = vec![of("scheduler").start_scheduler()];
        all.extend((0..SERVERS).map(|rank| of("server").start_server(rank)));
        all.extend((0..WORKERS).map(|rank| of("worker").start_worker(rank)));
        if self.reader {
            let reader = of("reader").told("KV_ROLE", "reader").told(PROGRAM, "looks on");
            all.push(reader.start_worker(WORKERS));
        }
        Running { all, job }
    }

    /// The rank of the worker that is hit, if it is one that pushes.
    fn lost_worker(&self) -> Option<usize> {
        self.victim.checked_sub(1 + SERVERS).filter(|rank| *rank < WORKERS)
    }

    fn hits_reader(&self) -> bool {
        self.victim == 1 + SERVERS + WORKERS
    }

    fn hits_scheduler(&self) -> bool {
        self.victim == 0
    }

    /// The others end well, whatever happens to this one, once the job has started.
    fn harms_nobody(&self) -> bool {
        let harmless = self.hits_reader() || (self.lost_worker().is_some() && self.goes_on);
        self.blow == Blow::ShortStop || harmless
    }
}

/// What became of a job, for the summary.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    EndedWell,
    NotStarted,
    LossReported,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::EndedWell => "ended well",
            Self::NotStarted => "did not start",
            Self::LossReported => "ended with the loss",
        })
    }
}

/// Plays one job; gives what became of it.
fn play(drawn: &Drawn, keys: &Keys) -> Outcome {
    let mut running = drawn.start(keys);
    thread::sleep(drawn.moment);
    let files: Vec<String> = running.all.iter().flat_map(Process::shared_memory).collect();
    let victim = &mut running.all[drawn.victim];
    let name = victim.name.clone();
    let hit = Instant::now();
    if !victim.has_ended() {
        strike(victim, drawn.blow);
    }
    let ends = running.end(START_TIMEOUT + LIMIT);
    let mut outcome = Outcome::EndedWell;
    for end in &ends {
        let own = if end.name == name { check_victim(drawn, end) } else { None };
        let own =
            own.or_else(|| (end.name != name).then(|| check_survivor(drawn, end, &name, hit)));
        outcome = outcome.max(own.unwrap_or(Outcome::EndedWell));
    }
    let model = Model::new(drawn);
    ends.iter().filter(|end| end.name.starts_with("worker")).for_each(|end| model.check(end));
    let gone = || files.iter().all(|file| !Path::new(file).exists());
    assert!(soon(Duration::from_secs(1), gone), "left over: {files:?}");
    outcome
}

fn strike(victim: &mut Process, blow: Blow) {
    if blow == Blow::Kill {
        return victim.kill();
    }
    victim.signal("STOP");
    thread::sleep(if blow == Blow::LongStop { PEER_TIMEOUT * 2 } else { PEER_TIMEOUT / 6 });
    victim.signal("CONT");
}

/// A process that was killed says nothing more; one that wakes learns that it is lost, if it is.
fn check_victim(drawn: &Drawn, end: &End) -> Option<Outcome> {
    match drawn.blow {
        Blow::Kill => {
            assert!(end.signal == Some(9) || end.status == Some(0), "{end:?}");
            None
        }
        Blow::ShortStop => Some(check_survivor(drawn, end, &end.name, end.at)),
        Blow::LongStop => {
            let text = end.text();
            let told =
                ["KV_ERR_EVICTED", "KV_ERR_PEER_LOST", "the job did not start", "did not come"];
            let knows = told.iter().any(|word| text.contains(word));
            assert!(end.status == Some(0) || knows, "{end:?}");
            None
        }
    }
}

/// What another process may say of the death of this one.
fn check_survivor(drawn: &Drawn, end: &End, dead: &str, hit: Instant) -> Outcome {
    let text = end.text();
    let name = if dead == "scheduler" { "the scheduler" } else { dead };
    let (promised, outcome) = match end.status {
        Some(0) => return Outcome::EndedWell,
        // A process that is gone before it has come has no address.
        Some(20 | 1) if text.contains("the job did not start") && drawn.blow != Blow::ShortStop => {
            let at = format!("{name} at 127.0.0.1:");
            // A scheduler that wakes names those that have given up meanwhile.
            let woke = drawn.hits_scheduler() && drawn.blow == Blow::LongStop;
            assert!(woke || is_missed(&text, name) || text.contains(&at), "{dead}: {end:?}");
            (START_TIMEOUT, Outcome::NotStarted)
        }
        Some(40 | 1) if !drawn.harms_nobody() => {
            let at = format!("{name} at ");
            assert!(text.contains(&at) && text.contains("PEER_LOST"), "{dead}: {end:?}");
            let limit = if drawn.hits_scheduler() { START_TIMEOUT } else { PEER_TIMEOUT };
            (limit, Outcome::LossReported)
        }
        _ => panic!("{dead} was hit, {drawn:?}: {end:?}"),
    };
    let at = end.said_at("error").unwrap_or(end.at);
    let took = at.saturating_duration_since(hit);
    assert!(took < promised + MARGIN, "{dead}: after {took:?}: {end:?}");
    check_leaving(end);
    outcome
}

/// The values of all rounds, for each number of rounds that the worker that is hit may have taken part
/// in: its loss counts from some round on, on each slice from a round of its own.
struct Model {
    /// By the last round of the lost worker: the bits after each round.
    by_end: Vec<Vec<u32>>,
}

impl Model {
    fn new(drawn: &Drawn) -> Self {
        let sent: Vec<Vec<f32>> = (0..WORKERS).map(|rank| decoded(drawn, rank)).collect();
        let lost = drawn.lost_worker().filter(|_| drawn.goes_on);
        let first = if lost.is_some() { 0 } else { TURNS };
        let by_end = (first..=TURNS).map(|end| values(drawn, &sent, lost, end)).collect();
        Self { by_end }
    }

    /// Every column of values that a worker has seen is one of the model's.
    fn check(&self, end: &End) {
        let lines: Vec<Vec<u32>> = end.lines.iter().filter_map(|it| bits(&it.text)).collect();
        for column in 0..lines.first().map_or(0, Vec::len) {
            let seen: Vec<u32> = lines.iter().map(|line| line[column]).collect();
            let right = self.by_end.iter().any(|values| values[..seen.len()] == seen);
            assert!(right, "{}, column {column}: {seen:x?}", end.name);
        }
    }
}

/// The words behind `bits`, and the number of the round.
fn bits(line: &str) -> Option<Vec<u32>> {
    let words = line.strip_prefix("bits ")?.split(' ').skip(1);
    Some(words.map(|word| u32::from_str_radix(word, 16).unwrap()).collect())
}

/// What a worker's pushes are after its codec: a local store with this codec and without a rule has it.
fn decoded(drawn: &Drawn, rank: usize) -> Vec<f32> {
    let store = Store::open("local", &Config::new()).unwrap();
    store.init(0u64, &[0.0f32; SMALL]).unwrap();
    if let Some((name, params)) = drawn.codec.split_once(' ') {
        store.set_compression(name, params).unwrap();
    }
    let mut out = [0.0f32; SMALL];
    let push = |_| {
        store.push(0u64, &[super::program::gradient(rank); SMALL]).unwrap();
        store.pull(0u64, &mut out).unwrap();
        out[0]
    };
    (0..TURNS).map(push).collect()
}

/// The bits of an element after each round, if the lost worker takes part until round `end`.
fn values(drawn: &Drawn, sent: &[Vec<f32>], lost: Option<usize>, end: usize) -> Vec<u32> {
    let store = Store::open("local", &Config::new()).unwrap();
    store.init(0u64, &[0.0f32; SMALL]).unwrap();
    if let Some((name, params)) = drawn.rule.split_once(' ') {
        store.set_optimizer(name, params).unwrap();
    }
    let mut out = [0.0f32; SMALL];
    let round = |round: usize| {
        let takes_part = |rank: &usize| lost != Some(*rank) || round < end;
        let pushes: Vec<[f32; SMALL]> =
            (0..WORKERS).filter(takes_part).map(|rank| [sent[rank][round]; SMALL]).collect();
        let tensors: Vec<Tensor<'_>> = pushes.iter().map(|it| it.as_slice().into()).collect();
        store.push_list(&vec![Key::from(0u64); tensors.len()], &tensors).unwrap();
        store.pull(0u64, &mut out).unwrap();
        out[0].to_bits()
    };
    (0..TURNS).map(round).collect()
}

fn jobs() -> usize {
    let told = std::env::var("KV_TEST_KILLS").ok().and_then(|text| text.parse().ok());
    told.unwrap_or_else(|| amount(20, 2_000))
}

#[test]
fn jobs_end_as_promised_whatever_is_hit_whenever() {
    let _turn = Turn::take();
    let mut random = random::from_environment("kills");
    let (jobs, met) = (jobs(), Mutex::new(BTreeMap::<String, usize>::new()));
    let keys = Keys::new("kills");
    keys.make_roles();
    thread::scope(|scope| {
        for turn in 0..AT_ONCE {
            let (mut random, met, keys) = (Random::new(random.next()), &met, &keys);
            scope.spawn(move || {
                for _ in (turn..jobs).step_by(AT_ONCE) {
                    let drawn = Drawn::new(&mut random);
                    let outcome = play(&drawn, keys);
                    let line = format!("{:?}, {:?}, {outcome}", drawn.connection, drawn.blow);
                    *met.lock().unwrap().entry(line).or_default() += 1;
                }
            });
        }
    });
    println!("{jobs} jobs: {:?}", met.lock().unwrap());
}
