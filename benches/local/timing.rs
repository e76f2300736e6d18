//! Times of things that are compared: measured in turn, so that a noisy machine is noisy for all.

use std::time::Instant;

/// Rounds of a comparison; the median of an odd number is one of them.
const ROUNDS: usize = 15;

/// How long a subject runs before the next one's turn, in seconds: long enough that filling the
/// caches again after the others does not count.
const SHORTEST: f64 = 10e-3;

/// Median seconds of one run of each subject. Subjects run in turn, round after round, after a
/// first run that is not counted.
pub fn medians(subjects: &mut [&mut dyn FnMut()]) -> Vec<f64> {
    let repeats: Vec<u32> = subjects.iter_mut().map(|subject| repeats(*subject)).collect();
    let mut times = vec![Vec::with_capacity(ROUNDS); subjects.len()];
    for _ in 0..ROUNDS {
        for ((subject, &repeats), times) in subjects.iter_mut().zip(&repeats).zip(&mut times) {
            times.push(time(*subject, repeats));
        }
    }
    times.into_iter().map(median).collect()
}

/// How often a subject must run to fill the shortest time.
fn repeats(subject: &mut dyn FnMut()) -> u32 {
    let mut repeats = 1;
    while time(subject, repeats) * f64::from(repeats) < SHORTEST && repeats < 1 << 20 {
        repeats *= 2;
    }
    repeats
}

fn time(subject: &mut dyn FnMut(), repeats: u32) -> f64 {
    let start = Instant::now();
    (0..repeats).for_each(|_| subject());
    start.elapsed().as_secs_f64() / f64::from(repeats)
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
