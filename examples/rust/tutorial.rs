//! A tour of the store in two chapters. Each step prints one line, `name: value`.
//!
//! A store keeps one array for each key: a parameter of your model, say. Devices push values, such
//! as gradients, and pull the result.
#![allow(
    clippy::float_cmp,
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exact bits are compared, and small numbers converted"
)]
#![allow(clippy::print_stdout, reason = "the lines are what this program is for")]

use std::sync::{Arc, Mutex};

use kvstore::{Config, Key, Result, Store, Tensor, TensorMut, UpdaterError};
use ndarray::Array2;

fn full(value: f32) -> Array2<f32> {
    Array2::from_elem((2, 3), value)
}

/// Prints the value that all elements of all arrays have.
fn show<'a>(name: &str, arrays: impl IntoIterator<Item = &'a Array2<f32>>) {
    let elements: Vec<f32> = arrays.into_iter().flatten().copied().collect();
    let value = elements[0];
    assert!(elements.iter().all(|&element| element == value), "{name}: the elements differ");
    let digits = format!("{value:.5}");
    println!("{name}: {}", digits.trim_end_matches('0').trim_end_matches('.'));
}

fn pulled(store: &Store, key: impl Into<Key>) -> Result<Array2<f32>> {
    let mut out = full(0.0);
    store.pull(key, &mut out)?;
    Ok(out)
}

/// Views several arrays as tensors: the values of a push.
fn tensors(arrays: &[Array2<f32>]) -> Vec<Tensor<'_>> {
    arrays.iter().map(Tensor::from).collect()
}

/// Views several arrays as tensors to be filled: the outs of a pull.
fn outs(arrays: &mut [Array2<f32>]) -> Vec<TensorMut<'_>> {
    arrays.iter_mut().map(TensorMut::from).collect()
}

/// The keys that an updater has been called for.
type Calls = Arc<Mutex<Vec<u64>>>;

/// An updater decides how a push changes the stored value; without one the sum replaces it. This
/// one computes `stored += factor * input`. It runs once for each key of a push, after the values
/// of the devices have been added up into `input`.
fn add_scaled(
    factor: f32,
    calls: Calls,
) -> impl Fn(Key, &Tensor<'_>, &mut TensorMut<'_>) -> std::result::Result<(), UpdaterError> {
    move |key, input, stored| {
        calls.lock().map_err(|_| "another updater has panicked")?.push(key.id());
        // An error makes the push fail, with this text in its message.
        let input = input.as_slice::<f32>().ok_or("only float32 is implemented")?;
        let stored = stored.as_mut_slice::<f32>().ok_or("only float32 is implemented")?;
        for (stored, input) in stored.iter_mut().zip(input) {
            *stored += factor * input;
        }
        Ok(())
    }
}

fn take(calls: &Calls) -> Vec<u64> {
    std::mem::take(&mut *calls.lock().expect("no updater has panicked"))
}

fn first() -> Result<()> {
    let store = Store::open("local", &Config::new())?;
    let key = Key::from(3u64);
    // The value is copied: the array stays ours.
    store.init(key, &full(2.0))?;
    show("init", [&pulled(&store, key)?]);
    store.push(key, &full(8.0))?;
    show("push", [&pulled(&store, key)?]);

    // Four devices have a value each for the same key: the store adds them up.
    let ones = [full(1.0), full(1.0), full(1.0), full(1.0)];
    store.push_list(&[key; 4], &tensors(&ones))?;
    show("four devices", [&pulled(&store, key)?]);

    // Setting an updater changes no value.
    let calls = Calls::default();
    store.set_updater(add_scaled(2.0, Arc::clone(&calls)))?;
    show("updater set", [&pulled(&store, key)?]);
    store.push(key, &full(1.0))?;
    show("updater push", [&pulled(&store, key)?]);
    let called = take(&calls);
    println!("updater calls: {}", called.len());
    println!("updater key: {}", called[0]);

    // One call fills the arrays of all devices: the key stands in the list once for each.
    let mut devices = [full(0.0), full(0.0), full(0.0), full(0.0)];
    store.pull_list(&[key; 4], &mut outs(&mut devices))?;
    show("four outs", &devices);

    // Several keys in one call: cheaper than a call for each. They are processed in ascending
    // order, whatever their order in the call.
    let keys = [5u64, 7, 9].map(Key::from);
    store.init_list(&keys, &tensors(&ones[..3]))?;
    store.push_list(&keys, &tensors(&ones[..3]))?;
    store.pull_list(&keys, &mut outs(&mut devices[..3]))?;
    show("keys 5 7 9", &devices[..3]);
    let order: Vec<String> = take(&calls).iter().map(u64::to_string).collect();
    println!("updater order: {}", order.join(" "));

    // In Rust two outs cannot be one array, so one array serves the three keys in turn.
    let mut a = full(0.0);
    for key in keys {
        store.pull(key, &mut a)?;
    }
    show("one out of three keys", [&a]);

    // Several keys with several devices each: a flat list of pairs.
    let each_four_times = keys.map(|key| [key; 4]).concat();
    let values = tensors(&ones).repeat(3);
    store.push_list(&each_four_times, &values)?;
    for key in keys {
        store.pull_list(&[key; 4], &mut outs(&mut devices))?;
    }
    show("list of lists", &devices);
    Ok(())
}

/// The type `device` adds up where the values are; on ordinary memory it works as `local` does.
fn second() -> Result<()> {
    let store = Store::open("device", &Config::new())?;
    let key = Key::from(3u64);
    store.init(key, &full(-2.0))?;
    show("device init", [&pulled(&store, key)?]);
    store.push(key, &full(-7.0))?;
    show("device push", [&pulled(&store, key)?]);
    let ones = [full(1.0), full(1.0), full(1.0)];
    store.push_list(&[key; 3], &tensors(&ones))?;
    show("device three ones", [&pulled(&store, key)?]);

    let keys = [7u64, 11, 13, 17].map(Key::from);
    let mut arrays = [full(-3.0), full(-3.0), full(-3.0), full(-3.0)];
    store.init_list(&keys, &tensors(&arrays))?;
    store.pull_list(&keys, &mut outs(&mut arrays))?;
    show("device keys", &arrays);

    let tenths = [full(-0.1), full(-0.1), full(-0.1)];
    store.push_list(&keys.map(|key| [key; 3]).concat(), &tensors(&tenths).repeat(4))?;
    store.pull_list(&keys, &mut outs(&mut arrays))?;
    show("device multi push", &arrays);

    store.set_updater(add_scaled(0.01, Calls::default()))?;
    show("device updater set", [&pulled(&store, key)?]);
    store.push(key, &full(5.0))?;
    show("device updater push", [&pulled(&store, key)?]);
    Ok(())
}

fn main() -> Result<()> {
    first()?;
    second()
}
