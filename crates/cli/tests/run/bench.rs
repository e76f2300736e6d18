//! `kvstore bench`: its tables, its checks, and that it touches nothing of other jobs.

use std::fs;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;

use kvstore::{Config, Store};
use serde_json::Value;

use super::common::wait::free_address;
use super::launcher::{LIMIT, Launcher, PROGRAM, VANISH, command, soon};

fn bench(words: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.arg("bench").args(words).stdin(Stdio::null());
    command
}

/// What it prints when it succeeds.
fn printed(words: &[&str]) -> String {
    let end = Launcher::spawn(&mut bench(words)).end();
    assert_eq!(end.status, Some(0), "{words:?}: {}", end.err);
    end.out().to_owned()
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&printed(&[words, &["--json"]].concat())).unwrap()
}

/// The rows of a table that begin with the name of a call, as cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.filter(|row| matches!(row.first(), Some(&("push" | "pull" | "pushpull")))).collect()
}

/// Whether every element ends, and in the order of their begins turned round.
fn is_well_formed(svg: &str) -> bool {
    let mut open = Vec::new();
    for part in svg.split('<').skip(1) {
        let Some((tag, _)) = part.split_once('>') else { return false };
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap_or_default();
        if tag.starts_with('/') {
            if open.pop() != Some(name) {
                return false;
            }
        } else if !tag.ends_with('/') {
            open.push(name);
        }
    }
    open.is_empty() && svg.starts_with("<svg ")
}

#[test]
fn a_job_of_its_own_is_measured_in_a_table_and_a_picture() {
    let file = std::env::temp_dir().join(format!("kvstore-bench-{}.svg", std::process::id()));
    let name = file.to_str().unwrap();
    let text = printed(&[
        "-n", "2", "--sizes", "4K,64K", "--keys", "1,10", "--rounds", "5", "--svg", name,
    ]);
    let about = "dist_sync, 2 workers, 1 server, float32, optimizer none; the limit is raw TCP";
    assert!(text.starts_with(about), "{text}");
    let rows = rows(&text);
    let cases: Vec<String> = rows.iter().map(|row| row[..4].join(" ")).collect();
    let mut expected = Vec::new();
    for (keys, size) in [(1, "4K"), (1, "64K"), (10, "4K"), (10, "64K")] {
        let case = |op| format!("{op} {keys} {size} 5");
        expected.extend(["push", "pull", "pushpull"].map(case));
    }
    assert_eq!(cases, expected);
    for row in rows {
        let numbers: Vec<f64> = row[4..].iter().map(|cell| cell.parse().unwrap()).collect();
        assert_eq!(numbers.len(), 5, "{row:?}");
        assert!(numbers.iter().all(|number| number.is_finite() && *number >= 0.0), "{row:?}");
        assert!(numbers[0] > 0.0, "{row:?}");
        assert!(numbers[0] <= numbers[1], "{row:?}");
    }
    let (_, workers) = text.split_once("each worker, pushpull of 10 x 64K:\n").unwrap();
    assert_eq!(workers.lines().count(), 3, "{text}");
    let svg = fs::read_to_string(&file).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(is_well_formed(&svg), "{svg}");
    for label in ["GB/s", "bytes", ">4K<", ">64K<", ">push, 1 key<", ">pushpull, 10 keys<"] {
        assert!(svg.contains(label), "{label}: {svg}");
    }
    assert_eq!(svg.matches("class=\"line\"").count(), 6);
}

#[test]
fn a_local_store_is_checked_in_every_type_and_under_every_rule() {
    for (dtype, optimizer) in [
        ("int8", "none"),
        ("uint8", "none"),
        ("int32", "none"),
        ("int64", "none"),
        ("float16", "none"),
        ("bfloat16", "none"),
        ("float32", "sgd"),
        ("float64", "momentum"),
    ] {
        let words = ["--local", "--sizes", "4K,1M", "--keys", "1,3", "--rounds", "6"];
        let words = [&words[..], &["--most", "2M", "--dtype", dtype, "--optimizer", optimizer]];
        let found = json(&words.concat());
        assert_eq!(found["type"], "local");
        assert_eq!((&found["dtype"], &found["optimizer"]), (&dtype.into(), &optimizer.into()));
        assert_eq!(found["left_out"], serde_json::json!([{"keys": 3, "size": 1 << 20}]));
        let cases = found["cases"].as_array().unwrap();
        assert_eq!(cases.len(), 9);
        for case in cases {
            for member in ["p50_ms", "p99_ms", "gb_per_s", "limit_gb_per_s", "ratio"] {
                let number = case[member].as_f64().unwrap();
                assert!(number.is_finite() && number > 0.0, "{member}: {case}");
            }
        }
    }
}

