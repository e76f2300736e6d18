//! Starts the scheduler, the servers and the workers of a job.

use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kvstore::{Config, Error, ErrorKind, Result, Role, Store};

pub use super::common::wait::free_address;
use super::other_build;

/// Longer than any test takes.
const LIMIT: Duration = Duration::from_secs(100);

/// A job to be run.
#[derive(Clone)]
pub struct Job {
    pub kind: &'static str,
    pub workers: usize,
    pub servers: usize,
    pub options: Vec<(&'static str, String)>,
}

impl Job {
    pub fn new(workers: usize, servers: usize) -> Self {
        Self { kind: "dist_sync", workers, servers, options: Vec::new() }
    }

    pub fn of(kind: &'static str, workers: usize, servers: usize) -> Self {
        Self { kind, ..Self::new(workers, servers) }
    }

    #[allow(clippy::needless_pass_by_value, reason = "numbers and literals")]
    pub fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.options.push((name, value.to_string()));
        self
    }

    fn options(&self, role: &str, root: &str) -> Vec<(String, String)> {
        let common = [
            ("role", role.to_string()),
            ("root", root.into()),
            ("job", root.into()),
            ("num_workers", self.workers.to_string()),
            ("num_servers", self.servers.max(1).to_string()),
            ("start_timeout_ms", "20000".into()),
            ("timeout_ms", "30000".into()),
            ("threads", "2".into()),
        ];
        let all = common.into_iter().chain(self.certificate(role)).chain(self.options.clone());
        all.map(|(name, value)| (name.to_string(), value)).collect()
    }

    /// Options of the certificate of a role, if jobs have them.
    fn certificate(&self, role: &str) -> Vec<(&'static str, String)> {
        if !has_certificates() {
            return Vec::new();
        }
        let reads = self.options.contains(&("role", "reader".into()));
        let name = match role {
            "scheduler" => "scheduler",
            "server" => "any-server",
            _ if reads => "any-reader",
            _ => "any-worker",
        };
        let file = |name: &str| format!("{}/tests/certs/{name}", env!("CARGO_MANIFEST_DIR"));
        vec![
            ("tls_ca_file", file("ca.pem")),
            ("tls_cert_file", file(&format!("{name}.pem"))),
            ("tls_key_file", file(&format!("{name}.key"))),
        ]
    }

    pub fn config(&self, role: &str, rank: Option<usize>, root: &str) -> Config {
        let mut config = Config::new();
        for (name, value) in self.options(role, root) {
            config.set(&name, &value).unwrap();
        }
        if let Some(rank) = rank {
            config.set("rank", &rank.to_string()).unwrap();
        }
        config
    }

    /// Starts the scheduler and the servers, of the other build if there is one.
    pub fn start(&self) -> Others {
        self.start_with(None::<&fn(&Store)>)
    }

    /// Starts the scheduler, and the servers, which run `prepare` first: those are of this build then.
    fn start_with(&self, prepare: Option<&(impl Fn(&Store) + Clone + Send + 'static)>) -> Others {
        let root = free_address();
        let mut threads = Vec::new();
        for (role, count) in [("scheduler", 1), ("server", self.servers)] {
            for _ in 0..count {
                let is_other = other_build::is_used() && (role == "scheduler" || prepare.is_none());
                let (kind, options) = (self.kind, self.options(role, &root));
                let config = self.config(role, None, &root);
                let prepare = prepare.cloned();
                threads.push(thread::spawn(move || {
                    if is_other {
                        other_build::serve(kind, &options)
                    } else {
                        serve(kind, &config, prepare)
                    }
                }));
            }
        }
        Others { root, threads }
    }

    /// Joins a job as a worker.
    pub fn open(&self, rank: usize, root: &str) -> Result<Store> {
        Store::open(self.kind, &self.config("worker", Some(rank), root))
    }

    /// Joins a job as all its workers.
    pub fn open_all(&self, root: &str) -> Vec<Result<Store>> {
        let open = |rank| {
            let (job, root) = (self.clone(), root.to_string());
            thread::spawn(move || job.open(rank, &root))
        };
        let threads: Vec<_> = (0..self.workers).map(open).collect();
        threads.into_iter().map(join).collect()
    }

    /// Starts a job of two workers, which the caller plays.
    pub fn start_with_two(&self) -> (Others, [Store; 2]) {
        let others = self.start();
        let workers = self.open_all(&others.root).into_iter().map(Result::unwrap);
        let workers: Vec<Store> = workers.collect();
        (others, workers.try_into().expect("two workers"))
    }

    /// Starts a job of a worker and a reader, which the caller plays.
    pub fn start_with_reader(&self) -> (Others, [Store; 2]) {
        let others = self.start();
        let (root, reader) = (others.root.clone(), self.clone().with("role", "reader"));
        let opening = std::thread::spawn(move || reader.open(1, &root).unwrap());
        let worker = self.open(0, &others.root).unwrap();
        (others, [worker, opening.join().unwrap()])
    }

    /// Runs `program` on every worker, each on a thread of its own, and gives what they give, by
    /// rank. Servers run `prepare` first. The job must end by itself.
    pub fn run_with<T: Send + 'static>(
        &self,
        prepare: impl Fn(&Store) + Clone + Send + 'static,
        program: impl Fn(&Store, usize) -> T + Send + Sync + Clone + 'static,
    ) -> Vec<T> {
        self.work(self.start_with(Some(&prepare)), program)
    }

