//! What the workers of the tests do. The test program starts itself again as a worker.

use std::io::{self, Write};
use std::process;
use std::thread;
use std::time::{Duration, Instant};

use half::f16;
use kvstore::{Config, Deadline, ErrorKind, Key, Result, Role, Store, Tensor, TensorMut};

/// The variable that names the program.
pub const PROGRAM: &str = "KV_TEST_PROGRAM";
/// What a worker says stands behind this.
pub const MARK: &str = "@ ";

pub const ROUNDS: &str = "KV_TEST_ROUNDS";
pub const COUNT: &str = "KV_TEST_COUNT";
pub const PAUSE_MS: &str = "KV_TEST_PAUSE_MS";
pub const FILE: &str = "KV_TEST_FILE";
/// A rule, and a codec, with their options behind a space; nothing for none.
pub const RULE: &str = "KV_TEST_RULE";
pub const CODEC: &str = "KV_TEST_CODEC";
/// Elements of the small key of `modelled`.
pub const SMALL: usize = 3;

/// How long to wait for a first value.
const LIMIT: Duration = Duration::from_secs(30);
/// How long a worker that failed may take to leave.
const LEAVE: Duration = Duration::from_secs(5);

/// Plays a worker if this test was started as one.
#[test]
fn worker() {
    let Ok(name) = std::env::var(PROGRAM) else { return };
    if std::env::var_os("KV_TEST_LOG").is_some() {
        let show = |level, text: &str| say(format_args!("log {level:?} {text}"));
        kvstore::set_logger(kvstore::Level::Debug, Some(std::sync::Arc::new(show)));
    }
    let store = match Store::open("dist_sync", &Config::new()) {
        Ok(store) => store,
        Err(error) => fail("refused", &error),
    };
    if store.role() == Role::Server {
        serve(&store);
    }
    say(format_args!("ready {}", process::id()));
    let result = match name.as_str() {
        "closed forms" => closed_forms(&store),
        "unequal counts" => unequal_counts(&store),
        "fast worker" => fast_worker(&store),
        "float sums" => float_sums(&store),
        "train" => train(&store),
        "barriers" => barriers(&store),
        "epochs" => epochs(&store),
        "load" => load(&store),
        "lists" => lists(&store),
        "updater" => updater(&store),
        "fails" => fails(&store),
        "resume" => resume(&store),
        "reads" => reads(&store),
        "names" => names(&store),
        "modelled" => modelled(&store),
        "looks on" => looks_on(&store),
        "saves" => saves(&store),
        other => panic!("no program {other}"),
    };
    if let Err(error) = result {
        say(format_args!("error {} {}", error.kind().name(), error.message()));
        let start = Instant::now();
        let left = store.close(LEAVE);
        let text = left.map_or_else(|error| error.to_string(), |()| "well".into());
        say(format_args!("left after {} ms: {text}", start.elapsed().as_millis()));
        process::exit(error.kind().code());
    }
    match store.close(Duration::from_secs(60)) {
        Ok(()) => say("closed"),
        Err(error) => fail("error", &error),
    }
    process::exit(0);
}

fn fail(word: &str, error: &kvstore::Error) -> ! {
    say(format_args!("{word} {} {}", error.kind().name(), error.message()));
    process::exit(error.kind().code());
}

pub fn say(text: impl std::fmt::Display) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{MARK}{text}");
    let _ = out.flush();
}

fn number(variable: &str, usual: usize) -> usize {
    std::env::var(variable).map_or(usual, |text| text.parse().unwrap())
}

/// A sum of what all workers push: worker r pushes r + 1.
fn sum_of_all(store: &Store) -> usize {
    let workers = usize::try_from(store.num_workers()).unwrap();
    workers * (workers + 1) / 2
}

fn rank(store: &Store) -> usize {
    usize::try_from(store.rank()).unwrap()
}

/// Shapes of the closed forms, and how many elements they have.
const SHAPES: [&[i64]; 6] = [&[2, 3], &[1200, 1200], &[1211, 1211], &[0], &[2, 0], &[1]];