#[test]
fn jobs_of_any_kind_come_out_as_their_closed_form() {
    let words = ["-n", "2", "-s", "2", "--sizes", "4K", "--keys", "3", "--seconds", "0.05"];
    for more in [["--type", "dist_async"], ["--optimizer", "momentum"]] {
        let found = json(&[&words[..], &more].concat());
        assert_eq!(found["cases"].as_array().unwrap().len(), 3, "{more:?}");
        assert_eq!(found["cases"][0]["workers"].as_array().unwrap().len(), 2);
    }
    let more = ["--type", "dist_async", "--optimizer", "momentum", "--dtype", "float64"];
    assert_eq!(json(&[&words[..], &more].concat())["num_servers"], 2);
}

#[test]
fn the_job_that_it_is_started_in_is_measured() {
    let words = ["-n", "2", "-s", "1", "--set", "shm=no", "--", PROGRAM, "bench"];
    let more = ["--sizes", "4K", "--keys", "2", "--rounds", "5"];
    let end = Launcher::spawn(&mut command(&[&words[..], &more].concat())).end();
    assert_eq!(end.status, Some(0), "{}", end.err);
    assert!(end.out().lines().all(|line| line.starts_with("worker 0  | ")), "{}", end.out());
    assert_eq!(rows(&end.out().replace("worker 0  | ", "")).len(), 3, "{}", end.out());
}

/// Workers of two machines, if this one lets users pretend that.
#[allow(clippy::print_stdout, reason = "says what was left out")]
#[test]
fn workers_of_several_machines_compare_with_the_wire_between_them() {
    let unshare = "unshare -rm sh -c 'mount --bind /proc/version /proc/sys/kernel/random/boot_id";
    let works = Command::new("sh").args(["-c", &format!("{unshare}'")]).output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("not run: no namespaces for users here");
        return;
    }
    let bench = format!("exec {PROGRAM} bench --sizes 4K --keys 1 --ops pull --rounds 5");
    let script = format!("[ $KV_RANK = 0 ] && {bench}; exec {unshare} && {bench}'");
    let end = Launcher::start(&["-n", "2", "-s", "1", "sh", "-c", &script]).end();
    assert_eq!((end.status, rows(&end.out().replace("worker 0  | ", "")).len()), (Some(0), 1));
    assert!(end.out().contains("raw TCP to a worker on another machine"), "{}", end.out());
}

#[test]
fn workers_that_were_told_different_things_measure_nothing() {
    let script = format!("exec {PROGRAM} bench --sizes 4K --keys 1 --rounds 1$KV_RANK");
    let words = ["-n", "2", "-s", "1", "--linger-ms", "100", "--", "sh", "-c", &script];
    let end = Launcher::spawn(&mut command(&words)).end();
    assert_eq!((end.status, end.out()), (Some(1), ""), "{}", end.err);
    assert!(end.err.contains("was told to measure something else"), "{}", end.err);
}

#[test]
fn mistakes_are_refused_with_what_to_do() {
    for (words, part) in [
        (&["--sizes", "4X"][..], "such as 512, 4K, 64M or 1G"),
        (&["--sizes", "6"], "use a multiple of 4"),
        (&["--sizes", "1G"], "say --most"),
        (&["--keys", "0"], "from 1 on"),
        (&["--ops", "pul"], "'pull'"),
        (&["--dtype", "f32"], "float32"),
        (&["--seconds", "0"], "from 0.001 to 600"),
        (&["--optimizer", "sgd", "--dtype", "float16"], "float32 and float64 only"),
        (&["--local", "-n", "2"], "--num-workers"),
        (&["--set", "thread=2"], "did you mean threads?"),
        (&["--set", "token=secret"], "token_file"),
    ] {
        let Output { status, stderr, .. } = bench(words).output().unwrap();
        let text = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(part) && !text.contains("secret"), "{words:?}: {text}");
    }
    let output = bench(&["--local", "--svg", "/nowhere/x.svg"]).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0), "{text}");
    assert!(text.starts_with("kvstore bench: /nowhere/x.svg: "), "{text}");
}

