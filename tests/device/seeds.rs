//! Random programs: two threads with streams of two GPUs, tickets, both memories; every out is that of a
//! model, a store in host memory with the calls in the same order.
//!
//! `KV_TEST_SEEDS=n` runs n of them, from `KV_TEST_FIRST` on.

use std::env;
use std::ffi::CStr;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use kvstore::DType;

use super::array::{Array, Place, Random};
use super::dense::assert_same;
use super::store::{Call, Device, GPU, Store, set_stream};
use super::{gpu, is_child};

/// Programs of a usual run.
const PROGRAMS: u64 = 60;
/// Calls of a program.
const CALLS: usize = 24;

type Work<'a> = Box<dyn FnOnce() + Send + 'a>;

/// A thread with a stream of its own, which does one piece of work at a time.
struct Worker<'a> {
    work: Sender<Work<'a>>,
    done: Receiver<()>,
}

/// The second GPU; a machine may have one only.
fn second() -> i32 {
    i32::from(gpu::devices() > 1)
}

/// Streams of both GPUs, named for this thread; of one GPU the same stream twice.
fn new_streams() -> [u64; 2] {
    let new = |id| {
        let stream = gpu::on(id, gpu::stream);
        set_stream(Device { id, ..GPU }, stream).unwrap();
        stream
    };
    let first = new(0);
    [first, if second() == 0 { first } else { new(1) }]
}

fn destroy(streams: [u64; 2]) {
    for (device, stream) in (0..=second()).zip(streams) {
        assert_eq!(gpu::on(device, || gpu::destroy(stream)), 0);
    }
}

impl<'a> Worker<'a> {
    fn start<'scope>(scope: &'scope thread::Scope<'scope, 'a>) -> Self
    where
        'a: 'scope,
    {
        let (work, tasks) = channel::<Work<'a>>();
        let (reply, done) = channel();
        scope.spawn(move || {
            gpu::start(0);
            for task in tasks {
                task();
                reply.send(()).unwrap();
            }
        });
        Self { work, done }
    }

    /// Runs work on the thread; a later piece of work on any thread begins when it has returned.
    fn run(&self, work: impl FnOnce() + Send + 'a) {
        self.work.send(Box::new(work)).unwrap();
        self.done.recv().expect("the thread has failed");
    }
}

/// The arrays of a call, which outlive its operation.
struct Made {
    values: Vec<(u64, Array)>,
    outs: Vec<(u64, Array)>,
    wanted: Vec<(u64, Array)>,
    ticket: Option<u64>,
}

fn borrow(list: &[(u64, Array)]) -> Vec<(u64, &Array)> {
    list.iter().map(|(key, array)| (*key, array)).collect()
}

/// One program.
struct Program<'a> {
    store: &'a Store,
    peer: &'a Store,
    random: Random,
    /// Elements of each key.
    counts: [i64; 3],
}

