//! Trains a small network on handwritten digits, data-parallel: four workers share the weights
//! through one store.
//!
//! Usage: `train_digits DATA [--epochs N]`. DATA has 64 pixels from 0 to 16 and the label in each
//! line. Ends with status 1 if the accuracy on the held-out samples is below 0.96.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for the command line")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "counts and extents are small"
)]

use std::error::Error;
use std::process::ExitCode;
use std::sync::{Barrier, Mutex, RwLock};
use std::time::Instant;
use std::{env, fs, thread};

use kvstore::{Config, Key, Result, Store, Tensor, TensorMut, UpdaterError};

const WORKERS: usize = 4;
const BATCH: usize = 128;
const QUARTER: usize = BATCH / WORKERS;
const PIXELS: usize = 64;
const HIDDEN: usize = 64;
const CLASSES: usize = 10;
const LEARNING_RATE: f32 = 0.5;
const REQUIRED_ACCURACY: f64 = 0.96;
const USAGE: &str = "usage: train_digits DATA [--epochs N]";

const NAMES: [&str; 4] = ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"];
const SHAPES: [&[i64]; 4] = [&[64, 64], &[64], &[64, 10], &[10]];

/// The random numbers of `SplitMix64` (Steele, Lea and Flood, 2014): the same in every language.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ mixed >> 31
    }

    /// Uniform in [-1, 1): 24 random bits, so that each result is exact.
    fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / 8_388_608.0 - 1.0
    }

    fn shuffle(&mut self, items: &mut [usize]) {
        for i in (1..items.len()).rev() {
            items.swap(i, (self.next() % (i as u64 + 1)) as usize);
        }
    }
}

struct Sample {
    pixels: [f32; PIXELS],
    label: usize,
}

/// Every fifth sample, the first included, is held out: gives those to train with, then those.
fn read_digits(path: &str) -> std::result::Result<(Vec<Sample>, Vec<Sample>), Box<dyn Error>> {
    let (mut train, mut held_out) = (Vec::new(), Vec::new());
    for (index, line) in fs::read_to_string(path)?.lines().enumerate() {
        let bad = || format!("{path}:{}: not 64 numbers from 0 to 16 and a label", index + 1);
        let numbers: Vec<u8> = line
            .split(',')
            .map(str::parse)
            .collect::<std::result::Result<_, _>>()
            .map_err(|_| bad())?;
        let (&label, pixels) = numbers.split_last().ok_or_else(bad)?;
        if pixels.len() != PIXELS || pixels.iter().any(|&pixel| pixel > 16) || label > 9 {
            return Err(bad().into());
        }
        let sample = Sample {
            pixels: std::array::from_fn(|i| f32::from(pixels[i]) / 16.0),
            label: label.into(),
        };
        if index % 5 == 0 { held_out.push(sample) } else { train.push(sample) }
    }
    if train.len() < BATCH {
        return Err(format!("{path}: {} samples are too few for a batch", train.len()).into());
    }
    Ok((train, held_out))
}

/// Weights, or the gradients of weights, in the order of `NAMES`.
struct Parameters([Vec<f32>; 4]);

impl Parameters {
    fn zeros() -> Self {
        Self(SHAPES.map(|shape| vec![0.0; shape.iter().map(|&it| it as usize).product()]))
    }

    fn random(random: &mut Random) -> Self {
        let mut weights = Self::zeros();
        for (weight, shape) in weights.0.iter_mut().zip(SHAPES) {
            if let &[inputs, outputs] = shape {
                let bound = (6.0 / (inputs + outputs) as f32).sqrt();
                weight.fill_with(|| random.uniform() * bound);
            }
        }
        weights
    }

