//! Starting a job: any order, and who does not fit is told why.

use std::env;
use std::net::TcpListener;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use kvstore::ErrorKind::{self, Network, Refused, Timeout};
use kvstore::{Config, Store};

use super::job::{Job, failure, free_address, has_certificates, join};

const SOON: Duration = Duration::from_secs(2);

#[test]
fn processes_come_in_any_order() {
    let job = Job::new(2, 1);
    let root = free_address();
    let workers: Vec<_> = (0..2)
        .map(|rank| {
            let (job, root) = (job.clone(), root.clone());
            thread::spawn(move || {
                let store = job.open(rank, &root).unwrap();
                store.init(1u64, &[1.0f32]).unwrap();
                store.close(SOON).unwrap();
            })
        })
        .collect();
    thread::sleep(Duration::from_millis(300));
    let mut others = Vec::new();
    for role in ["server", "scheduler"] {
        let config = job.config(role, None, &root);
        others.push(thread::spawn(move || Store::open("dist", &config)?.serve()));
        thread::sleep(Duration::from_millis(300));
    }
    workers.into_iter().for_each(join);
    others.into_iter().for_each(|other| join(other).unwrap());
}

#[test]
fn who_does_not_fit_is_told_at_once_and_the_job_starts_without_it() {
    let job = Job::new(3, 1);
    let others = job.start();
    let opens = |job: &Job, rank| {
        let (job, root) = (job.clone(), others.root.clone());
        thread::spawn(move || job.open(rank, &root))
    };
    // These two are in the job, which is not complete.
    let first = [opens(&job, 0), opens(&job, 2)];
    thread::sleep(Duration::from_millis(700));
    let misfits: [(&str, Job, usize, &[&str]); 6] = [
        ("job", job.clone().with("job", "other"), 1, &["another job"]),
        ("size", Job::new(4, 1), 1, &["4 workers", "3"]),
        ("servers", Job::new(3, 2), 1, &["2 servers"]),
        ("rank taken", job.clone(), 2, &["worker 2 already"]),
        ("no such rank", job.clone(), 3, &["room for 3"]),
        ("type", Job::of("dist_async", 3, 1), 1, &["worker 1", "same type"]),
    ];
    for (what, misfit, rank, texts) in misfits {
        let began = Instant::now();
        let text = failure(misfit.open(rank, &others.root), Refused);
        assert!(texts.iter().all(|part| text.contains(part)), "{what}: {text}");
        assert!(text.starts_with("create: "), "{text}");
        assert!(began.elapsed() < SOON, "{what}: {:?}", began.elapsed());
    }
    let last = opens(&job, 1);
    let [first, third] = first.map(|thread| join(thread).unwrap());
    for store in [&first, &third, &join(last).unwrap()] {
        store.close(Duration::from_secs(20)).unwrap();
    }
    others.end().into_iter().for_each(std::result::Result::unwrap);
}

#[test]
fn terms_of_workers_must_be_equal() {
    for (option, value) in
        [("slice_bytes", "16384"), ("max_rounds_ahead", "4"), ("on_worker_loss", "continue")]
    {
        let job = Job::new(2, 1).with("start_timeout_ms", 2_500);
        let others = job.start();
        let first = {
            let (job, root) = (job.clone(), others.root.clone());
            thread::spawn(move || job.open(0, &root))
        };
        thread::sleep(Duration::from_millis(500));
        let text = failure(job.clone().with(option, value).open(1, &others.root), Refused);
        assert!(text.contains("worker 1") && text.contains("same type and options"), "{text}");
        let store = job.open(1, &others.root).unwrap();
        store.close(SOON).unwrap();
        join(first).unwrap().close(SOON).unwrap();
        others.end().into_iter().for_each(std::result::Result::unwrap);
    }
}

#[test]
fn a_missing_process_is_named_after_the_time_to_start() {
    let job = Job::new(2, 2).with("start_timeout_ms", 700);
    let began = Instant::now();
    // No scheduler, and nobody at all.
    let root = free_address();
    let text = failure(job.open(0, &root), Timeout);
    assert!(text.contains("scheduler") && text.contains(&root), "{text}");
    // One of three.
    let others = Job { servers: 1, ..job.clone() };
    let others = Job { options: job.options.clone(), ..others }.start();
    let text = failure(Job { servers: 1, ..job }.open(1, &others.root), Timeout);
    assert!(text.contains("worker 0"), "{text}");
    let ends = others.end();
    for end in ends {
        let error = end.unwrap_err();
        assert_eq!(error.status, Timeout.code());
        assert!(error.text.contains("worker 0"), "{error:?}");
    }
    assert!(began.elapsed() < Duration::from_secs(8));
}