impl Program<'_> {
    /// An array at a place that is drawn.
    fn array(&mut self, streams: [u64; 2], shape: &[i64]) -> Array {
        let (place, stream) = match self.random.below(6) {
            0 => (Place::Host, 0),
            1 => (Place::Other(second()), streams[1]),
            _ => (Place::Gpu, streams[0]),
        };
        Array::on(stream, place, DType::F32, shape, None)
    }

    /// Makes the arrays of a random call; those on the GPU are written on a stream.
    fn draw(&mut self, streams: [u64; 2]) -> (Call, Made, Vec<(u64, Array)>) {
        let call = [Call::Push, Call::Pull, Call::PushPull][self.random.below(3) as usize];
        let (mut values, mut twins) = (Vec::new(), Vec::new());
        let (mut outs, mut wanted) = (Vec::new(), Vec::new());
        for key in 0..3u64 {
            if self.random.below(3) == 0 {
                continue;
            }
            let shape = [self.counts[key as usize]];
            let pushed = if call == Call::Pull { 0 } else { 1 + self.random.below(3) };
            for _ in 0..pushed {
                let elements = self.random.elements(DType::F32, shape[0] as usize);
                let value = self.array(streams, &shape).with(&elements);
                values.push((key, value));
                let twin = Array::plain(Place::Host, DType::F32, &shape).with(&elements);
                twins.push((key, twin));
            }
            if call != Call::Push {
                outs.push((key, self.array(streams, &shape)));
                wanted.push((key, Array::plain(Place::Host, DType::F32, &shape)));
            }
        }
        (call, Made { values, outs, wanted, ticket: None }, twins)
    }

    /// Makes a random call on this thread, and the same on the model.
    fn call(&mut self, streams: [u64; 2]) -> Made {
        let (call, made, twins) = self.draw(streams);
        self.make(call, made, &twins)
    }

    fn make(&mut self, call: Call, mut made: Made, twins: &[(u64, Array)]) -> Made {
        let (values, outs) = (borrow(&made.values), borrow(&made.outs));
        if self.random.below(3) == 0 {
            made.ticket = Some(self.store.submit(call, &values, &outs).unwrap());
        } else {
            // Without values or without outs a bound list has fewer calls.
            let is_bound = !values.is_empty() && !outs.is_empty() && self.random.below(2) == 0;
            let result = if is_bound {
                self.store.bind(&values, &outs).and_then(|list| list.call(call))
            } else {
                self.store.call(call, &values, &outs)
            };
            result.unwrap_or_else(|failure| panic!("{failure:?}; {}", gpu::message()));
            // The caller may use its values again in stream order.
            for (_, value) in &mut made.values {
                value.overwrite(0x7FC0_0000);
            }
        }
        self.peer.call(call, &borrow(twins), &borrow(&made.wanted)).unwrap();
        made
    }

    /// Removes a key, and initialises it with other elements, possibly elsewhere.
    fn remake(&mut self, streams: [u64; 2]) {
        let key = self.random.below(3);
        let count = self.counts[key as usize];
        let elements = self.random.elements(DType::F32, count as usize);
        let value = self.array(streams, &[count]).with(&elements);
        let twin = Array::plain(Place::Host, DType::F32, &[count]).with(&elements);
        for (store, value) in [(self.store, &value), (self.peer, &twin)] {
            store.remove(&[key]).unwrap();
            store.init(&[(key, value)]).unwrap();
        }
    }

    /// Destroys the streams of this thread behind a push that is on its way, and makes new ones,
    /// which have the old handles.
    fn replace(&mut self, streams: [u64; 2]) -> [u64; 2] {
        let (call, mut made, twins) = self.draw(streams);
        if call == Call::Push && !made.values.is_empty() {
            let values = borrow(&made.values);
            self.store.call(call, &values, &[]).unwrap();
            self.peer.call(call, &borrow(&twins), &[]).unwrap();
            // The push may not have read them, and no handle is left to wait for it.
            made.values.drain(..).for_each(|(_, value)| std::mem::forget(value));
        }
        destroy(streams);
        new_streams()
    }

    /// Waits for calls, and compares their outs.
    fn finish(&self, calls: Vec<Made>, what: &str) {
        for (index, call) in calls.into_iter().enumerate() {
            call.ticket.map_or(Ok(()), |ticket| self.store.wait(ticket, 60_000)).unwrap();
            for ((key, out), (_, wanted)) in call.outs.iter().zip(&call.wanted) {
                let (place, has_ticket) = (out.place, call.ticket.is_some());
                let what = format!("{what}, call {index}, key {key}, {place:?}, {has_ticket}");
                assert_same(out, wanted, &what);
            }
            call.values.into_iter().chain(call.outs).for_each(|(_, array)| array.free());
        }
    }
}

