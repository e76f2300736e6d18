//! What training programs use beyond push and pull, in one process or in a job of many. Only the type differs:
//!
//! ```text
//! features                   one process, the only worker
//! features dist_sync         a worker of a job; `kvstore run` starts them all, and the servers:
//!                            kvstore run -n 2 -s 1 -- features dist_sync
//! ```
//!
//! All workers make the same calls, with values that depend on their rank. Rank 0 prints `name: value` for each
//! result.
#![allow(clippy::print_stdout, reason = "the lines are what this program is for")]
#![allow(clippy::cast_precision_loss, reason = "ranks are small")]

use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, mpsc};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use kvstore::{
    Config, DType, ErrorKind, Key, NonFinite, Reduction, Result, Store, Tensor, TensorMut,
};

const PATIENCE: Duration = Duration::from_secs(60);

/// An array; all but single numbers are of one shape.
fn full(value: f32) -> [f32; 3] {
    [value; 3]
}

/// 1 on rank 0, 2 on rank 1, and so on.
fn place(store: &Store) -> f32 {
    store.rank() as f32 + 1.0
}

/// Prints on rank 0: the other workers have the same values.
fn report(store: &Store, what: &str, value: impl Display) {
    if store.rank() == 0 {
        println!("{what}: {value}");
    }
}

/// Prints the first element of a key. Here as elsewhere all workers make the call.
fn show(what: &str, store: &Store, key: Key) -> Result<()> {
    let mut out = full(0.0);
    store.pull(key, &mut out)?;
    report(store, what, out[0]);
    Ok(())
}

/// A program that is built against one release, and runs with another, asks before it calls.
fn what_there_is(store: &Store) {
    report(store, "has tickets", u8::from(kvstore::capable("tickets")));
    report(store, "has telepathy", u8::from(kvstore::capable("telepathy")));
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
fn ends_of_operations(store: &Store) -> Result<()> {
    let key = store.intern("first")?;
    store.init(key, &full(0.0))?;
    block_on(store.push_owned(key, full(4.0).to_vec(), 0)?)?;
    report(store, "event", "ok");

    let (sender, told) = mpsc::channel();
    let pushed = store.push_owned(key, full(4.0).to_vec(), 0)?;
    pushed.on_done(move |result| _ = sender.send(result.is_ok()))?;
    let ok = told.recv_timeout(PATIENCE) == Ok(true);
    report(store, "told", if ok { "ok" } else { "failed" });
    Ok(())
}

/// Weights learn by a rule. What is counted beside them is assigned: the sum over the workers.
fn rules_of_keys(store: &Store) -> Result<()> {
    let (weight, steps) = (store.intern("w")?, store.intern("steps")?);
    store.init(weight, &full(2.0))?;
    store.init(steps, &[0i64])?;
    store.set_optimizer_for(&[steps], "none", "")?;
    store.set_optimizer("sgd", "learning_rate=0.5")?;
    store.push(weight, &full(place(store)))?;
    store.push(steps, &[7i64])?;
    let mut count = [0i64];
    store.pull(steps, &mut count)?;
    show("weight by sgd", store, weight)?;
    report(store, "steps", count[0]);
    Ok(())
}

/// A batch pushes the sum over its samples, and their number: the rule gets the mean over all batches.
fn means(store: &Store) -> Result<()> {
    let weight = store.intern("w")?;
    store.set_weight(8.0 * f64::from(place(store)))?; // batches of 8 samples, 16 samples, ...
    store.push(weight, &full(24.0))?;
    store.clear_weight()?;
    let round = store.last_round(weight)?;
    show("weight by a mean", store, weight)?;
    report(store, "samples", round.total_weight);
    report(store, "contributors", round.contributors);
    Ok(())
}

/// Rank 0 has a batch more than the others. Rounds do not wait for workers that are done.
fn unequal_epochs(store: &Store) -> Result<()> {
    let weight = store.intern("w")?;
    if store.rank() == 0 {
        store.push(weight, &full(1.0))?;
    }
    store.done()?;
    store.resume(PATIENCE)?; // all go on together, in the next epoch
    show("weight of the epoch", store, weight)?;
    report(store, "lost", store.num_lost());
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
            gradient.fill(value * place(store));
        }
        bound.pushpull()?;
        let first = bound.out::<f32>(0).map_or(0.0, |out| out[0]);
        report(store, &format!("bound step {step}"), first);
    }
    Ok(())
}