/// After i rounds of a rule that adds twice the gradient: 1 + 2 i n (n + 1) / 2.
fn closed_forms(store: &Store) -> Result<()> {
    let count = |shape: &[i64]| shape.iter().product::<i64>() as usize;
    let push = rank(store) as f32 + 1.0;
    for (key, shape) in (0u64..).zip(SHAPES) {
        let (ones, halves) = (vec![1.0f32; count(shape)], vec![f16::ONE; count(shape)]);
        store.init(2 * key, Tensor::new(&ones, shape)?)?;
        store.init(2 * key + 1, Tensor::new(&halves, shape)?)?;
    }
    store.set_optimizer("test", "rescale_grad=2")?;
    for round in 1..=number(ROUNDS, 7) {
        let expected = (1 + 2 * round * sum_of_all(store)) as f32;
        for (key, shape) in (0u64..).zip(SHAPES) {
            let mut out = vec![0.0f32; count(shape)];
            let mut half_out = vec![f16::ZERO; count(shape)];
            let value = vec![push; count(shape)];
            let half = vec![f16::from_f32(push); count(shape)];
            store.push_list(
                &[Key::from(2 * key), Key::from(2 * key + 1)],
                &[Tensor::new(&value, shape)?, Tensor::new(&half, shape)?],
            )?;
            store.pull(2 * key, TensorMut::new(&mut out, shape)?)?;
            store.pull(2 * key + 1, TensorMut::new(&mut half_out, shape)?)?;
            assert!(out.iter().all(|it| *it == expected), "{shape:?}, round {round}");
            // Whole numbers up to 2,048 have no rounding.
            assert!(expected < 2048.0 && half_out.iter().all(|it| it.to_f32() == expected));
        }
        say(format_args!("round {round}"));
    }
    Ok(())
}

/// Worker r pushes r + 1 times; the round after that is closed without it.
fn unequal_counts(store: &Store) -> Result<()> {
    let (me, workers) = (rank(store), store.num_workers() as usize);
    store.init(5u64, &[1.0f32; 3])?;
    store.set_optimizer("test", "rescale_grad=2")?;
    let mut expected = 1;
    for round in 0..=me {
        store.push(5u64, &[me as f32 + 1.0; 3])?;
        expected += 2 * (round..workers).map(|rank| rank + 1).sum::<usize>();
        let mut out = [0.0f32; 3];
        store.pull(5u64, &mut out)?;
        assert_eq!(out, [expected as f32; 3], "worker {me}, round {round}");
    }
    // Some only leave.
    if me % 2 == 0 { store.done() } else { Ok(()) }
}

/// Worker 0 pushes twice before the others have begun.
fn fast_worker(store: &Store) -> Result<()> {
    let me = rank(store);
    let all = sum_of_all(store) as f32;
    let mut out = [0.0f32; 9];
    store.init(5u64, &[1.0f32; 9])?;
    for repeat in 0..7 {
        let pushes = [1.0f32, 10.0].map(|factor| [factor * (me as f32 + 1.0); 9]);
        if me == 0 {
            store.scope(Duration::from_secs(60), |scope| -> Result<()> {
                for value in &pushes {
                    scope.push_list(&[Key::from(5u64)], &[value.into()], 0)?;
                }
                Ok(())
            })?;
            store.pull(5u64, &mut out)?;
            assert_eq!(out, [10.0 * all; 9], "repeat {repeat}");
        } else {
            thread::sleep(Duration::from_millis(20));
            for (value, factor) in pushes.iter().zip([1.0, 10.0]) {
                store.push(5u64, value)?;
                store.pull(5u64, &mut out)?;
                assert_eq!(out, [factor * all; 9], "repeat {repeat}");
            }
        }
        store.barrier(Duration::from_secs(60))?;
    }
    Ok(())
}

/// Numbers whose sum depends on its order.
fn uneven(rank: usize, round: usize, element: usize) -> f32 {
    let mixed = (rank * 7919 + round * 104_729 + element * 31) as u32;
    let mixed = mixed.wrapping_mul(2_654_435_761) >> 8;
    (mixed as f32 - 8_388_608.0) * 2f32.powi((mixed % 23) as i32 - 11)
}

/// The elements of the two keys: one slice, and two.
const UNEVEN: [usize; 2] = [17, 3000];