fn run(seed: u64) {
    gpu::seed(seed);
    let mut random = Random(seed);
    let kind = ["device", "local"][random.below(2) as usize];
    let (store, peer) = (Store::new(kind), Store::new("local"));
    let counts = [1, 37, 300];
    for (key, count) in (0..).zip(counts) {
        let elements = random.elements(DType::F32, count as usize);
        let of = |place| Array::plain(place, DType::F32, &[count]).with(&elements);
        let place = [Place::Host, Place::Other(second()), Place::Gpu, Place::Gpu];
        let place = place[random.below(4) as usize];
        store.init(&[(key, &of(place))]).unwrap();
        peer.init(&[(key, &of(Place::Host))]).unwrap();
    }
    let rule = [("sgd", "learning_rate=0.5,momentum=0.5"), ("adam", "")];
    if let Some((name, params)) = rule.get(random.below(3) as usize) {
        store.set_optimizer(name, params).unwrap();
        peer.set_optimizer(name, params).unwrap();
    }
    let program = Mutex::new(Program { store: &store, peer: &peer, random, counts });
    let made = Mutex::new(Vec::new());
    let what = format!("seed {seed}, {kind}");
    // They outlive the threads.
    let streams = [0, 1].map(|_| Mutex::new(None));
    thread::scope(|scope| {
        let workers = [0, 1].map(|_| Worker::start(scope));
        let mut order = Random(!seed);
        for _ in 0..CALLS {
            let (at, action) = (order.below(2) as usize, order.below(12));
            let (program, made, streams, what) = (&program, &made, &streams[at], &what);
            workers[at].run(move || {
                let mut program = program.lock().unwrap();
                let mut named = streams.lock().unwrap();
                let own = *named.get_or_insert_with(new_streams);
                match action {
                    0 => program.remake(own),
                    1 => {
                        program.finish(std::mem::take(&mut made.lock().unwrap()), what);
                        *named = Some(program.replace(own));
                    }
                    _ => made.lock().unwrap().push(program.call(own)),
                }
            });
        }
    });
    program.into_inner().unwrap().finish(made.into_inner().unwrap(), &what);
    streams.into_iter().filter_map(|it| it.into_inner().unwrap()).for_each(destroy);
}

/// Failures of the driver before anything is queued; the first allocation is tried twice.
const FAULTS: [&CStr; 7] = [
    c"cuMemAllocFromPoolAsync:1=2,cuMemAllocFromPoolAsync:2=2",
    c"cuMemAllocFromPoolAsync:2=2,cuMemAllocFromPoolAsync:3=2",
    c"cuMemAllocFromPoolAsync:3=2,cuMemAllocFromPoolAsync:4=2",
    c"cuMemHostAlloc:1=2",
    c"cuModuleLoadDataEx:1=221",
    c"cuPointerGetAttributes:2=1",
    c"cuStreamIsCapturing:1=1",
];