/// A mask is stored and given out; two of them have no sum.
fn opaque_values(store: &Store) -> Result<()> {
    let (key, mask, mut out) = (store.intern("mask")?, [true, false, true], [0; 3]);
    store.set_optimizer_for(&[key], "none", "")?;
    store.init(key, Tensor::from(&mask[..]))?;
    store.pull(key, TensorMut::from_bytes(DType::Bool, &mut out, &[3])?)?;
    report(store, "mask", format!("{} {} {}", out[0], out[1], out[2]));
    match store.push_list(&[key, key], &[Tensor::from(&mask[..]), Tensor::from(&mask[..])]) {
        Err(error) if error.kind() == ErrorKind::Unsupported => {
            report(store, "two masks", "unsupported");
        }
        _ => report(store, "two masks", "summed"),
    }
    Ok(())
}

/// A file of safetensors as another program writes it: length of the header, header, elements.
fn model() -> Vec<u8> {
    let header = r#"{"model.w":{"dtype":"F32","shape":[3],"data_offsets":[0,12]},"head":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}}"#;
    let elements = [9.0f32, 9.0, 9.0, 1.0].map(f32::to_le_bytes);
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), elements.as_flattened()].concat()
}

/// Takes the model's tensors without their prefix, and leaves the others out. All workers load together: the file
/// of rank 0.
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
    report(store, "new keys", store.keys()?.len() - before);
    Ok(())
}

/// Gradients of a large norm are scaled down. The norm is that of the sums over the workers.
fn clipping(store: &Store) -> Result<()> {
    let weight = store.intern("w")?;
    let gradient = [3.0 * place(store), 4.0 * place(store), 0.0];
    store.set_clipping(2.5, NonFinite::Skip)?;
    store.push(weight, &gradient)?;
    report(store, "norm", store.last_norm()?.norm);
    show("weight by a clipped step", store, weight)?;
    store.set_clipping(0.0, NonFinite::Skip)?;
    store.push(weight, &gradient)?;
    show("weight by a full step", store, weight)
}

/// A group of workers, here of all, has keys and rules of its own.
fn a_group(store: &Store) -> Result<()> {
    let ranks: Vec<u32> = (0..store.num_workers().unsigned_abs()).collect();
    let group = store.group("all", &ranks)?;
    let weight = group.intern("w")?;
    group.init(weight, &full(0.0))?;
    group.push(weight, &full(4.0 * place(&group)))?;
    show("weight of the group", &group, weight)?;
    show("weight of the job", store, store.intern("w")?)?;
    group.close(PATIENCE)
}

/// Workers exchange values without a key: a sum, the value of one worker, and the value of each.
fn collective_calls(store: &Store) -> Result<()> {
    let (one, two, mut out) = (full(place(store)), full(2.0 * place(store)), full(0.0));
    let values: [Tensor<'_>; 2] = [(&one).into(), (&two).into()];
    store.allreduce(Reduction::Sum, &values, &mut [(&mut out).into()])?;
    report(store, "sum of all", out[0]);

    let workers = store.num_workers().unsigned_abs();
    store.broadcast_from(workers - 1, Some((&one).into()), &mut [(&mut out).into()])?;
    report(store, "value of the last", out[0]);

    let mut all: Vec<[f32; 3]> = (0..workers).map(|_| full(0.0)).collect();
    let mut outs: Vec<TensorMut<'_>> = all.iter_mut().map(TensorMut::from).collect();
    store.allgather((&one).into(), &mut outs)?;
    let first: Vec<String> = all.iter().map(|value| value[0].to_string()).collect();
    report(store, "values of all", first.join(" "));
    Ok(())
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let store_type = std::env::args().nth(1).unwrap_or_else(|| "local".to_owned());
    let store = Store::open(&store_type, &Config::new())?;
    what_there_is(&store);
    ends_of_operations(&store)?;
    rules_of_keys(&store)?;
    means(&store)?;
    unequal_epochs(&store)?;
    bound_list(&store)?;
    opaque_values(&store)?;
    a_model_of_another_program(&store)?;
    clipping(&store)?;
    a_group(&store)?;
    collective_calls(&store)?;
    store.barrier(PATIENCE)?; // no worker leaves while others need its values
    Ok(store.close(PATIENCE)?)
}
