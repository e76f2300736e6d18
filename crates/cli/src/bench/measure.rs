//! Measures one case: the store and the limit in turn, so that a noisy machine is noisy for both.

use std::time::Instant;

use anyhow::{Result, bail};
use kvstore::Key;

use super::agree::BenchGroup;
use super::asked::BenchWork;
use super::case::{BenchCase, BenchOp, BenchOptimizer, History, name};
use super::limit::Limit;
use super::values::BenchValues;

/// Uncounted warm-up rounds: they warm up memory and connections, and show how long one round
/// takes.
const FIRST: usize = 2;
const FEWEST: usize = 5;
/// Sums of so many rounds are exact in float32.
const MOST: usize = 10_000;
/// Number of alternations between the store and the limit.
const TURNS: usize = 9;

/// Seconds of rounds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) limit: f64,
}

pub(crate) struct Measured {
    pub(crate) case: BenchCase,
    pub(crate) rounds: usize,
    /// Of each worker.
    pub(crate) workers: Vec<Times>,
}

impl Measured {
    /// The median of the workers.
    pub(crate) fn median(&self, what: impl Fn(&Times) -> f64) -> f64 {
        let mut all: Vec<f64> = self.workers.iter().map(what).collect();
        all.sort_by(f64::total_cmp);
        quantile(&all, 0.5)
    }

    /// The medians of the workers, and the slowest p99.
    pub(crate) fn overall(&self) -> Times {
        Times {
            p50: self.median(|times| times.p50),
            p99: self.workers.iter().map(|times| times.p99).fold(0.0, f64::max),
            limit: self.median(|times| times.limit),
        }
    }

    /// Bytes that a worker moves in a second, 10^9 of them, when a round takes so many seconds.
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    pub(crate) fn gb_per_s(&self, seconds: f64) -> f64 {
        self.case.op.ways() * self.case.bytes() as f64 / seconds / 1e9
    }
}

/// A case at work.
struct BenchRun<'a, 'b> {
    group: &'a mut BenchGroup<'b>,
    limit: &'a mut Limit,
    case: BenchCase,
    keys: Vec<Key>,
    values: Box<dyn BenchValues>,
    history: History,
}

pub(crate) fn measure(
    group: &mut BenchGroup<'_>,
    limit: &mut Limit,
    work: &BenchWork,
    case: &BenchCase,
) -> Result<Measured> {
    let history = History {
        optimizer: work.optimizer,
        workers: group.workers,
        is_async: group.is_async,
        pushes: 0,
    };
    let keys = group.new_keys(case.keys);
    let values = work.values(case);
    let mut race = BenchRun { group, limit, case: *case, keys, values, history };
    race.prepare()?;
    let (rounds, seconds) = match work.rounds {
        Some(rounds) => (rounds.into(), f64::INFINITY),
        None => (race.rounds(work.seconds)?, work.seconds),
    };
    let (mut ours, mut limits) = race.take_turns(rounds, seconds)?;
    race.check()?;
    race.group.barrier()?;
    race.group.store.remove(&race.keys)?;
    ours.sort_by(f64::total_cmp);
    limits.sort_by(f64::total_cmp);
    let mine = [quantile(&ours, 0.5), quantile(&ours, 0.99), quantile(&limits, 0.5)];
    let all = race.group.exchange(&mine)?;
    let times = |it: Vec<f64>| Times { p50: it[0], p99: it[1], limit: it[2] };
    Ok(Measured { case: *case, rounds: ours.len(), workers: all.into_iter().map(times).collect() })
}

impl BenchRun<'_, '_> {
    fn prepare(&mut self) -> Result<()> {
        self.limit.prepare(&self.case)?;
        self.values.clear();
        self.group.store.init_list(&self.keys, &self.values.lend().0)?;
        self.values.fill(self.history.rank(self.group.rank), 0);
        self.group.barrier()?;
        if self.case.op == BenchOp::Pull {
            self.call_once(BenchOp::Push)?;
            self.history.pushes += 1;
        }
        Ok(())
    }