    fn tensors(&self) -> Result<Vec<Tensor<'_>>> {
        self.0.iter().zip(SHAPES).map(|(data, shape)| Tensor::new(data, shape)).collect()
    }

    fn tensors_mut(&mut self) -> Result<Vec<TensorMut<'_>>> {
        self.0.iter_mut().zip(SHAPES).map(|(data, shape)| TensorMut::new(data, shape)).collect()
    }

    /// The rectified hidden units, and the scores of the classes.
    fn forward(&self, pixels: &[f32; PIXELS]) -> ([f32; HIDDEN], [f32; CLASSES]) {
        let [weight1, bias1, weight2, bias2] = &self.0;
        let mut hidden: [f32; HIDDEN] = std::array::from_fn(|j| bias1[j]);
        for (pixel, row) in pixels.iter().zip(weight1.chunks(HIDDEN)) {
            hidden.iter_mut().zip(row).for_each(|(hidden, weight)| *hidden += pixel * weight);
        }
        let mut scores: [f32; CLASSES] = std::array::from_fn(|c| bias2[c]);
        for (hidden, row) in hidden.iter_mut().zip(weight2.chunks(CLASSES)) {
            *hidden = hidden.max(0.0);
            scores.iter_mut().zip(row).for_each(|(score, weight)| *score += *hidden * weight);
        }
        (hidden, scores)
    }

    fn classify(&self, pixels: &[f32; PIXELS]) -> usize {
        let (_, scores) = self.forward(pixels);
        (1..CLASSES).fold(0, |best, c| if scores[c] > scores[best] { c } else { best })
    }

    /// Adds the sample's part in the gradient of the batch's mean loss; gives its loss.
    fn add_gradient(&self, sample: &Sample, gradient: &mut Parameters) -> f64 {
        let (hidden, scores) = self.forward(&sample.pixels);
        let highest = scores.into_iter().fold(f32::MIN, f32::max);
        let exponentials = scores.map(|score| (score - highest).exp());
        let sum: f32 = exponentials.iter().sum();
        let mut delta2 = exponentials.map(|exponential| exponential / sum / BATCH as f32);
        delta2[sample.label] -= 1.0 / BATCH as f32;

        let [weight1, bias1, weight2, bias2] = &mut gradient.0;
        let mut delta1 = [0.0f32; HIDDEN];
        for (j, row) in weight2.chunks_mut(CLASSES).enumerate() {
            row.iter_mut().zip(&delta2).for_each(|(weight, delta)| *weight += hidden[j] * delta);
            if hidden[j] > 0.0 {
                let row = &self.0[2][j * CLASSES..][..CLASSES];
                delta1[j] = row.iter().zip(&delta2).map(|(weight, delta)| weight * delta).sum();
            }
        }
        for (pixel, row) in sample.pixels.iter().zip(weight1.chunks_mut(HIDDEN)) {
            row.iter_mut().zip(&delta1).for_each(|(weight, delta)| *weight += pixel * delta);
        }
        bias1.iter_mut().zip(&delta1).for_each(|(bias, delta)| *bias += delta);
        bias2.iter_mut().zip(&delta2).for_each(|(bias, delta)| *bias += delta);
        (sum.ln() - (scores[sample.label] - highest)).into()
    }
}

/// The updater: plain gradient descent on the sum of the gradients.
fn descend(
    _: Key,
    input: &Tensor<'_>,
    stored: &mut TensorMut<'_>,
) -> std::result::Result<(), UpdaterError> {
    let input = input.as_slice::<f32>().ok_or("gradients must be float32")?;
    let stored = stored.as_mut_slice::<f32>().ok_or("weights must be float32")?;
    for (weight, gradient) in stored.iter_mut().zip(input) {
        *weight -= LEARNING_RATE * gradient;
    }
    Ok(())
}

/// What the workers share. Between two meetings at the barrier each writes its own gradients and
/// loss only; the rest belongs to the one worker that a meeting elects.
struct Training {
    train: Vec<Sample>,
    held_out: Vec<Sample>,
    epochs: usize,
    store: Store,
    keys: Vec<Key>,
    barrier: Barrier,
    gradients: [RwLock<Parameters>; WORKERS],
    losses: [Mutex<f64>; WORKERS],
    order: RwLock<Vec<usize>>,
    random: Mutex<Random>,
    started: Mutex<Instant>,
    accuracy: Mutex<f64>,
}

const LOCK: &str = "no worker panics while it holds a lock";

impl Training {
    fn new(train: Vec<Sample>, held_out: Vec<Sample>, epochs: usize) -> Result<Self> {
        let store = Store::open("local", &Config::new())?;
        let keys = NAMES.iter().map(|name| store.intern(name)).collect::<Result<Vec<Key>>>()?;
        let mut random = Random(2026);
        store.init_list(&keys, &Parameters::random(&mut random).tensors()?)?;
        store.set_updater(descend)?;
        let mut order: Vec<usize> = (0..train.len()).collect();
        random.shuffle(&mut order);
        Ok(Self {
            train,
            held_out,
            epochs,
            store,
            keys,
            barrier: Barrier::new(WORKERS),
            gradients: std::array::from_fn(|_| RwLock::new(Parameters::zeros())),
            losses: std::array::from_fn(|_| Mutex::new(0.0)),
            order: RwLock::new(order),
            random: Mutex::new(random),
            started: Mutex::new(Instant::now()),
            accuracy: Mutex::new(0.0),
        })
    }