    pub fn run<T: Send + 'static>(
        &self,
        program: impl Fn(&Store, usize) -> T + Send + Sync + Clone + 'static,
    ) -> Vec<T> {
        self.work(self.start(), program)
    }

    fn work<T: Send + 'static>(
        &self,
        others: Others,
        program: impl Fn(&Store, usize) -> T + Send + Sync + Clone + 'static,
    ) -> Vec<T> {
        let root = others.root.clone();
        let workers: Vec<_> = (0..self.workers)
            .map(|rank| {
                let (kind, config) = (self.kind, self.config("worker", Some(rank), &root));
                let program = program.clone();
                thread::spawn(move || {
                    let store = Store::open(kind, &config).unwrap();
                    assert_eq!(store.rank(), i32::try_from(rank).unwrap());
                    let result = program(&store, rank);
                    store.close(LIMIT).unwrap();
                    result
                })
            })
            .collect();
        let results = workers.into_iter().map(join).collect();
        others.end().into_iter().for_each(std::result::Result::unwrap);
        results
    }
}

/// Whether `KV_TEST_TLS` asks for jobs with certificates.
pub fn has_certificates() -> bool {
    std::env::var_os("KV_TEST_TLS").is_some()
}

/// Runs a scheduler or a server of this build until it ends.
fn serve(kind: &str, config: &Config, prepare: Option<impl Fn(&Store)>) -> Ended {
    let store = Store::open(kind, config)?;
    if let Some(prepare) = prepare.filter(|_| store.role() == Role::Server) {
        prepare(&store);
    }
    Ok(store.serve()?)
}

/// How a scheduler or a server has ended.
pub type Ended = std::result::Result<(), End>;

/// Why a scheduler or a server has failed: a status of the C interface, and the text.
#[derive(Debug)]
pub struct End {
    pub status: i32,
    pub text: String,
}

impl From<Error> for End {
    fn from(error: Error) -> Self {
        Self { status: error.kind().code(), text: error.message().into() }
    }
}

/// The scheduler and the servers of a job, each on a thread of its own.
pub struct Others {
    pub root: String,
    threads: Vec<JoinHandle<Ended>>,
}

impl Others {
    /// How they ended, which they must do by themselves; the scheduler first.
    pub fn end(self) -> Vec<Ended> {
        self.threads.into_iter().map(join).collect()
    }
}

/// Lets two workers do the same at the same time.
pub fn both(stores: [&Store; 2], work: impl Fn(&Store) + Sync) {
    thread::scope(|scope| {
        let other = scope.spawn(|| work(stores[1]));
        work(stores[0]);
        other.join().unwrap();
    });
}

/// The text of a failure that must be of a kind.
#[track_caller]
pub fn failure<T>(result: Result<T>, kind: ErrorKind) -> String {
    let error = result.err().expect("a failure");
    assert_eq!(error.kind(), kind, "{error}");
    error.message().into()
}

/// Waits for a thread, but not for ever.
pub fn join<T: Send + 'static>(thread: JoinHandle<T>) -> T {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || sender.send(thread.join()));
    match receiver.recv_timeout(LIMIT).expect("a process of the job does not end") {
        Ok(result) => result,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
