//! `kvstore diff`: planted faults are named with their key, round and cause; undisturbed runs are the same.

use std::collections::HashSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use kvstore::{Config, Key, Store, Tensor};
use serde_json::Value;

use super::common::random::{Random, operations};
use super::launcher::PROGRAM;

const LIMIT: Duration = Duration::from_secs(60);

/// A folder that goes with the value.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("kvstore-diff-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The only file in it.
    fn file(&self) -> PathBuf {
        let files: Vec<_> = fs::read_dir(&self.0).unwrap().map(|it| it.unwrap().path()).collect();
        let [file] = &files[..] else { panic!("{files:?}") };
        file.clone()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The status, standard output and standard error.
pub fn diff(options: &[&str], a: &Path, b: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM).arg("diff").args(options).args([a, b]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

/// What a run does, drawn from a seed.
#[derive(Clone)]
pub struct Program {
    pub names: Vec<Option<String>>,
    pub sizes: Vec<usize>,
    pub rounds: u64,
    pub workers: usize,
    pub rule: Option<(&'static str, &'static str)>,
    /// A hyperparameter changes before this round.
    pub change: u64,
    pub codec: Option<&'static str>,
}

/// What one of two runs does otherwise: at a key, in a round.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    None,
    /// Bit of an element of the contribution of a rank.
    Push {
        key: usize,
        round: u64,
        rank: usize,
        bit: u32,
    },
    /// Bit of the new value.
    Value {
        key: usize,
        round: u64,
        bit: u32,
    },
    /// The hyperparameter changes a round later.
    Late,
    /// A rank contributes nothing.
    Lost {
        key: usize,
        round: u64,
    },
    /// Bit of the digest of a state: as a bit of the state would change it.
    State {
        key: usize,
        round: u64,
    },
    /// The run ends a round earlier, for one key.
    Short {
        key: usize,
    },
}

impl Program {
    fn draw(random: &mut Random) -> Self {
        let keys = 2 + random.index(4);
        let rules = [
            None,
            Some(("sgd", "learning_rate=0.5")),
            Some(("sgd", "learning_rate=0.5,momentum=0.5")),
            Some(("adam", "learning_rate=0.5")),
        ];
        Self {
            names: (0..keys).map(|at| random.one_in(2).then(|| format!("layer {at}"))).collect(),
            sizes: (0..keys).map(|_| 1 + random.index(3_000)).collect(),
            rounds: 3 + random.index(4) as u64,
            workers: 2 + random.index(3),
            rule: random.pick(&rules),
            change: 2,
            codec: None,
        }
    }

    fn key(&self, store: &Store, at: usize) -> Key {
        let name = self.names[at].as_ref();
        name.map_or_else(|| Key::from(at as u64), |name| store.intern(name).unwrap())
    }

    /// What a rank contributes.
    fn value(&self, at: usize, round: u64, rank: usize) -> Vec<f32> {
        let number = |i: usize| {
            let mixed = (i as u64 + 1) * 2_654_435_761 + round * 97 + rank as u64 * 13 + at as u64;
            let small = u16::try_from((mixed >> 7) % 2_048).unwrap();
            f32::from(small) / 512.0 - 2.0
        };
        (0..self.sizes[at]).map(number).collect()
    }

    /// Makes the calls of some ranks: all of them in a local store, one on a worker.
    fn run(&self, store: &Store, ranks: std::ops::Range<usize>, fault: Fault) {
        let keys: Vec<Key> = (0..self.sizes.len()).map(|at| self.key(store, at)).collect();
        if let Some((name, options)) = self.rule {
            store.set_optimizer(name, options).unwrap();
        }
        if let Some(codec) = self.codec {
            store.set_compression(codec, "").unwrap();
        }
        for (at, key) in keys.iter().enumerate() {
            store.init(*key, &vec![1.0f32; self.sizes[at]]).unwrap();
        }
        let late = u64::from(fault == Fault::Late);
        for round in 1..=self.rounds {
            if round == self.change + late && self.rule.is_some() {
                store.set_hyperparameter("learning_rate", 0.25).unwrap();
            }
            for (at, key) in keys.iter().enumerate() {
                if fault == (Fault::Short { key: at }) && round == self.rounds {
                    continue;
                }
                let mut values: Vec<Vec<f32>> =
                    ranks.clone().map(|rank| self.value(at, round, rank)).collect();
                match fault {
                    Fault::Push { key, round: when, rank, bit }
                        if (key, when) == (at, round) && ranks.contains(&rank) =>
                    {
                        let element =
                            &mut values[rank - ranks.start][bit as usize % self.sizes[at]];
                        *element = f32::from_bits(element.to_bits() ^ (1 << (bit % 32)));
                    }
                    Fault::Lost { key, round: when }
                        if (key, when) == (at, round) && ranks.end == self.workers =>
                    {
                        values.pop();
                    }
                    _ => {}
                }
                let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
                store.push_list(&vec![*key; tensors.len()], &tensors).unwrap();
            }
        }
    }

    pub fn local(&self, folder: &Path, options: &[(&str, &str)], fault: Fault) {
        let mut config = Config::new().with("digests", "all").unwrap();
        config.set("digest_log", folder.to_str().unwrap()).unwrap();
        options.iter().for_each(|(name, value)| config.set(name, value).unwrap());
        let store = Store::open("local", &config).unwrap();
        if let Fault::Value { key, round, bit } = fault {
            self.spoil(&store, key, round, bit);
        }
        self.run(&store, 0..self.workers, fault);
        store.close(LIMIT).unwrap();
        drop(store);
        if let Fault::State { key, round } = fault {
            self.alter_state(folder, key, round);
        }
    }

    /// An updater that assigns, and flips a bit of a key in a round; a round of 0 flips none.
    fn spoil(&self, store: &Store, key: usize, round: u64, bit: u32) {
        let (key, size) = (self.key(store, key), self.sizes[key]);
        let pushes = AtomicUsize::new(0);
        let update = move |of: Key, sum: &Tensor<'_>, stored: &mut kvstore::TensorMut<'_>| {
            let sum = sum.as_slice::<f32>().unwrap();
            let stored = stored.as_mut_slice::<f32>().unwrap();
            stored.copy_from_slice(sum);
            if of == key && pushes.fetch_add(1, Ordering::Relaxed) as u64 + 1 == round {
                let element = &mut stored[bit as usize % size];
                *element = f32::from_bits(element.to_bits() ^ (1 << (bit % 32)));
            }
            Ok(())
        };
        store.set_updater(update).unwrap();
    }

    /// Alters the digest of the first array of a state in the log, as another state would.
    fn alter_state(&self, folder: &Path, key: usize, round: u64) {
        let name = &self.names[key];
        let mut log = String::new();
        let file = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
        for line in fs::read_to_string(&file).unwrap().lines() {
            let value: Value = serde_json::from_str(line).unwrap();
            let is_key = match name {
                Some(name) => value["name"] == **name,
                None => value["key"] == key,
            };
            let mut line = line.to_owned();
            if is_key && value["round"] == round {
                let old = value["state"][0][0].as_str().unwrap();
                let new = format!("{:016x}", u64::from_str_radix(old, 16).unwrap() ^ 1);
                let at = line.find("\"state\"").unwrap();
                line = sealed(&line[..at], &line[at..].replacen(old, &new, 1));
            }
            log += &line;
            log.push('\n');
        }
        fs::write(file, log).unwrap();
    }

    /// A job: a thread for each process. Each worker makes the calls of as many ranks.
    pub fn job(
        &self,
        folder: &Path,
        (workers, servers): (usize, usize),
        options: &[(&str, &str)],
        fault: Fault,
    ) {
        let root = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let open = |role: &str, rank: Option<usize>| {
            let mut config = Config::new().with("digests", "all").unwrap();
            let all = [
                ("digest_log", folder.to_str().unwrap()),
                ("root", &root),
                ("job", &root),
                ("role", role),
                ("num_workers", &workers.to_string()),
                ("num_servers", &servers.to_string()),
                ("timeout_ms", "60000"),
            ];
            all.iter().chain(options).for_each(|(name, value)| config.set(name, value).unwrap());
            if let Some(rank) = rank {
                config.set("rank", &rank.to_string()).unwrap();
            }
            move || Store::open("dist_sync", &config).unwrap()
        };
        let serving: Vec<_> = std::iter::once("scheduler")
            .chain((0..servers).map(|_| "server"))
            .map(|role| {
                let open = open(role, None);
                thread::spawn(move || open().serve().unwrap())
            })
            .collect();
        let (program, of_each) = (Arc::new(self.clone()), self.workers / workers);
        let workers: Vec<_> = (0..workers)
            .map(|rank| {
                let (open, program) = (open("worker", Some(rank)), Arc::clone(&program));
                thread::spawn(move || {
                    let store = open();
                    program.run(&store, rank * of_each..(rank + 1) * of_each, fault);
                    store.barrier(LIMIT).unwrap();
                    store.close(LIMIT).unwrap();
                })
            })
            .collect();
        workers.into_iter().chain(serving).for_each(|thread| thread.join().unwrap());
    }
}

/// The line of two parts, with the checksum that fits.
fn sealed(first: &str, rest: &str) -> String {
    let (rest, _) = rest.rsplit_once(",\"crc\"").unwrap();
    let line = format!("{first}{rest}");
    let sum = crc32c::crc32c(line.as_bytes());
    format!("{line},\"crc\":\"{sum:08x}\"}}")
}

/// A fault that the program can have.
fn draw(random: &mut Random, program: &mut Program) -> Fault {
    let key = random.index(program.sizes.len());
    let round = 1 + random.below(program.rounds);
    let bit = u32::try_from(random.index(1 << 16)).unwrap();
    match random.index(6) {
        0 => Fault::Push { key, round, rank: random.index(program.workers), bit },
        1 => {
            program.rule = None;
            Fault::Value { key, round, bit }
        }
        2 => {
            program.rule = Some(("sgd", "learning_rate=0.5"));
            Fault::Late
        }
        3 => Fault::Lost { key, round },
        4 => {
            program.rule = Some(("adam", "learning_rate=0.5"));
            Fault::State { key, round }
        }
        _ => Fault::Short { key },
    }
}

/// Checks that the fault is what `kvstore diff` names.
fn check(program: &Program, fault: Fault, found: &Value, text: &str) {
    let first = &found["first"];
    let (key, round, cause) = match fault {
        Fault::None => unreachable!(),
        Fault::Push { key, round, rank, .. } => {
            assert_eq!(first["differ"], serde_json::json!([rank]));
            assert_eq!(first["agree"].as_array().unwrap().len(), program.workers - 1);
            assert!(text.contains(&format!("the contribution of rank {rank} differs")), "{text}");
            (key, round, "contribution")
        }
        Fault::Lost { key, round } => {
            assert_eq!(first["only_a"], serde_json::json!([program.workers - 1]));
            assert!(text.contains("contributed in A only"), "{text}");
            (key, round, "contribution")
        }
        Fault::Value { key, round, .. } => {
            assert_eq!(first["known"], true);
            (key, round, "value")
        }
        Fault::Late => {
            let rules =
                (first["a"]["rule"].as_str().unwrap(), first["b"]["rule"].as_str().unwrap());
            assert!(rules.0.contains("0.25") && rules.1.contains("0.5"), "{rules:?}");
            assert!(text.contains("the rule is"), "{text}");
            (first["key"].as_u64().map_or(0, |_| 0), program.change, "value")
        }
        Fault::State { key, round } => {
            assert_eq!(first["arrays"], serde_json::json!([0]));
            (key, round, "state")
        }
        Fault::Short { key } => {
            assert_eq!((&first["only_in_a"], &first["whole_key"]), (&true.into(), &false.into()));
            (key, program.rounds, "missing")
        }
    };
    assert_eq!(first["cause"], cause);
    assert_eq!(first["round"], round);
    if fault == Fault::Late {
        // All keys differ, and the first of the order is named.
        return assert_eq!(first["differ_here"][0], program.sizes.len());
    }
    match &program.names[key] {
        Some(name) => assert_eq!(first["name"], **name),
        None => assert_eq!(first["key"], key),
    }
}

#[test]
fn planted_faults_are_named_with_key_round_and_cause() {
    let seed = std::env::var("KV_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| u64::from(std::process::id()) << 20);
    let mut kinds = HashSet::new();
    for number in 0..operations(60) as u64 {
        let mut random = Random::new(seed + number);
        let mut program = Program::draw(&mut random);
        let fault = draw(&mut random, &mut program);
        println!("KV_TEST_SEED={} {fault:?}", seed + number);
        kinds.insert(std::mem::discriminant(&fault));
        let (a, b) = (Folder::new(), Folder::new());
        let threads = [("threads", "1"), ("threads", "3")];
        // The undisturbed run of a faulty updater has the same updater without the fault.
        let good = match fault {
            Fault::Value { key, bit, .. } => Fault::Value { key, round: 0, bit },
            _ => Fault::None,
        };
        program.local(&a.0, &threads[..1], good);
        program.local(&b.0, &threads[1..], fault);
        let (status, text, errors) = diff(&[], &a.0, &b.0);
        assert_eq!((status, errors.as_str()), (Some(1), ""), "{text}");
        let found = serde_json::from_str(&diff(&["--json"], &a.0, &b.0).1).unwrap();
        check(&program, fault, &found, &text);
    }
    assert!(kinds.len() > 3);
}

/// A worker that skips a push makes its later ones a round earlier.
#[test]
fn planted_faults_of_jobs_are_named_whatever_their_servers_and_slices() {
    let seed = u64::from(std::process::id()) << 20;
    for number in 0..operations(8) as u64 {
        let mut random = Random::new(seed + number);
        let mut program = Program::draw(&mut random);
        let fault = loop {
            match draw(&mut random, &mut program) {
                Fault::Value { .. } | Fault::State { .. } => {}
                Fault::Lost { round, .. } if round == program.rounds => {}
                fault => break fault,
            }
        };
        println!("seed {} {fault:?}", seed + number);
        let folders = [Folder::new(), Folder::new()];
        for (folder, fault) in folders.iter().zip([Fault::None, fault]) {
            let slices = random.pick(&["4096", "8192", "262144"]);
            let options = [("slice_bytes", slices), ("shm", random.pick(&["yes", "no"]))];
            let sizes = (program.workers, 1 + random.index(3));
            program.job(&folder.0, sizes, &options, fault);
        }
        let (status, text, errors) = diff(&[], &folders[0].0, &folders[1].0);
        assert_eq!((status, errors.as_str()), (Some(1), ""), "{text}");
        let found = serde_json::from_str(&diff(&["--json"], &folders[0].0, &folders[1].0).1);
        let last = program.workers - 1;
        let fault = match fault {
            Fault::Lost { key, round } => Fault::Push { key, round, rank: last, bit: 0 },
            fault => fault,
        };
        check(&program, fault, &found.unwrap(), &text);
    }
}

#[test]
fn undisturbed_runs_are_the_same_whatever_servers_slices_and_threads() {
    let seed = u64::from(std::process::id()) << 20;
    for number in 0..operations(5) as u64 {
        let mut random = Random::new(seed + number);
        let program = Program::draw(&mut random);
        println!("seed {}", seed + number);
        let folders = [Folder::new(), Folder::new(), Folder::new()];
        for (folder, servers) in folders.iter().zip([1 + random.index(2), 1 + random.index(3)]) {
            let slices = random.pick(&["4096", "8192", "262144"]);
            let shm = random.pick(&["yes", "no"]);
            let threads = random.pick(&["1", "2", "4"]);
            let options = [("slice_bytes", slices), ("shm", shm), ("threads", threads)];
            program.job(&folder.0, (program.workers, servers), &options, Fault::None);
        }
        program.local(&folders[2].0, &[], Fault::None);
        let same = format!("same: {} rounds of {} keys\n", program.rounds, program.sizes.len());
        for (a, b) in [(0, 1), (0, 2), (2, 1)] {
            let (status, out, errors) = diff(&[], &folders[a].0, &folders[b].0);
            assert_eq!((status, out.as_str(), errors.as_str()), (Some(0), same.as_str(), ""));
        }
    }
}

/// Two runs of one program in local stores.
fn two_runs(program: &Program) -> [Folder; 2] {
    let folders = [Folder::new(), Folder::new()];
    folders.iter().for_each(|folder| program.local(&folder.0, &[], Fault::None));
    folders
}

fn small() -> Program {
    Program {
        names: vec![Some("w".into()), None],
        sizes: vec![5, 700],
        rounds: 4,
        workers: 2,
        rule: Some(("sgd", "learning_rate=0.5,momentum=0.5")),
        change: 2,
        codec: None,
    }
}

/// What it says about folders that it cannot compare: the sentence, with status 2.
fn refused(a: &Path, b: &Path) -> String {
    let (status, out, errors) = diff(&[], a, b);
    assert_eq!((status, out.as_str()), (Some(2), ""), "{errors}");
    assert!(errors.starts_with("kvstore diff: not comparable: "), "{errors}");
    errors
}

#[test]
fn what_cannot_be_compared_is_said_in_a_sentence() {
    let [a, b] = two_runs(&small());
    let file = b.file();
    let log = fs::read_to_string(&file).unwrap();
    let with = |text: String| {
        fs::write(&file, text).unwrap();
        refused(&a.0, &b.0)
    };
    let lines: Vec<&str> = log.lines().collect();
    let round = lines.iter().position(|line| line.contains("\"round\":2")).unwrap();
    // A digit that is altered.
    let mut altered = lines.clone();
    let line = lines[round].replacen("\"round\":2", "\"round\":3", 1);
    altered[round] = &line;
    let text = with(altered.join("\n") + "\n");
    assert!(text.contains(&format!("line {} of", round + 1)), "{text}");
    assert!(text.contains("checksum differs"), "{text}");
    // A line that is cut in the middle of the file, and one that is no text.
    let mut cut = lines.clone();
    cut[round] = &lines[round][..40];
    assert!(with(cut.join("\n") + "\n").contains("it is damaged"));
    assert!(with("no log\n".into()).contains("it is damaged"));
    assert!(with(String::new()).contains("without a round"));
    // Another format.
    let later = sealed("", &lines[0].replacen("digests\":1", "digests\":9", 1));
    let text = with(format!("{later}\n"));
    assert!(text.contains("its format is 9, and this program reads 1"), "{text}");
    // A file that begins in the middle.
    assert!(with(lines[1..].join("\n") + "\n").contains("no digest log"));
    // Logs of two runs in one folder.
    fs::write(&file, &log).unwrap();
    fs::copy(&file, b.0.join("local-copy.jsonl")).unwrap();
    assert!(refused(&a.0, &b.0).contains("more than one run"));
    // No folder, none with a log, a folder and a file.
    let empty = Folder::new();
    assert!(refused(&a.0, &empty.0).contains("has no digest log"));
    assert!(refused(&a.0.join("none"), &a.0).contains("No such file"));
    assert!(refused(&a.0, &a.file()).contains("one is a folder and the other a file"));
}

#[test]
fn logs_of_different_programs_are_not_compared() {
    let [a, b] = two_runs(&small());
    let others = Program { names: vec![Some("x".into()), Some("y".into())], ..small() };
    let [other, _] = two_runs(&others);
    assert!(refused(&a.0, &other.0).contains("no key in common"));
    let larger = Program { sizes: vec![5, 701], ..small() };
    let [larger, _] = two_runs(&larger);
    let text = refused(&b.0, &larger.0);
    assert!(text.contains("2800 bytes in A and 2804 in B"), "{text}");
    // One key more is a difference.
    let more =
        Program { names: vec![Some("w".into()), None, None], sizes: vec![5, 700, 9], ..small() };
    let [more, _] = two_runs(&more);
    let (status, out, _) = diff(&[], &a.0, &more.0);
    assert_eq!(status, Some(1));
    assert!(out.contains("different: key 2, round 1: the key is in B and not in A"), "{out}");
}

#[test]
fn folders_without_permission_are_named() {
    use std::os::unix::fs::PermissionsExt;
    let [a, b] = two_runs(&small());
    fs::set_permissions(b.file(), fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(b.file()).is_ok() {
        // Root may read everything.
        return;
    }
    let text = refused(&a.0, &b.0);
    assert!(text.contains("cannot read") && text.contains("ermission"), "{text}");
}

#[test]
fn a_log_that_a_process_still_writes_or_was_killed_in_is_compared_as_far_as_it_goes() {
    let [a, b] = two_runs(&small());
    let file = b.file();
    let log = fs::read_to_string(&file).unwrap();
    let end = log.find("\"round\":3").unwrap();
    fs::write(&file, &log[..end]).unwrap();
    for (one, other, name) in [(&a, &b, "B"), (&b, &a, "A")] {
        let (status, out, errors) = diff(&[], &one.0, &other.0);
        assert_eq!((status, errors.as_str()), (Some(0), ""), "{out}");
        let expected = format!("same: 2 rounds of 2 keys\nnote: {name} has no end");
        assert!(out.starts_with(&expected), "{out}");
    }
    // A line that is missing inside is a difference all the same.
    let lines: Vec<&str> = log.lines().collect();
    let at = lines.iter().position(|line| line.contains("\"round\":2")).unwrap();
    let without = [&lines[..at], &lines[at + 1..]].concat().join("\n") + "\n";
    fs::write(&file, without).unwrap();
    let (status, out, _) = diff(&[], &a.0, &b.0);
    assert_eq!(status, Some(1));
    assert!(out.contains("round 2: the round is in A and not in B"), "{out}");
}

#[test]
fn a_log_that_has_dropped_its_first_rounds_is_compared_from_there_on() {
    let program = Program { rounds: 400, ..small() };
    let [a, b] = [Folder::new(), Folder::new()];
    program.local(&a.0, &[], Fault::None);
    program.local(&b.0, &[("digest_log_bytes", "65536")], Fault::None);
    let (status, out, errors) = diff(&[], &a.0, &b.0);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.contains("note: B has dropped its first"), "{out}");
    let rounds: u64 = out.split(' ').nth(1).unwrap().parse().unwrap();
    assert!((50..400).contains(&rounds), "{out}");
}

#[test]
fn values_alone_are_compared_and_name_no_contribution() {
    let program = small();
    let [a, b] = [Folder::new(), Folder::new()];
    let fault = Fault::Push { key: 1, round: 3, rank: 1, bit: 22 };
    program.local(&a.0, &[("digests", "values")], Fault::None);
    program.local(&b.0, &[], fault);
    let (status, out, _) = diff(&[], &a.0, &b.0);
    assert_eq!(status, Some(1));
    assert!(out.contains("key 1, round 3: the value differs (the contributions are not"), "{out}");
    assert!(out.contains("in round 3 1 of 2 keys differ, in round 4 1 of 2"), "{out}");
    assert!(out.contains("all keys are the same up to round 2"), "{out}");
}

#[test]
fn runs_of_other_numbers_of_workers_compare_by_values_and_states() {
    let program = Program {
        workers: 4,
        rule: Some(("adam", "learning_rate=0.5")),
        names: vec![None, None],
        ..small()
    };
    let folders = [Folder::new(), Folder::new(), Folder::new(), Folder::new(), Folder::new()];
    let [one, four, local, linear, faulty] = &folders;
    let tree = ("sum_order", "tree");
    program.job(&one.0, (1, 2), &[tree], Fault::None);
    program.job(&four.0, (4, 1), &[tree], Fault::None);
    program.local(&local.0, &[tree], Fault::None);
    let note = |a: &str, b: usize| {
        format!("note: A has {a} to a round, B has {b}: only values and states are compared\n")
    };
    let (few, many) = ("1 contribution", "4 contributions");
    for (a, b, note) in [
        (one, four, note(few, 4)),
        (four, one, note(many, 1)),
        (one, local, note(few, 4)),
        (four, local, String::new()),
    ] {
        let (status, out, errors) = diff(&[], &a.0, &b.0);
        let same = format!("same: 4 rounds of 2 keys\n{note}");
        assert_eq!((status, out, errors.as_str()), (Some(0), same, ""));
    }
    // The sums differ from the round on that has the fault.
    let fault = Fault::Push { key: 1, round: 3, rank: 1, bit: 22 };
    program.local(&faulty.0, &[tree], fault);
    let (status, out, _) = diff(&[], &one.0, &faulty.0);
    assert_eq!(status, Some(1));
    assert!(
        out.starts_with("different: key 1, round 3: the value differs (sums of other"),
        "{out}"
    );
    assert!(out.ends_with(&note(few, 4)), "{out}");
    let found: Value = serde_json::from_str(&diff(&["--json"], &one.0, &faulty.0).1).unwrap();
    assert_eq!(
        (&found["first"]["known"], &found["first"]["by_rank"]),
        (&false.into(), &false.into())
    );
    // In linear order the sum of another number of workers may have other bits.
    program.job(&linear.0, (2, 1), &[], Fault::None);
    let (status, out, _) = diff(&[], &one.0, &linear.0);
    assert!(status == Some(0) || out.contains("under sum_order=tree alone"), "{out}");
    assert!(out.ends_with(&note(few, 2)), "{out}");
}

#[test]
fn checkpoints_are_compared_tensor_by_tensor() {
    let folder = Folder::new();
    let save = |name: &str, change: &dyn Fn(&Store)| {
        let store = Store::open("local", &Config::new()).unwrap();
        store.set_optimizer("momentum", "learning_rate=0.25,momentum=0.5").unwrap();
        store.init(1u64, &vec![1.0f32; 300_000]).unwrap();
        store.init(2u64, &[1.0f64, 2.0, 3.0]).unwrap();
        change(&store);
        store.push(1u64, &vec![1.0f32; 300_000]).unwrap();
        let path = folder.0.join(name);
        store.save(&path).unwrap();
        path
    };
    let (a, b) = (save("a", &|_| {}), save("b", &|_| {}));
    let (status, out, errors) = diff(&[], &a, &b);
    assert_eq!((status, errors.as_str()), (Some(0), ""), "{out}");
    assert!(out.starts_with("same: "), "{out}");
    let c = save("c", &|store| {
        let mut value = vec![1.0f32; 300_000];
        value[299_999] = f32::from_bits(1.0f32.to_bits() + 5);
        value[270_000] = f32::from_bits(1.0f32.to_bits() + 2);
        store.remove(&[1u64.into()]).unwrap();
        store.init(1u64, &value).unwrap();
        store.set_hyperparameter("learning_rate", 0.0).unwrap();
    });
    let d = save("d", &|store| {
        store.set_hyperparameter("learning_rate", 0.0).unwrap();
        store.remove(&[2u64.into()]).unwrap();
    });
    let (status, out, _) = diff(&[], &d, &c);
    assert_eq!(status, Some(1));
    let first = "\"#1\": 2 of 300000 elements differ, the first is 270000, at most 5 ulp apart";
    assert!(out.contains(first), "{out}");
    assert!(out.contains("\"#2\" is in B only"), "{out}");
    let (_, out, _) = diff(&[], &a, &d);
    assert!(out.contains("\"kvstore.options\" is"), "{out}");
    let found: Value = serde_json::from_str(&diff(&["--json"], &d, &c).1).unwrap();
    assert_eq!(found["differ"][0]["first"], 270_000);
    // Damaged files are not compared.
    let mut bytes = fs::read(&b).unwrap();
    let end = bytes.len() - 100_000;
    bytes[end] ^= 1;
    fs::write(&b, bytes).unwrap();
    assert!(refused(&a, &b).contains("is damaged"));
    fs::write(&b, "no checkpoint").unwrap();
    refused(&a, &b);
}
