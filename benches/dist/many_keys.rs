//! `--many-keys`: one worker and one server whose job has very many small keys, and with `--large-key` one
//! large key: seconds of each call, processor seconds, and resident memory for each key.

use std::io;
use std::time::Instant;

use kvstore::{Key, Store, Tensor, TensorMut};

use crate::common::wait::free_address;
use crate::ours::{Way, config, spawn};
use crate::page;
use crate::processes::{Processes, resident};

/// Number of keys, and of the elements of each, float32.
const MANY: (usize, usize) = (1_000_000, 4);
/// The same of the large key: 4 GB.
const LARGE: (usize, usize) = (1, 1_000_000_000);

/// Upper limits of a job of many keys: of its calls in seconds on two processors, and of the memory of a
/// key in bytes.
const LIMITS: [(&str, f64); 6] = [
    ("init", 6.0),
    ("push", 1.5),
    ("pull", 1.5),
    ("remove", 4.0),
    ("bytes a key on the server", 1000.0),
    ("bytes a key on the worker", 700.0),
];
/// Rounds of a push and a pull.
const ROUNDS: usize = 3;
/// Upper limit of the time of an init of a large key over that of a push.
const INIT_OVER_PUSH: f64 = 3.0;

pub fn many() -> io::Result<()> {
    let (keys, elements) = if page::quick() { (10_000, MANY.1) } else { MANY };
    let figures = run(keys, elements)?;
    println!("{keys} keys of {elements} elements, over TCP\n");
    println!("| figure | value | limit | value / limit |\n|---|---:|---:|---:|");
    for (name, limit) in LIMITS {
        let value = figures.of(name);
        println!("| {name} | {value:.2} | {limit} | {:.2} |", value / limit);
    }
    println!("\nprocessor seconds: {}", figures.processor());
    Ok(())
}

pub fn large() -> io::Result<()> {
    let (keys, elements) = if page::quick() { (1, LARGE.1 / 100) } else { LARGE };
    let figures = run(keys, elements)?;
    let (init, push) = (figures.of("init"), figures.of("push"));
    println!("one key of {elements} elements: init {init:.2} s, push {push:.2} s");
    println!("init / push {:.2}, limit {INIT_OVER_PUSH}", init / push);
    Ok(())
}

/// Values by name; of calls also the processor seconds of all processes.
struct Figures(Vec<(&'static str, f64, f64)>);

impl Figures {
    /// The value with this name, or the median of several.
    fn of(&self, name: &str) -> f64 {
        let named = self.0.iter().filter(|it| it.0 == name).map(|it| it.1);
        let mut named: Vec<f64> = named.collect();
        named.sort_by(f64::total_cmp);
        named.get(named.len() / 2).copied().unwrap_or(f64::NAN)
    }

    fn processor(&self) -> String {
        let calls = self.0.iter().filter(|it| it.2 > 0.0);
        calls.map(|(name, _, cpu)| format!("{name} {cpu:.2}")).collect::<Vec<_>>().join(", ")
    }

    fn time(
        &mut self,
        name: &'static str,
        processes: &Processes,
        call: impl FnOnce() -> kvstore::Result<()>,
    ) -> io::Result<()> {
        let (start, before) = (Instant::now(), processes.cpu_s());
        call().map_err(io::Error::other)?;
        self.0.push((name, start.elapsed().as_secs_f64(), processes.cpu_s() - before));
        Ok(())
    }
}

fn run(count: usize, elements: usize) -> io::Result<Figures> {
    let (root, way) = (free_address(), Way::Tcp);
    let mut processes = Processes::and_this();
    spawn(&mut processes, "scheduler", &root, way)?;
    let server = spawn(&mut processes, "server", &root, way)?;
    let mut config = config("worker", &root, "tcp");
    config.set("timeout_ms", "600000").map_err(io::Error::other)?;
    let store = Store::open("dist_sync", &config).map_err(io::Error::other)?;
    let keys: Vec<Key> = (0..count as u64).map(Key::from).collect();
    let value = vec![1.5f32; count * elements];
    let mut out = vec![0.5f32; count * elements];
    let values: Vec<Tensor<'_>> = value.chunks(elements).map(Tensor::from).collect();
    let mut outs: Vec<TensorMut<'_>> = out.chunks_mut(elements).map(TensorMut::from).collect();
    let memory = || (resident(server), resident(std::process::id()));
    let (before, mut figures) = (memory(), Figures(Vec::new()));
    figures.time("init", &processes, || store.init_list(&keys, &values))?;
    for _ in 0..ROUNDS {
        figures.time("push", &processes, || store.push_list(&keys, &values))?;
        figures.time("pull", &processes, || store.pull_list(&keys, &mut outs))?;
    }
    let after = memory();
    figures.time("remove", &processes, || store.remove(&keys))?;
    drop(outs);
    assert!(out == value, "a pull gives what was pushed");
    let of_key = |after: u64, before: u64| after.saturating_sub(before) as f64 / count as f64;
    figures.0.push(("bytes a key on the server", of_key(after.0, before.0), 0.0));
    figures.0.push(("bytes a key on the worker", of_key(after.1, before.1), 0.0));
    Ok(figures)
}
