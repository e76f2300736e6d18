//! Times of things that are compared: measured in turn, so that a noisy machine is noisy for all.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::page;

/// Rounds of a comparison; the median of an odd number is one of them.
pub fn rounds() -> usize {
    if page::quick() { 3 } else { 15 }
}

/// How long a subject runs before the next one's turn, in seconds. One run before that fills the
/// caches again after the others, of which some share arrays, and wakes threads.
fn shortest() -> f64 {
    if page::quick() { 1e-4 } else { 5e-3 }
}

/// A turn in which our threads waited for a processor for more than this part of it was held up by
/// other programs.
const HELD_UP: f64 = 0.02;

/// How often a turn is tried that is held up; on average, no turn is tried more than twice.
pub const TRIES: usize = 4;

/// Turns, how often one was repeated, and how many were held up to the last.
static TURNS: AtomicUsize = AtomicUsize::new(0);
static REPEATED: AtomicUsize = AtomicUsize::new(0);
static DISTURBED: AtomicUsize = AtomicUsize::new(0);

/// Runs something so many times, and tells the seconds of one run.
pub type Subject<'a> = Box<dyn Fn(u32) -> f64 + 'a>;

pub fn timed<'a>(run: impl Fn() + 'a) -> Subject<'a> {
    Box::new(move |repeats| {
        let start = Instant::now();
        (0..repeats).for_each(|_| run());
        start.elapsed().as_secs_f64() / f64::from(repeats)
    })
}

/// Median seconds of one run of each subject. Subjects run in turn, round after round, after first
/// runs that are not counted.
pub fn medians(subjects: &[Subject<'_>], tries: usize) -> Vec<f64> {
    let repeats: Vec<u32> = subjects.iter().map(repeats).collect();
    let rounds = rounds();
    let mut times = vec![Vec::with_capacity(rounds); subjects.len()];
    for _ in 0..rounds {
        for ((subject, &repeats), times) in subjects.iter().zip(&repeats).zip(&mut times) {
            times.push(turn(subject, repeats, tries));
        }
    }
    times.into_iter().map(median).collect()
}

/// The part of all turns that other programs have disturbed.
pub fn disturbed() -> f64 {
    let turns = TURNS.load(Ordering::Relaxed).max(1);
    DISTURBED.load(Ordering::Relaxed) as f64 / turns as f64
}

/// The seconds of a try that was not held up, or else of the last one.
fn turn(subject: &Subject<'_>, repeats: u32, tries: usize) -> f64 {
    let turns = TURNS.fetch_add(1, Ordering::Relaxed);
    let mut left = tries;
    loop {
        if repeats > 1 {
            subject(1);
        }
        let before = waited();
        let seconds = subject(repeats);
        if waited() - before <= HELD_UP * seconds * f64::from(repeats) {
            return seconds;
        }
        left -= 1;
        if left == 0 || REPEATED.load(Ordering::Relaxed) > turns {
            DISTURBED.fetch_add(1, Ordering::Relaxed);
            return seconds;
        }
        REPEATED.fetch_add(1, Ordering::Relaxed);
    }
}

/// Seconds that our threads have waited for a processor, where the system tells.
fn waited() -> f64 {
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let waited = |entry: fs::DirEntry| -> Option<f64> {
        let text = fs::read_to_string(entry.path().join("schedstat")).ok()?;
        text.split_whitespace().nth(1)?.parse().ok()
    };
    threads.filter_map(waited).sum::<f64>() * 1e-9
}

/// How often a subject must run to fill the shortest time.
fn repeats(subject: &Subject<'_>) -> u32 {
    // The first run may make what stays: a key's state, or helpers.
    subject(1);
    let (mut repeats, shortest) = (1, shortest());
    while subject(repeats) * f64::from(repeats) < shortest && repeats < 1 << 20 {
        repeats *= 2;
    }
    repeats
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