#[test]
fn what_cannot_work_is_said_before_anything_is_tried() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let job = Job::new(1, 1);
    let scheduler = Store::open("dist", &job.config("scheduler", None, &address)).unwrap();
    let text = failure(scheduler.serve(), Network);
    assert!(text.contains(&address) && text.starts_with("serve: "), "{text}");

    let root = free_address();
    for role in ["scheduler", "server"] {
        let mut config = job.config(role, None, &root);
        config.set("bind", "0.0.0.0:0").unwrap();
        if has_certificates() {
            drop(Store::open("dist", &config).unwrap());
            continue;
        }
        let text = failure(Store::open("dist", &config), ErrorKind::Option);
        assert!(text.contains("0.0.0.0:0") && text.contains("`kvstore certs`"), "{text}");
        config.set("insecure", "yes").unwrap();
        drop(Store::open("dist", &config).unwrap());
    }
    let config = job.config("worker", None, "nowhere.invalid:9");
    let text =
        failure(Store::open("dist", &config.with("start_timeout_ms", "300").unwrap()), Timeout);
    assert!(text.contains("nowhere.invalid:9"), "{text}");
}

#[test]
fn a_missing_option_names_itself() {
    let needed = [("num_workers", "2"), ("num_servers", "1"), ("root", "127.0.0.1:9")];
    for (missing, _) in needed {
        let mut config = Config::new();
        for (name, value) in needed.iter().filter(|(name, _)| *name != missing) {
            config.set(name, value).unwrap();
        }
        let text = failure(Store::open("dist_sync", &config), ErrorKind::Option);
        assert!(text.contains(&format!("needs {missing}")), "{text}");
        assert!(text.contains(&format!("KV_{}", missing.to_uppercase())), "{text}");
        assert!(text.contains("DMLC_"), "{text}");
    }
}

/// Kills a process that does not end by itself.
struct Process(Child);

impl Process {
    fn wait(&mut self) {
        let end = Instant::now() + Duration::from_secs(50);
        while self.0.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "a process does not end");
            thread::sleep(Duration::from_millis(20));
        }
        assert!(self.0.wait().unwrap().success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the processes of the next test do: what they are is in their environment only.
fn be_a_process_of_an_old_launcher(role: &str) {
    let store = Store::open("dist_sync", &Config::new()).unwrap();
    if role != "worker" {
        return store.serve().unwrap();
    }
    assert_eq!(store.num_workers(), 2);
    let rank = env::var("DMLC_WORKER_ID").unwrap();
    assert_eq!(store.rank().to_string(), rank);
    store.init(1u64, &[0.0f32; 2]).unwrap();
    store.push(1u64, &[store.rank() as f32 + 1.0; 2]).unwrap();
    let mut out = [0.0f32; 2];
    store.pull(1u64, &mut out).unwrap();
    assert_eq!(out, [3.0; 2]);
    store.close(Duration::from_secs(20)).unwrap();
}

#[test]
fn variables_of_old_launchers_are_understood() {
    if let Ok(role) = env::var("DMLC_ROLE") {
        return be_a_process_of_an_old_launcher(&role);
    }
    let (address, program) = (free_address(), env::current_exe().unwrap());
    let (host, port) = address.split_once(':').unwrap();
    let start = |role: &str, rank: &str| {
        let mut command = Command::new(&program);
        command
            .args(["--exact", "starting::variables_of_old_launchers_are_understood"])
            .env("DMLC_ROLE", role)
            .env("DMLC_PS_ROOT_URI", host)
            .env("DMLC_PS_ROOT_PORT", port)
            .env("DMLC_NUM_WORKER", "2")
            .env("DMLC_NUM_SERVER", "1")
            .env("DMLC_WORKER_ID", rank)
            .env("KV_START_TIMEOUT_MS", "20000");
        Process(command.stdout(std::process::Stdio::null()).spawn().unwrap())
    };
    let processes = [("worker", "1"), ("worker", "0"), ("server", "0"), ("scheduler", "0")];
    processes.map(|(role, rank)| start(role, rank)).iter_mut().for_each(Process::wait);
}
