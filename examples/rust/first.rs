//! Fits three weights by gradient descent, in one process or in a job: docs/use/languages/rust.md.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    clippy::many_single_char_names,
    clippy::print_stdout,
    reason = "a small program for a page"
)]

use kvstore::{Config, Result, Store};
use ndarray::Array1;
use std::time::Duration;

/// Adds the gradient of the squared error of point i, whose target is made with 1, -2 and 3.
fn add_gradient(i: f32, weight: &Array1<f32>, gradient: &mut Array1<f32>) {
    let point = ndarray::array![i.sin(), (2.0 * i).sin(), (3.0 * i).sin()];
    let error = point.dot(&(weight - &ndarray::array![1.0, -2.0, 3.0]));
    *gradient += &(point * error);
}

fn main() -> Result<()> {
    let kind = std::env::args().nth(1).unwrap_or("local".into());
    let store = Store::open(&kind, &Config::new())?;
    let mut weight = Array1::<f32>::zeros(3);
    store.set_optimizer("sgd", "learning_rate=0.02")?;
    store.init(0u64, &weight)?;
    for _ in 0..100 {
        let mut gradient = Array1::zeros(3);
        for i in (1 + store.rank()..=64).step_by(store.num_workers() as usize) {
            add_gradient(i as f32, &weight, &mut gradient);
        }
        store.push(0u64, &gradient)?;
        store.pull(0u64, &mut weight)?;
    }
    if store.rank() == 0 {
        println!("{weight:.3}");
    }
    store.close(Duration::from_secs(60))
}