    /// Waits for all workers; true for one of them.
    fn meet(&self) -> bool {
        self.barrier.wait().is_leader()
    }

    fn work(&self, worker: usize) -> Result<()> {
        let mut weights = Parameters::zeros();
        self.store.pull_list(&self.keys, &mut weights.tensors_mut()?)?;
        for epoch in 1..=self.epochs {
            for batch in 0..self.train.len() / BATCH {
                self.compute(worker, batch, &weights);
                if self.meet() {
                    self.push()?;
                }
                self.meet();
                self.store.pull_list(&self.keys, &mut weights.tensors_mut()?)?;
            }
            if self.meet() {
                self.finish_epoch(epoch, &weights);
            }
            self.meet();
        }
        Ok(())
    }

    /// Computes the gradients of one quarter of a batch.
    fn compute(&self, worker: usize, batch: usize, weights: &Parameters) {
        let order = self.order.read().expect(LOCK);
        let mut gradient = self.gradients[worker].write().expect(LOCK);
        gradient.0.iter_mut().for_each(|array| array.fill(0.0));
        for &sample in &order[batch * BATCH + worker * QUARTER..][..QUARTER] {
            let loss = weights.add_gradient(&self.train[sample], &mut gradient);
            *self.losses[worker].lock().expect(LOCK) += loss;
        }
    }

    /// Pushes, for each parameter, the list of its four gradients, always in the same order.
    fn push(&self) -> Result<()> {
        let gradients: Vec<_> =
            self.gradients.iter().map(|gradient| gradient.read().expect(LOCK)).collect();
        let mut values = Vec::new();
        for gradient in &gradients {
            values.extend(gradient.tensors()?);
        }
        self.store.push_list(&self.keys.repeat(WORKERS), &values)
    }

    fn finish_epoch(&self, epoch: usize, weights: &Parameters) {
        let mut started = self.started.lock().expect(LOCK);
        let seconds = started.elapsed().as_secs_f64();
        let batches = self.train.len() / BATCH;
        let bytes = weights.0.iter().map(|array| size_of_val(array.as_slice())).sum::<usize>();
        let megabytes = (bytes * batches * WORKERS * 2) as f64 / 1e6;
        let losses = self.losses.iter().map(|loss| std::mem::take(&mut *loss.lock().expect(LOCK)));
        let loss = losses.sum::<f64>() / (batches * BATCH) as f64;
        let right = |sample: &&Sample| weights.classify(&sample.pixels) == sample.label;
        let right = self.held_out.iter().filter(right).count();
        let accuracy = right as f64 / self.held_out.len() as f64;
        let rate = megabytes / seconds;
        println!("epoch {epoch:2}  loss {loss:.4}  accuracy {accuracy:.4}  {rate:6.1} MB/s");
        *self.accuracy.lock().expect(LOCK) = accuracy;
        self.random.lock().expect(LOCK).shuffle(&mut self.order.write().expect(LOCK));
        *started = Instant::now();
    }
}

fn arguments() -> std::result::Result<(String, usize), &'static str> {
    let (mut data, mut epochs) = (None, 30);
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--epochs" {
            let number = words.next().and_then(|number| number.parse().ok());
            epochs = number.filter(|&epochs| epochs > 0).ok_or(USAGE)?;
        } else if word.starts_with('-') || data.is_some() {
            return Err(USAGE);
        } else {
            data = Some(word);
        }
    }
    Ok((data.ok_or(USAGE)?, epochs))
}

fn run(path: &str, epochs: usize) -> std::result::Result<f64, Box<dyn Error>> {
    let (train, held_out) = read_digits(path)?;
    let training = Training::new(train, held_out, epochs)?;
    thread::scope(|threads| {
        for worker in 0..WORKERS {
            let training = &training;
            threads.spawn(move || {
                if let Err(error) = training.work(worker) {
                    // The other workers wait for this one at the barrier, so none can go on.
                    eprintln!("worker {worker}: {error}");
                    std::process::exit(1);
                }
            });
        }
    });
    let accuracy = *training.accuracy.lock().expect(LOCK);
    println!("accuracy on {} held-out samples: {accuracy:.4}", training.held_out.len());
    Ok(accuracy)
}

fn main() -> ExitCode {
    let (path, epochs) = match arguments() {
        Ok(arguments) => arguments,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::from(2);
        }
    };
    match run(&path, epochs) {
        Ok(accuracy) if accuracy >= REQUIRED_ACCURACY => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
