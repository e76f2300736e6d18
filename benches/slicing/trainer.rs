//! One process of a job.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use kvstore::{Config, Deadline, Key, Pending, Result, Store};

use crate::wire::{FAR, NEAR};
use crate::{SLOWER, root};
use kvstore_protocol::testing::{Net, resnet_50, vgg_19};

/// The first one starts without gradients.
const ITERATIONS: u32 = 5;

/// Elements from which on MXNet splits an array over all servers.
const SPLIT: u64 = 1_000_000;
const SERVERS: u64 = 2;

const WAIT: Duration = Duration::from_secs(120);

pub fn run(role: &str, rank: &str, net: &str, way: &str) -> io::Result<()> {
    let net = if net == "VGG-19" { vgg_19() } else { resnet_50() };
    let store = Store::open("dist_sync", &config(role, rank, way)).map_err(io::Error::other)?;
    if role != "worker" {
        return store.serve().map_err(io::Error::other);
    }
    let seconds = train(&store, &net, way).map_err(io::Error::other)?;
    println!("{seconds}");
    store.barrier(WAIT).map_err(io::Error::other)?;
    store.close(WAIT).map_err(io::Error::other)
}

fn config(role: &str, rank: &str, way: &str) -> Config {
    let mut config = Config::new();
    // Whole arrays are on their way for long, and with them everything behind them.
    let (slice, hold) = if way == "whole" { (1 << 30, 4u64 << 30) } else { (256 << 10, 1 << 30) };
    for (name, value) in [
        ("role", role),
        ("rank", rank),
        ("root", &root()),
        ("num_workers", "2"),
        ("num_servers", "2"),
        ("shm", "no"),
        ("insecure", "yes"),
        ("bind", if rank == "0" { NEAR } else { FAR }),
        ("peer_timeout_ms", "60000"),
        ("slice_bytes", &slice.to_string()),
        ("hold_bytes", &hold.to_string()),
    ] {
        config.set(name, value).expect("an option");
    }
    config
}

/// A layer: its keys and their sizes, and how long it takes.
struct Stage {
    keys: Vec<(Key, usize)>,
    priority: i32,
    forward: Duration,
}

fn stages(net: &Net, way: &str) -> Vec<Stage> {
    let (mut stages, mut key) = (Vec::new(), 0u64);
    for (layer, index) in net.layers.iter().zip(0..) {
        let mut keys = Vec::new();
        for elements in &layer.arrays {
            let parts = if way == "whole" && *elements >= SPLIT { SERVERS } else { 1 };
            for part in 0..parts {
                let count = elements * (part + 1) / parts - elements * part / parts;
                keys.push((Key::from(key), count as usize));
                key += 1;
            }
        }
        let priority = if way == "urgent" { -index } else { 0 };
        let forward = Duration::from_nanos(net.forward(layer) * SLOWER);
        stages.push(Stage { keys, priority, forward });
    }
    stages
}

/// Gradients go as soon as a layer's backward pass is through; a layer's forward pass waits for its
/// weights. Gives the seconds of an iteration, without the factor.
fn train(store: &Store, net: &Net, way: &str) -> Result<f64> {
    let stages = stages(net, way);
    let sizes = || stages.iter().flat_map(|stage| &stage.keys);
    for (key, count) in sizes() {
        store.init(*key, &vec![0.0f32; *count])?;
    }
    let mut spare: Vec<_> =
        stages.iter().map(|it| it.keys.iter().map(|key| buffers(key.1)).collect()).collect();
    store.barrier(WAIT)?;
    let (mut on_the_way, mut clock, mut began) = (Vec::new(), Clock::new(), Instant::now());
    for iteration in 0..=ITERATIONS {
        if iteration == 1 {
            began = Instant::now();
        }
        for (stage, pending) in stages.iter().zip(std::mem::take(&mut on_the_way)) {
            spare.push(wait(pending)?);
            clock.pass(stage.forward);
        }
        if iteration == ITERATIONS {
            break;
        }
        let mut buffers = std::mem::take(&mut spare);
        for stage in stages.iter().rev() {
            clock.pass(stage.forward * 2);
            on_the_way.push(exchange(store, stage, buffers.pop().unwrap_or_default())?);
        }
        on_the_way.reverse();
    }
    Ok((began.elapsed() / (ITERATIONS - 1) / SLOWER as u32).as_secs_f64())
}

/// The gradient of an array, and its weights.
type Buffers = (Vec<f32>, Vec<f32>);

type Exchange<'a> = Vec<(Pending<'a, f32>, Pending<'a, f32>)>;

fn buffers(count: usize) -> Buffers {
    (vec![1.0; count], vec![0.0; count])
}

fn exchange<'a>(store: &'a Store, stage: &Stage, buffers: Vec<Buffers>) -> Result<Exchange<'a>> {
    let pairs = stage.keys.iter().zip(buffers);
    let start = pairs.map(|((key, _), (gradient, weights))| {
        let push = store.push_owned(*key, gradient, stage.priority)?;
        Ok((push, store.pull_owned(*key, weights, stage.priority)?))
    });
    start.collect()
}

fn wait(exchange: Exchange<'_>) -> Result<Vec<Buffers>> {
    let deadline = Deadline::from(WAIT);
    let end =
        exchange.into_iter().map(|(push, pull)| Ok((push.wait(deadline)?, pull.wait(deadline)?)));
    end.collect()
}

/// Sleeps exactly: what one sleep takes too long, the next ones make up.
struct Clock(Instant);

impl Clock {
    fn new() -> Self {
        Self(Instant::now())
    }

    fn pass(&mut self, time: Duration) {
        const SLACK: Duration = Duration::from_millis(2);
        // Whoever waited for weights has lost that time.
        self.0 = self.0.max(Instant::now().checked_sub(SLACK).unwrap_or(self.0)) + time;
        thread::sleep(self.0.saturating_duration_since(Instant::now()));
    }
}
