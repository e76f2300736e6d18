//! What training programs use beyond push and pull, in a store of one process. Each step prints one line,
//! `name: value`; the same calls serve a job of many machines.
#![allow(clippy::print_stdout, reason = "the lines are what this program is for")]

use std::future::Future;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use kvstore::{Config, DType, ErrorKind, Key, Reduction, Result, Store, Tensor, TensorMut};

const PATIENCE: Duration = Duration::from_secs(10);

/// An array; all but single numbers are of one shape.
fn full(value: f32) -> [f32; 3] {
    [value; 3]
}

/// Prints the value that all elements of a key have.
fn show(what: &str, store: &Store, key: Key) -> Result<()> {
    let mut out = full(0.0);
    store.pull(key, &mut out)?;
    println!("{what}: {}", out[0]);
    Ok(())
}

/// A program that is built against one release, and runs with another, asks before it calls.
fn what_there_is() {
    println!("has tickets: {}", u8::from(kvstore::capable("tickets")));
    println!("has telepathy: {}", u8::from(kvstore::capable("telepathy")));
}

/// Wakes the thread that waits for a future; a program has its runtime for that.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T> + Unpin) -> T {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = future;
    loop {
        match std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

/// The end of an operation comes to the program: to a future, or as a call.
fn ends_of_operations() -> Result<()> {
    let store = Store::open("local", &Config::new())?;
    let key = store.intern("w")?;
    store.init(key, &full(0.0))?;
    block_on(store.push_owned(key, full(4.0).to_vec(), 0)?)?;
    println!("event: ok");

    let (sender, told) = mpsc::channel();
    let pushed = store.push_owned(key, full(4.0).to_vec(), 0)?;
    pushed.on_done(move |result| _ = sender.send(result.is_ok()))?;
    println!("told: {}", if told.recv_timeout(PATIENCE) == Ok(true) { "ok" } else { "failed" });
    Ok(())
}

/// Weights learn by a rule, and what is counted beside them is assigned.
fn rules_of_keys(store: &Store) -> Result<()> {
    let (weight, steps) = (store.intern("w")?, store.intern("steps")?);
    store.init(weight, &full(2.0))?;
    store.init(steps, &[0i64])?;
    store.set_optimizer_for(&[steps], "none", "")?;
    store.set_optimizer("sgd", "learning_rate=0.5")?;
    store.push(weight, &full(1.0))?;
    store.push(steps, &[7i64])?;
    let mut count = [0i64];
    store.pull(steps, &mut count)?;
    show("weight by sgd", store, weight)?;
    println!("steps: {}", count[0]);
    Ok(())
}

/// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
fn means(store: &Store) -> Result<()> {
    let weight = store.intern("w")?;
    store.set_weight(8.0)?;
    store.push(weight, &full(24.0))?;
    store.clear_weight()?;
    let round = store.last_round(weight)?;
    show("weight by a mean", store, weight)?;
    println!("samples: {}", round.total_weight);
    println!("contributors: {}", round.contributors);

    // A worker without batches says so, and all go on together in the next epoch.
    store.done()?;
    store.resume(PATIENCE)?;
    println!("lost: {}", store.num_lost());
    Ok(())
}

/// Keys and arrays that are checked once: each later call costs little beside the bytes.
fn bound_list(store: &Store) -> Result<()> {
    let keys = [store.intern("w")?];
    let (mut gradient, mut weight) = (full(0.0), full(0.0));
    let mut bound =
        store.bind(&keys, vec![(&mut gradient).into()], &keys, vec![(&mut weight).into()])?;
    for (step, value) in [(1, 1.0), (2, 2.0), (3, 3.0)] {
        if let Some(gradient) = bound.value_mut::<f32>(0) {
            gradient.fill(value);
        }
        bound.pushpull()?;
        println!("bound step {step}: {}", bound.out::<f32>(0).map_or(0.0, |out| out[0]));
    }
    Ok(())
}

/// A mask is stored and given out; two of them have no sum.
fn opaque_values(store: &Store) -> Result<()> {
    let (key, mask, mut out) = (store.intern("mask")?, [true, false, true], [0; 3]);
    store.set_optimizer_for(&[key], "none", "")?;
    store.init(key, Tensor::from(&mask[..]))?;
    store.pull(key, TensorMut::from_bytes(DType::Bool, &mut out, &[3])?)?;
    println!("mask: {} {} {}", out[0], out[1], out[2]);
    match store.push_list(&[key, key], &[Tensor::from(&mask[..]), Tensor::from(&mask[..])]) {
        Err(error) if error.kind() == ErrorKind::Unsupported => println!("two masks: unsupported"),
        _ => println!("two masks: summed"),
    }
    Ok(())
}

/// A file of safetensors as another program writes it: length of the header, header, elements.
fn model() -> Vec<u8> {
    let header = r#"{"model.w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"head":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;
    let elements = [9.0f32, 9.0, 9.0, 1.0].map(f32::to_le_bytes);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements.as_flattened()].concat()
}

/// Takes the model's tensors without their prefix, and leaves the others out.
fn a_model_of_another_program(
    store: &Store,
) -> std::result::Result<(), Box<dyn std::error::Error>> {
    let path = std::env::temp_dir().join(format!("model-{}.safetensors", std::process::id()));
    std::fs::write(&path, model())?;
    let before = store.keys()?.len();
    let loaded =
        store.load_values(&path, |tensor| Ok(tensor.strip_prefix("model.").map(str::to_owned)));
    std::fs::remove_file(&path)?;
    loaded?;
    show("loaded weight", store, store.intern("w")?)?;
    println!("new keys: {}", store.keys()?.len() - before);
    Ok(())
}

/// Values that workers add up without a key, and a group of workers with keys of its own.
fn a_group(store: &Store) -> Result<()> {
    let group = store.group("alone", &[0])?;
    group.init(group.intern("w")?, &full(4.0))?;
    show("weight of the group", &group, group.intern("w")?)?;
    show("weight of the job", store, store.intern("w")?)?;
    let (one, two, mut sum) = (full(1.0), full(2.0), full(0.0));
    let values: [Tensor<'_>; 2] = [(&one).into(), (&two).into()];
    group.allreduce(Reduction::Sum, &values, &mut [(&mut sum).into()])?;
    println!("sum of all: {}", sum[0]);
    group.close(PATIENCE)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    what_there_is();
    ends_of_operations()?;
    let store = Store::open("local", &Config::new())?;
    rules_of_keys(&store)?;
    means(&store)?;
    bound_list(&store)?;
    opaque_values(&store)?;
    a_model_of_another_program(&store)?;
    Ok(a_group(&store)?)
}