    /// Number of rounds in so many seconds; all workers compute an equal one.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "positive")]
    fn rounds(&mut self, seconds: f64) -> Result<usize> {
        let mut times = Vec::new();
        self.run(FIRST, &mut times)?;
        self.run_limit(FIRST, &mut times)?;
        // The first ones are slow; one of each kind counts.
        let one = times[FIRST - 1] + times[2 * FIRST - 1];
        let one = self.most(one)?.max(1e-9);
        Ok(((seconds / one) as usize).clamp(FEWEST, MOST))
    }

    /// Seconds of the rounds of the store and of the limit: of so many, or of fewer if they are
    /// slower than the first ones.
    fn take_turns(&mut self, rounds: usize, seconds: f64) -> Result<(Vec<f64>, Vec<f64>)> {
        let (mut ours, mut limits) = (Vec::new(), Vec::new());
        let turns = TURNS.min(rounds);
        let start = Instant::now();
        for turn in 0..turns {
            let count = rounds * (turn + 1) / turns - rounds * turn / turns;
            self.group.barrier()?;
            self.run(count, &mut ours)?;
            self.group.barrier()?;
            self.run_limit(count, &mut limits)?;
            if seconds.is_finite()
                && self.most(start.elapsed().as_secs_f64())? > seconds
                && ours.len() >= FEWEST
            {
                break;
            }
        }
        Ok((ours, limits))
    }

    /// The maximum over all workers, equal on each.
    fn most(&mut self, mine: f64) -> Result<f64> {
        let all = self.group.exchange(&[mine])?;
        Ok(all.iter().map(|it| it[0]).fold(0.0, f64::max))
    }

    fn run(&mut self, rounds: usize, times: &mut Vec<f64>) -> Result<()> {
        self.call(self.case.op, rounds, times)?;
        if self.case.op != BenchOp::Pull {
            self.history.pushes += rounds;
        }
        Ok(())
    }

    fn run_limit(&mut self, rounds: usize, times: &mut Vec<f64>) -> Result<()> {
        for _ in 0..rounds {
            let start = Instant::now();
            self.limit.round(self.case.op)?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn call(&mut self, op: BenchOp, rounds: usize, times: &mut Vec<f64>) -> Result<()> {
        let (values, mut outs) = self.values.lend();
        let (store, keys) = (self.group.store, &self.keys);
        for _ in 0..rounds {
            let start = Instant::now();
            match op {
                BenchOp::Push => store.push_list(keys, &values)?,
                BenchOp::Pull => store.pull_list(keys, &mut outs)?,
                BenchOp::Pushpull => store.pushpull_list(keys, &values, keys, &mut outs)?,
            }
            times.push(start.elapsed().as_secs_f64());
        }
        Ok(())
    }

    fn call_once(&mut self, op: BenchOp) -> Result<()> {
        self.call(op, 1, &mut Vec::new())
    }

    /// One more round with other values, whose result is compared with the expected one.
    fn check(&mut self) -> Result<()> {
        let BenchRun { case, history, .. } = *self;
        self.values.clear();
        self.values.fill(history.rank(self.group.rank), 1);
        self.group.barrier()?;
        let is_both = case.op == BenchOp::Pushpull;
        self.call_once(if is_both { case.op } else { BenchOp::Push })?;
        // Without rounds, the other workers' pushes may arrive later.
        if !is_both || history.is_async {
            self.group.barrier()?;
            self.call_once(BenchOp::Pull)?;
        }
        let exactly = history.optimizer == BenchOptimizer::None;
        match self.values.difference(history.stored(), exactly) {
            None => Ok(()),
            Some(text) => bail!(
                "{} of {} keys of {} bytes came back wrong: {text}; the times of a store that is \
                 wrong mean nothing",
                name(&case.op),
                case.keys,
                case.size
            ),
        }
    }
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a place in a list"
    )]
    let at = ((sorted.len().max(1) - 1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(f64::NAN)
}
