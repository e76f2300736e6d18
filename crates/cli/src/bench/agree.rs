//! Coordination of the workers of a benchmark job: they exchange numbers through the store. Also
//! called: all-gather.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use kvstore::{Deadline, ErrorKind, Key, Store, Tensor, TensorMut};

use super::asked::BenchWork;
use super::case::{BenchOptimizer, MOMENTUM};

/// Poll interval for the messages of other workers.
const STEP: Duration = Duration::from_millis(5);

pub(crate) struct BenchGroup<'a> {
    pub(crate) store: &'a Store,
    pub(crate) rank: usize,
    pub(crate) workers: usize,
    /// Whether each push is applied by itself.
    pub(crate) is_async: bool,
    timeout: Option<Duration>,
    /// Sign of the first push of a key, merged into its zeros.
    sign: f64,
    told: u64,
    used: u64,
}

/// A number of at most 53 bits, which a float64 has exactly.
#[allow(clippy::cast_precision_loss, reason = "it has 53 bits")]
pub(crate) fn number_of(text: &str) -> f64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    (hasher.finish() >> 11) as f64
}

impl<'a> BenchGroup<'a> {
    /// With the timeout of the store's calls in milliseconds; negative is none.
    pub(crate) fn new(store: &'a Store, timeout_ms: Option<i64>) -> Self {
        let timeout = timeout_ms.and_then(|ms| u64::try_from(ms).ok()).map(Duration::from_millis);
        let number = |number: i32| usize::try_from(number).unwrap_or(0);
        Self {
            store,
            rank: number(store.rank()),
            workers: number(store.num_workers()).max(1),
            is_async: store.kind().name().ends_with("async"),
            timeout,
            sign: 1.0,
            told: 0,
            used: 0,
        }
    }

    /// Waits for all workers, however slow one is: the job itself detects a lost worker.
    pub(crate) fn barrier(&self) -> Result<()> {
        Ok(self.store.barrier(Deadline::Never)?)
    }

    /// Keys that no worker has used.
    pub(crate) fn new_keys(&mut self, count: usize) -> Vec<Key> {
        let first = self.used;
        self.used += count as u64;
        (first..self.used).map(Key::from).collect()
    }

    /// Ensures that all workers run this command, and measure equal work; returns the machine of
    /// each. Before it has succeeded, the job may be another user's: only keys with names of our
    /// own are touched.
    pub(crate) fn meet(&mut self, work: &BenchWork) -> Result<Vec<u64>> {
        let machine = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let told = self.exchange(&[number_of(&work.text()), number_of(&machine)]);
        let told = told.map_err(|error| {
            let known = error.downcast_ref::<kvstore::Error>().map(kvstore::Error::kind);
            if known != Some(ErrorKind::Timeout) && !error.is::<io::Error>() {
                return error;
            }
            anyhow!("{error}; every worker of the job has to be `kvstore bench`")
        })?;
        let differs = |it: &Vec<f64>| it[0].to_bits() != told[self.rank][0].to_bits();
        if let Some(rank) = told.iter().position(differs) {
            bail!(
                "worker {rank} was told to measure something else, or is of another release; start \
                 all with the same command"
            );
        }
        Ok(told.iter().map(|it| it[1].to_bits()).collect())
    }

    /// Sets how pushes merge from now on.
    pub(crate) fn set_rule(&mut self, optimizer: BenchOptimizer) -> Result<()> {
        match optimizer {
            BenchOptimizer::None => return Ok(()),
            BenchOptimizer::Sgd => self.store.set_optimizer("sgd", "learning_rate=1")?,
            BenchOptimizer::Momentum => {
                let options = format!("learning_rate=1,momentum={MOMENTUM}");
                self.store.set_optimizer("momentum", &options)?;
            }
        }
        self.sign = -1.0;
        Ok(())
    }

    /// Sends the numbers of each worker to every worker, by rank; all lists are equally long.
    ///
    /// Each worker has a key that only it pushes to; where a round needs the other workers' pushes
    /// too, they are zeros. The first exchange has no barrier: a foreign job may be at one of its
    /// own.
    pub(crate) fn exchange(&mut self, mine: &[f64]) -> Result<Vec<Vec<f64>>> {
        if self.workers == 1 {
            return Ok(vec![mine.to_vec()]);
        }
        // No worker waits for a slow one inside of calls, whose time is limited.
        if self.told > 0 {
            self.barrier()?;
        }
        let serial = self.told;
        self.told += 1;
        let name = |rank| self.store.intern(&format!("kvstore bench {serial} {rank}"));
        let keys = (0..self.workers).map(name).collect::<kvstore::Result<Vec<Key>>>()?;
        // The first number marks a list whose worker has pushed.
        let mut lists = vec![vec![0.0; 1 + mine.len()]; self.workers];
        self.store.init_list(&keys, &views(&lists))?;
        lists[self.rank] = [&[1.0], mine].concat();
        if self.is_async {
            self.store.push(keys[self.rank], lists[self.rank].as_slice())?;
        } else {
            self.store.push_list(&keys, &views(&lists))?;
        }
        self.listen(&keys, &mut lists)?;
        let words = |list: &Vec<f64>| list[1..].iter().map(|it| it * self.sign).collect();
        Ok(lists.iter().map(words).collect())
    }

    /// Pulls until all workers have pushed: in a job with rounds, once.
    fn listen(&self, keys: &[Key], lists: &mut [Vec<f64>]) -> Result<()> {
        let start = Instant::now();
        loop {
            let mut outs: Vec<TensorMut<'_>> =
                lists.iter_mut().map(|it| it.as_mut_slice().into()).collect();
            self.store.pull_list(keys, &mut outs)?;
            drop(outs);
            let Some(silent) = lists.iter().position(|list| list[0] == 0.0) else {
                return Ok(());
            };
            if self.timeout.is_some_and(|timeout| start.elapsed() > timeout) {
                let text = format!("worker {silent} has not answered in time");
                bail!(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            thread::sleep(STEP);
        }
    }
}

fn views(lists: &[Vec<f64>]) -> Vec<Tensor<'_>> {
    lists.iter().map(|it| it.as_slice().into()).collect()
}