/// Every round is the sum by rank, added to what was there, bit for bit.
fn float_sums(store: &Store) -> Result<()> {
    let (me, workers) = (rank(store), store.num_workers() as usize);
    let mut stored = UNEVEN.map(|count| vec![0.5f32; count]);
    for (key, values) in (0u64..).zip(&stored) {
        store.init(key, values)?;
    }
    store.set_optimizer("test", "rescale_grad=1")?;
    for round in 0..number(ROUNDS, 1000) {
        for (key, expected) in (0u64..).zip(&mut stored) {
            let count = expected.len();
            let values: Vec<Vec<f32>> = (0..workers)
                .map(|rank| (0..count).map(|element| uneven(rank, round, element)).collect())
                .collect();
            for (element, stored) in expected.iter_mut().enumerate() {
                let others = values[1..].iter();
                *stored += others.fold(values[0][element], |sum, value| sum + value[element]);
            }
            let mut out = vec![0.0f32; count];
            store.push(key, &values[me])?;
            store.pull(key, &mut out)?;
            let same = out.iter().zip(&*expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "key {key}, round {round}");
        }
        say(format_args!("round {round}"));
        thread::sleep(Duration::from_millis(number(PAUSE_MS, 0) as u64));
    }
    Ok(())
}

/// Rounds of two keys, a large and a small one, and now and then a barrier. Says each sum.
fn train(store: &Store) -> Result<()> {
    let (rounds, count) = (number(ROUNDS, 1_000_000), number(COUNT, 100_000));
    let pause = Duration::from_millis(number(PAUSE_MS, 10) as u64);
    let me = rank(store) as f32 + 1.0;
    let weight = store.intern("weight")?;
    store.init(weight, &vec![0.0f32; count])?;
    store.init(8u64, &[0.0f32; 3])?;
    let value = vec![me; count];
    let (mut large, mut small) = (vec![0.0f32; count], [0.0f32; 3]);
    for round in 1..=rounds {
        store.push(weight, &value)?;
        store.push(8u64, &[me; 3])?;
        store.pull(weight, &mut large)?;
        store.pull(8u64, &mut small)?;
        assert!(large.iter().all(|it| *it == large[0]), "round {round}");
        say(format_args!("sum {round} {} {}", large[0], small[2]));
        if round % 10 == 0 {
            store.barrier(Duration::from_secs(60))?;
        }
        thread::sleep(pause);
    }
    Ok(())
}

/// What a worker pushes in each round of `modelled`.
pub fn gradient(rank: usize) -> f32 {
    0.3 * (rank as f32 + 1.0)
}

/// Rounds of a small and a large key, under a rule and a codec, and now and then a barrier. Says the
/// bits of an element of the small one, and of the first and the last of the large one.
fn modelled(store: &Store) -> Result<()> {
    let (rounds, count) = (number(ROUNDS, 60), number(COUNT, 100_000));
    let pause = Duration::from_millis(number(PAUSE_MS, 10) as u64);
    let told = |variable| std::env::var(variable).unwrap_or_default();
    store.init(1u64, &[0.0f32; SMALL])?;
    store.init(2u64, &vec![0.0f32; count])?;
    if let Some((name, params)) = told(RULE).split_once(' ') {
        store.set_optimizer(name, params)?;
    }
    if let Some((name, params)) = told(CODEC).split_once(' ') {
        store.set_compression(name, params)?;
    }
    let value = gradient(rank(store));
    let all = vec![value; count];
    let (mut small, mut large) = ([0.0f32; SMALL], vec![0.0f32; count]);
    for round in 1..=rounds {
        store.push(1u64, &[value; SMALL])?;
        store.push(2u64, &all)?;
        store.pull(1u64, &mut small)?;
        store.pull(2u64, &mut large)?;
        let [one, first, last] = [small[1], large[0], large[count - 1]].map(f32::to_bits);
        say(format_args!("bits {round} {one:08x} {first:08x} {last:08x}"));
        if round % 10 == 0 {
            store.barrier(Duration::from_secs(60))?;
        }
        thread::sleep(pause);
    }
    Ok(())
}