#[test]
fn a_signal_ends_it_and_leaves_nobody() {
    let words = ["-n", "2", "--sizes", "4K", "--keys", "1", "--seconds", "600"];
    let launcher = Launcher::spawn(&mut bench(&words));
    launcher.hear("the loopback", 1);
    assert!(launcher.living().len() >= 6, "itself, its keeper, and four of the job");
    launcher.signal("INT");
    let end = launcher.end();
    assert_eq!(end.status, Some(130), "{}", end.err);
    assert!(end.last_line().starts_with("kvstore bench: stopped by signal 2"), "{}", end.err);

    let mut launcher = Launcher::spawn(&mut bench(&words));
    launcher.hear("the loopback", 1);
    launcher.process.kill().unwrap();
    assert!(soon(VANISH, || launcher.living().is_empty()), "{:?}", launcher.living());
}

#[test]
fn it_ends_when_nobody_reads_it_or_one_worker_fails() {
    let words = ["-n", "2", "--sizes", "4K", "--keys", "1,2", "--seconds", "1"];
    let mut launcher = Launcher::spawn(&mut bench(&words));
    launcher.hear("the loopback", 1);
    // Its reader goes with the other end of this channel.
    launcher.out = mpsc::channel().1;
    let end = launcher.end();
    assert_eq!(end.status, Some(1), "{}", end.err);
    assert!(end.err.contains("kvstore bench: no process reads this"), "{}", end.err);

    let end = Launcher::spawn(&mut bench(&["-n", "2", "--svg", "/nowhere/x.svg"])).end();
    assert_eq!((end.status, end.out()), (Some(1), ""), "{}", end.err);
    assert!(end.err.contains("kvstore bench: /nowhere/x.svg: "), "{}", end.err);
    assert!(!end.err.contains("came back wrong"), "{}", end.err);
}

/// Servers of a job whose workers are somebody else's.
struct Served {
    root: String,
    processes: Vec<Child>,
}

impl Served {
    fn start(workers: &str) -> Self {
        let root = free_address();
        let start = |role| {
            let words = [role, "--root", &root, "--num-workers", workers, "--num-servers", "1"];
            Command::new(PROGRAM).args(words).stderr(Stdio::null()).spawn().unwrap()
        };
        let processes = ["scheduler", "server"].map(start).into();
        Self { root, processes }
    }

    fn worker(&self, workers: &str, rank: &str) -> Store {
        let mut config = Config::new();
        let options = [("root", &*self.root), ("num_workers", workers), ("num_servers", "1")];
        for (name, value) in options.into_iter().chain([("rank", rank), ("timeout_ms", "20000")]) {
            config.set(name, value).unwrap();
        }
        Store::open("dist_sync", &config).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

#[test]
fn a_job_that_trains_is_not_joined() {
    let served = Served::start("1");
    let store = served.worker("1", "0");
    let words = ["--root", &served.root, "-n", "1", "-s", "1"];
    let end = Launcher::spawn(&mut bench(&words)).end();
    assert_eq!((end.status, end.out()), (Some(1), ""), "{}", end.err);
    assert!(end.err.contains("the workers of a job are fixed when it starts"), "{}", end.err);
    store.close(LIMIT).unwrap();
}

#[test]
fn a_worker_beside_others_that_train_leaves_their_keys_and_rounds_alone() {
    let served = Served::start("2");
    let words = ["--root", &served.root, "-n", "2", "-s", "1", "--rank", "1"];
    let launcher =
        Launcher::spawn(&mut bench(&[&words[..], &["--set", "timeout_ms=500"]].concat()));
    let store = served.worker("2", "0");
    store.init(0u64, &[7.0f32]).unwrap();
    let end = launcher.end();
    assert_eq!((end.status, end.out()), (Some(1), ""), "{}", end.err);
    assert!(end.err.contains("has to be `kvstore bench`"), "{}", end.err);
    let mut out = [0.0f32];
    store.pull(0u64, &mut out).unwrap();
    assert_eq!((out[0].to_bits(), store.keys().unwrap().len()), (7.0f32.to_bits(), 1));
    // It has left, and is not waited for.
    store.push(0u64, &[2.0f32]).unwrap();
    store.pull(0u64, &mut out).unwrap();
    assert_eq!(out.map(f32::to_bits), [2.0f32.to_bits()]);
    store.barrier(LIMIT).unwrap();
    store.close(LIMIT).unwrap();
}