/// Calls on one key, some of which fail: those change nothing. Gives how many.
fn run_with_faults(seed: u64) -> usize {
    let mut failed = 0;
    gpu::seed(seed);
    let mut random = Random(seed);
    let kind = ["device", "local"][random.below(2) as usize];
    let (store, peer) = (Store::new(kind), Store::new("local"));
    let dtype = [DType::F32, DType::F16][random.below(2) as usize];
    let rules = [("sgd", "momentum=0.5"), ("nadam", "multi_precision=true")];
    let (name, params) = rules[random.below(2) as usize];
    let place = |random: &mut Random| [Place::Gpu, Place::Host][random.below(2) as usize];
    let array = |random: &mut Random, elements: &[u64]| {
        let strides = [None, Some(&[2i64][..])][random.below(2) as usize];
        Array::new(place(random), dtype, &[elements.len() as i64], strides).with(elements)
    };
    let elements = random.elements(dtype, 50);
    let plain = |place| Array::plain(place, dtype, &[50]).with(&elements);
    store.init(&[(1, &plain(Place::Gpu))]).unwrap();
    peer.init(&[(1, &plain(Place::Host))]).unwrap();
    [&store, &peer].iter().for_each(|store| store.set_optimizer(name, params).unwrap());
    for index in 0..16 {
        let call = [Call::Push, Call::Pull, Call::PushPull][random.below(3) as usize];
        let pushed = if call == Call::Pull { 0 } else { 1 + random.below(2) };
        let values: Vec<_> = (0..pushed).map(|_| random.elements(dtype, 50)).collect();
        let here = values.iter().map(|it| (1, array(&mut random, it))).collect::<Vec<_>>();
        let twins = values.iter().map(|it| Array::plain(Place::Host, dtype, &[50]).with(it));
        let twins = twins.map(|it| (1, it)).collect::<Vec<_>>();
        let filled = u64::from(call != Call::Push);
        let outs = (0..filled).map(|_| (1, array(&mut random, &[0; 50]))).collect::<Vec<_>>();
        let wanted = outs.iter().map(|_| (1, Array::plain(Place::Host, dtype, &[50])));
        let wanted = wanted.collect::<Vec<_>>();
        gpu::fail(FAULTS.get(random.below(12) as usize).unwrap_or(&c""));
        let result = store.call(call, &borrow(&here), &borrow(&outs));
        gpu::fail(c"");
        if let Err(failure) = &result {
            assert!([60, 64].contains(&failure.status), "{failure:?}");
            assert!(failure.text.contains("key 1"), "{failure:?}");
            failed += 1;
        } else {
            peer.call(call, &borrow(&twins), &borrow(&wanted)).unwrap();
            for ((_, out), (_, wanted)) in outs.iter().zip(&wanted) {
                assert_same(out, wanted, &format!("seed {seed}, {kind}, {dtype:?}, call {index}"));
            }
        }
        here.into_iter().chain(outs).for_each(|(_, array)| array.free());
    }
    failed
}

#[test]
fn calls_that_fail_before_anything_is_queued_change_nothing() {
    if !is_child("seeds::calls_that_fail_before_anything_is_queued_change_nothing", &[]) {
        return;
    }
    gpu::start(0);
    let failed: usize = (0..PROGRAMS).map(run_with_faults).sum();
    assert!(failed > 100, "{failed} calls failed");
}

#[test]
fn random_programs_equal_the_model() {
    // Another driver has the GPUs that it has.
    let gpus = [("KV_CUDA_STAND_IN_DEVICES", "2")];
    let gpus = if gpu::is_stand_in() { &gpus[..] } else { &[] };
    if !is_child("seeds::random_programs_equal_the_model", gpus) {
        return;
    }
    run_all();
}

/// Memory comes from blocks that are used again behind an event.
#[test]
fn random_programs_equal_the_model_on_gpus_without_memory_pools() {
    let without_pools = [("KV_CUDA_STAND_IN_DEVICES", "2"), ("KV_CUDA_STAND_IN_POOLS", "no")];
    let test = "seeds::random_programs_equal_the_model_on_gpus_without_memory_pools";
    if is_child(test, &without_pools) {
        run_all();
        assert_eq!(gpu::calls(c"cuMemAllocFromPoolAsync"), 0);
    }
}

/// Keys take several pieces: of 1,200 bytes 19, with two in flight.
#[test]
fn random_programs_equal_the_model_in_small_pieces() {
    let small = [("KV_CUDA_STAND_IN_DEVICES", "2"), ("KV_TEST_PIECE_BYTES", "64")];
    if is_child("seeds::random_programs_equal_the_model_in_small_pieces", &small) {
        run_all();
    }
}

/// Runs the programs of some seeds.
fn run_all() {
    let number = |name: &str, default: u64| {
        env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (number("KV_TEST_FIRST", 0), number("KV_TEST_SEEDS", PROGRAMS));
    gpu::start(0);
    for seed in first..first + count {
        let _named = NamedSeed(seed);
        run(seed);
    }
}

/// Names its seed when a program fails, wherever it does.
struct NamedSeed(u64);

impl Drop for NamedSeed {
    #[allow(clippy::print_stderr, reason = "KV_TEST_FIRST runs the program again")]
    fn drop(&mut self) {
        if thread::panicking() {
            eprintln!("random program failed: KV_TEST_FIRST={} KV_TEST_SEEDS=1", self.0);
        }
    }
}