/// A reader of the small key that `modelled` and `saves` train.
fn looks_on(store: &Store) -> Result<()> {
    let mut small = [0.0f32; SMALL];
    for _ in 0..number(ROUNDS, 60) {
        match store.pull(1u64, &mut small) {
            Ok(()) => say("looked"),
            Err(error) if error.kind() == ErrorKind::KeyNotFound => {}
            Err(error) => return Err(error),
        }
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Trains, and saves after each round. A save that ends because another worker was lost is made again.
fn saves(store: &Store) -> Result<()> {
    let (file, count) = (std::env::var(FILE).unwrap(), number(COUNT, 100_000));
    store.init(1u64, &[0.0f32; SMALL])?;
    store.init(2u64, &vec![0.0f32; count])?;
    store.set_optimizer("test", "rescale_grad=1")?;
    let value = vec![rank(store) as f32 + 1.0; count];
    let mut out = vec![0.0f32; count];
    for round in 1..=number(ROUNDS, 8) {
        store.push(1u64, &value[..SMALL])?;
        store.push(2u64, &value)?;
        store.pull(2u64, &mut out)?;
        say(format_args!("saving {round}"));
        if let Err(error) = store.save(&file) {
            say(format_args!("unsaved {} {}", error.kind().name(), error.message()));
            if error.kind() != ErrorKind::PeerLost {
                return Err(error);
            }
            store.save(&file)?;
        }
        say(format_args!("saved {round} {}", out[0]));
        thread::sleep(Duration::from_millis(number(PAUSE_MS, 10) as u64));
    }
    Ok(())
}

/// Barriers only, which need nothing but the scheduler.
fn barriers(store: &Store) -> Result<()> {
    for round in 1..=number(ROUNDS, 1_000_000) {
        store.barrier(Duration::from_secs(60))?;
        say(format_args!("barrier {round}"));
        thread::sleep(Duration::from_millis(number(PAUSE_MS, 10) as u64));
    }
    Ok(())
}

/// Epochs of unequal numbers of pushes; in the fourth one worker 1 is late for the resume.
fn epochs(store: &Store) -> Result<()> {
    store.init(7u64, &[0.0f32; 4])?;
    store.set_optimizer("test", "rescale_grad=1")?;
    let rank = usize::try_from(store.rank()).unwrap_or(0);
    for epoch in 1..=number(ROUNDS, 20) {
        for _ in 0..(rank + epoch) % 3 {
            store.push(7u64, &[1.0f32; 4])?;
        }
        if rank % 2 == 0 {
            store.done()?;
        }
        if (rank, epoch) == (1, 4) {
            thread::sleep(Duration::from_secs(2));
        }
        store.resume(Duration::from_secs(60))?;
        let mut sum = [0.0f32; 4];
        store.pull(7u64, &mut sum)?;
        say(format_args!("epoch {epoch} {}", sum[0]));
        thread::sleep(Duration::from_millis(number(PAUSE_MS, 10) as u64));
    }
    Ok(())
}

/// Keys of a few megabytes, again and again.
fn load(store: &Store) -> Result<()> {
    let counts = [500_000usize, 1_000_000];
    for (key, count) in (0u64..).zip(counts) {
        store.init(key, &vec![0.0f32; count])?;
    }
    let value = vec![1.0f32; counts[1]];
    let mut out = vec![0.0f32; counts[1]];
    for round in 1..=number(ROUNDS, 300) {
        for (key, count) in (0u64..).zip(counts) {
            store.push(key, &value[..count])?;
            store.pull(key, &mut out[..count])?;
            assert_eq!(out[count - 1], store.num_workers() as f32);
        }
        say(format_args!("round {round}"));
    }
    Ok(())
}

/// Lists of many keys, pushed and pulled without a wait between.
fn lists(store: &Store) -> Result<()> {
    let keys: Vec<Key> = (0..1_000_u64).map(Key::from).collect();
    let values: Vec<Vec<f32>> = (0..keys.len()).map(|key| vec![key as f32; 1024]).collect();
    let tensors: Vec<Tensor<'_>> = values.iter().map(|it| it.as_slice().into()).collect();
    let mut outs = vec![vec![0.0f32; 1024]; keys.len()];
    store.init_list(&keys, &tensors)?;
    for _ in 0..number(ROUNDS, 3) {
        outs.iter_mut().for_each(|out| out.fill(-1.0));
        let places: Vec<TensorMut<'_>> =
            outs.iter_mut().map(|it| it.as_mut_slice().into()).collect();
        store.scope(Deadline::Never, |scope| {
            scope.push_list(&keys, &tensors, 0)?;
            scope.pull_list(&keys, places, 0)
        })?;
        assert!(outs == values, "the values of one worker are the sums");
    }
    Ok(())
}

/// The servers run the updater of `serve`.
fn updater(store: &Store) -> Result<()> {
    store.init(3u64, &[1.0f32; 5])?;
    let mut out = [0.0f32; 5];
    for round in 1..=5 {
        store.push(3u64, &[rank(store) as f32 + 1.0; 5])?;
        store.pull(3u64, &mut out)?;
        assert_eq!(out, [(1 + 3 * round * sum_of_all(store)) as f32; 5]);
    }
    Ok(())
}

/// Worker 1 gives up, the others go on.
fn fails(store: &Store) -> Result<()> {
    store.init(3u64, &[1.0f32; 5])?;
    store.push(3u64, &[1.0f32; 5])?;
    if rank(store) == 1 {
        say("gives up");
        process::exit(7);
    }
    train(store)
}

/// Ten rounds, with a checkpoint after the fifth. Then worker 1 fails, unless the job was started
/// again: such a job goes on from the checkpoint.
fn resume(store: &Store) -> Result<()> {
    let file = std::env::var(FILE).unwrap();
    let is_again = number("KV_RESTARTS", 0) > 0;
    store.init(3u64, &[0.0f32; 5])?;
    store.set_optimizer("test", "rescale_grad=1")?;
    if is_again {
        store.load(&file)?;
    }
    let mut out = [0.0f32; 5];
    for round in if is_again { 6..=10 } else { 1..=10 } {
        store.push(3u64, &[rank(store) as f32 + 1.0; 5])?;
        store.pull(3u64, &mut out)?;
        assert_eq!(out, [(round * sum_of_all(store)) as f32; 5]);
        if round == 5 {
            store.save(&file)?;
            if rank(store) == 1 {
                process::exit(7);
            }
        }
    }
    Ok(())
}

/// Pulls what the others train, and may do nothing else.
fn reads(store: &Store) -> Result<()> {
    let mut out = [0.0f32; 3];
    let start = Instant::now();
    while out[0] == 0.0 && start.elapsed() < LIMIT {
        if let Err(error) = store.pull(8u64, &mut out)
            && error.kind() != ErrorKind::KeyNotFound
        {
            return Err(error);
        }
        thread::sleep(Duration::from_millis(10));
    }
    let kind = |result: Result<()>| result.map_or_else(|error| error.kind().name(), |()| "done");
    say(format_args!("push {}", kind(store.push(8u64, &[5.0f32; 3]))));
    say(format_args!("init {}", kind(store.init(9u64, &[5.0f32; 3]))));
    say(format_args!("read {}", out[0]));
    Ok(())
}

/// Worker 0 has one of two names that have the same key, a reader the other one, which tells it with a file
/// when it has seen enough.
fn names(store: &Store) -> Result<()> {
    let file = std::path::PathBuf::from(std::env::var_os(FILE).expect("a file"));
    let (start, reads) = (Instant::now(), store.rank() == 1);
    let key = store.intern(if reads { "57er3422k45qg" } else { "zydjx7v77kn7f" })?;
    if !reads {
        store.init(key, &[2.0f32; 3])?;
        while !file.exists() && start.elapsed() < LIMIT {
            thread::sleep(Duration::from_millis(10));
        }
        return Ok(());
    }
    let mut result = store.pull(key, &mut [0.0f32; 3]);
    while result.as_ref().is_err_and(|error| error.kind() == ErrorKind::KeyNotFound)
        && start.elapsed() < LIMIT
    {
        thread::sleep(Duration::from_millis(10));
        result = store.pull(key, &mut [0.0f32; 3]);
    }
    match result {
        Ok(()) => say("read"),
        Err(error) => say(format_args!("{} {error}", error.kind().name())),
    }
    std::fs::write(file, "seen").expect("a file");
    Ok(())
}

/// A server that a program runs itself: it adds three times what comes.
fn serve(store: &Store) -> ! {
    let rule = |_: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        let input = input.as_slice::<f32>().ok_or("not float32")?;
        let stored = stored.as_mut_slice::<f32>().ok_or("not float32")?;
        stored.iter_mut().zip(input).for_each(|(stored, input)| *stored += 3.0 * input);
        Ok(())
    };
    match store.set_updater(rule).and_then(|()| store.serve()) {
        Ok(()) => say("served"),
        Err(error) => fail("error", &error),
    }
    process::exit(0);
}
