//! Our store.

use std::io;
use std::process::Command;
use std::time::Instant;

use kvstore::{Config, Deadline, Key, Store, Tensor, TensorMut};

use crate::Subject;
use crate::cases::Case;
use crate::common::wait::free_address;
use crate::credentials::{self, Credentials};
use crate::processes::Processes;

pub struct Ours {
    store: Store,
    keys: Vec<Key>,
    values: Vec<Vec<f32>>,
    outs: Vec<Vec<f32>>,
    way: Way,
    calls: Calls,
    processes: Processes,
    _credentials: Option<Credentials>,
}

/// Over what the bytes go.
#[derive(Clone, Copy)]
pub enum Way {
    Tcp,
    /// TCP, encrypted, with certificates on both sides.
    Tls,
    /// TCP, with a token.
    Token,
    /// TCP, with a token, of which the keys of records are made.
    Integrity,
    SharedMemory,
    /// Shared memory, and servers that digest each value.
    Values,
    /// Shared memory, and servers that digest values, states and contributions.
    All,
}

/// The token of jobs with one.
const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// How a round is asked for.
#[derive(Clone, Copy)]
pub enum Calls {
    /// A push and a pull, both queued, then a wait for both: as `MXNet` has it.
    Queued,
    /// A push that waits for its end, then a pull.
    Waiting,
    /// One call.
    Pushpull,
}

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Tls => "tls",
            Self::Token => "token",
            Self::Integrity => "integrity",
            Self::SharedMemory => "shm",
            Self::Values => "values",
            Self::All => "all",
        }
    }
}

pub fn config(role: &str, root: &str, way: &str) -> Config {
    let digests = Some(way).filter(|way| ["values", "all"].contains(way));
    let shares = way == "shm" || digests.is_some();
    let mut config = Config::new();
    for (name, value) in [
        ("role", role),
        ("root", root),
        ("job", root),
        ("shm", if shares { "yes" } else { "no" }),
        ("digests", digests.unwrap_or("off")),
        ("num_workers", "1"),
        ("num_servers", "1"),
    ] {
        config.set(name, value).expect("an option");
    }
    if way == "token" || way == "integrity" {
        config.set("token", SECRET).expect("an option");
        config.set("integrity", if way == "token" { "no" } else { "yes" }).expect("an option");
    }
    if way == "tls" {
        let file = |name: &str| credentials::folder(root).join(name).display().to_string();
        for (name, value) in [
            ("tls_ca_file", file("ca.pem")),
            ("tls_cert_file", file(&format!("{role}.pem"))),
            ("tls_key_file", file(&format!("{role}.key"))),
        ] {
            config.set(name, &value).expect("an option");
        }
    }
    config
}

pub fn serve(role: &str, root: &str, way: &str) -> io::Result<()> {
    let store = Store::open("dist_sync", &config(role, root, way)).map_err(io::Error::other)?;
    store.serve().map_err(io::Error::other)
}

/// Starts this program in another role; gives its process.
pub fn spawn(processes: &mut Processes, role: &str, root: &str, way: Way) -> io::Result<u32> {
    let program = std::env::current_exe()?;
    let child = processes.spawn(Command::new(program).args(["serve", role, root, way.name()]))?;
    Ok(child.id())
}

impl Ours {
    pub fn start(case: &Case, way: Way, calls: Calls) -> io::Result<Self> {
        let root = free_address();
        let secret = matches!(way, Way::Tls);
        let credentials = secret.then(|| Credentials::make(&root)).transpose()?;
        let mut processes = Processes::and_this();
        for role in ["scheduler", "server"] {
            spawn(&mut processes, role, &root, way)?;
        }
        let config = config("worker", &root, way.name());
        let store = Store::open("dist_sync", &config).map_err(io::Error::other)?;
        let keys: Vec<Key> = (0..case.keys.len() as u64).map(Key::from).collect();
        let values: Vec<Vec<f32>> = case.keys.iter().map(|count| vec![1.5; *count]).collect();
        let tensors: Vec<Tensor<'_>> = values.iter().map(|it| it.as_slice().into()).collect();
        store.init_list(&keys, &tensors).map_err(io::Error::other)?;
        if case.rule == "momentum" {
            store
                .set_optimizer("sgd", "learning_rate=0.001,momentum=0.9")
                .map_err(io::Error::other)?;
        }
        let outs = case.keys.iter().map(|count| vec![0.0; *count]).collect();
        Ok(Self { store, keys, values, outs, way, calls, processes, _credentials: credentials })
    }
}

impl Subject for Ours {
    fn name(&self) -> String {
        let way = match self.way {
            Way::Tcp => "TCP",
            Way::Tls => "TLS",
            Way::Token => "TCP with a token",
            Way::Integrity => "TCP with integrity=yes",
            Way::SharedMemory => "shared memory",
            Way::Values => "digests=values",
            Way::All => "digests=all",
        };
        let calls = match self.calls {
            Calls::Queued => "push + pull",
            Calls::Waiting => "push, then pull",
            Calls::Pushpull => "pushpull",
        };
        format!("ours, {way}: {calls}")
    }

    fn run(&mut self, rounds: usize) -> io::Result<Vec<f64>> {
        let values: Vec<Tensor<'_>> = self.values.iter().map(|it| it.as_slice().into()).collect();
        let (store, keys) = (&self.store, &self.keys);
        let mut seconds = Vec::new();
        for _ in 0..rounds {
            let mut outs: Vec<TensorMut<'_>> =
                self.outs.iter_mut().map(|it| it.as_mut_slice().into()).collect();
            let start = Instant::now();
            let done = match self.calls {
                Calls::Queued => store.scope(Deadline::Never, |scope| {
                    scope.push_list(keys, &values, 0)?;
                    scope.pull_list(keys, outs, 0)
                }),
                Calls::Waiting => {
                    store.push_list(keys, &values).and_then(|()| store.pull_list(keys, &mut outs))
                }
                Calls::Pushpull => store.pushpull_list(keys, &values, keys, &mut outs),
            };
            done.map_err(io::Error::other)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        Ok(seconds)
    }

    fn processes(&self) -> &Processes {
        &self.processes
    }
}
