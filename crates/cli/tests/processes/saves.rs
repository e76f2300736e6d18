//! A worker that is lost while the job saves: the file is the old one or the new one, whole, and the next
//! save succeeds, also when the lost worker was the one that writes.

use std::path::Path;
use std::thread;
use std::time::Duration;

use kvstore::{Config, Store};

use super::common::folder::Folder;
use super::common::random;
use super::job::{Job, LIMIT, Turn, amount};
use super::program::{COUNT, FILE, PAUSE_MS, ROUNDS};

const WORKERS: usize = 3;
/// Elements whose file takes some milliseconds.
const ELEMENTS: usize = 1_000_000;
const TURNS: usize = 8;

/// Whether it is the sum of rounds of all workers, then of rounds without the one that is lost.
fn is_sum(value: f32, victim: usize) -> bool {
    let (all, rest) = (6.0, 5.0 - victim as f32);
    let sum = |with: usize, without: usize| all * with as f32 + rest * without as f32;
    (0..=TURNS).any(|with| (0..=TURNS - with).any(|without| sum(with, without) == value))
}

/// The first value in a file, which is read and checked as a whole.
fn value_in(file: &Path, victim: usize) -> f32 {
    let store = Store::open("local", &Config::new()).unwrap();
    store.load(file).unwrap();
    let mut out = vec![0.0f32; ELEMENTS];
    store.pull(2u64, &mut out).unwrap();
    // Slices of the round in which it died may be either.
    out.dedup();
    assert!(out.iter().all(|value| is_sum(*value, victim)), "{out:?}");
    out[0]
}

/// Kills a worker when all have said this word, and after a pause more.
fn kill_at(victim: usize, word: &str, pause: Duration) {
    let folder = Folder::new("saves");
    let file = folder.file("state");
    let job = Job::new("saves", WORKERS, 2)
        .with("on_worker_loss", "continue")
        .told(COUNT, ELEMENTS)
        .told(ROUNDS, TURNS)
        .told(PAUSE_MS, 5)
        .told(FILE, file.display());
    let mut running = job.start();
    running.hear(word);
    thread::sleep(pause);
    let mut dead = running.all.remove(1 + 2 + victim);
    dead.kill();
    let end = dead.end(LIMIT);
    assert!(end.signal == Some(9) || end.status == Some(0), "{end:?}");
    // A file of a round that was saved, or the one before.
    value_in(&file, victim);
    let rest = running.end(LIMIT);
    for end in &rest {
        assert_eq!(end.status, Some(0), "worker {victim} was killed at {word:?}: {end:?}");
    }
    let last = rest.last().unwrap();
    let said = last.said(&format!("saved {TURNS} ")).unwrap();
    assert_eq!(said.parse(), Ok(value_in(&file, victim)), "the file of the last round: {last:?}");
}

#[test]
fn a_worker_that_is_killed_before_during_and_after_a_save_leaves_a_whole_file() {
    let _turn = Turn::take();
    let mut random = random::from_environment("saves");
    for _ in 0..amount(1, 50) {
        for victim in [0, 1] {
            for word in ["saved 1 ", "saving 3", "saved 3 "] {
                let pause = Duration::from_micros(random.below(20_000));
                kill_at(victim, word, pause);
            }
        }
    }
}
