//! Servers and the scheduler inside of workers' processes: each serves on a thread of its own, and ends with
//! the worker's store.

use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use super::{Store, StoreKind};
use crate::config::Config;
use crate::deadline::Deadline;
use crate::error::{Error, ErrorKind, Result, fail};
use crate::log::{Level, log};
use crate::pool::without_signals;
use crate::sys;
use crate::sys::sync::{Condvar, Mutex};

/// The other members of the job in the process of a worker.
pub(super) struct EmbeddedMembers {
    members: Vec<EmbeddedMember>,
    ends: Arc<MemberEnds>,
    generation: u32,
}

struct EmbeddedMember {
    store: Arc<Store>,
    thread: Option<JoinHandle<()>>,
}

/// What the threads tell of themselves.
struct MemberEnds {
    state: Mutex<MemberEndCounts>,
    changed: Condvar,
}

#[derive(Default)]
struct MemberEndCounts {
    listening: usize,
    ended: usize,
    /// Why the first of them failed.
    failure: Option<Error>,
}

impl EmbeddedMembers {
    /// Returns when all of them listen.
    pub(super) fn start(kind: StoreKind, configs: &[Config]) -> Result<Self> {
        let ends = MemberEnds { state: Mutex::default(), changed: Condvar::new() };
        let generation = sys::fork_generation();
        let mut started = Self { members: Vec::new(), ends: Arc::new(ends), generation };
        for config in configs {
            let store = Arc::new(Store::open_watched(kind.name(), config)?);
            let (served, ends) = (Arc::clone(&store), Arc::clone(&started.ends));
            let thread = Builder::new().name(format!("kvstore-{}", store.role().name()));
            let thread = without_signals(|| thread.spawn(move || ends.serve(&served)))
                .map_err(|error| fail!(OutOfMemory, "create: no thread to serve with: {error}"))?;
            started.members.push(EmbeddedMember { store, thread: Some(thread) });
            started.ends.wait_until_listening(started.members.len())?;
        }
        Ok(started)
    }

    /// The reason of the first that has failed, if one has.
    pub(super) fn failure(&self) -> Option<Error> {
        self.ends.state.lock().failure.clone()
    }

    /// Waits until the job has ended: all its workers have closed their stores.
    pub(super) fn wait(&self, deadline: Deadline) -> Result<()> {
        let mut state = self.ends.state.lock();
        while state.ended < self.members.len() {
            if self.ends.changed.pause(&self.ends.state, &mut state, deadline) {
                drop(state);
                return Err(self.still_needed());
            }
        }
        state.failure.clone().map_or(Ok(()), Err)
    }

    fn still_needed(&self) -> Error {
        let members = self.members.iter().filter_map(|member| member.store.remote.as_ref());
        let workers = members.map(|remote| remote.workers_here()).find(|ranks| !ranks.is_empty());
        let workers: Vec<String> =
            workers.unwrap_or_default().iter().map(|rank| format!("worker {rank}")).collect();
        let who = match &workers[..] {
            [] => "the job has not ended, which".to_owned(),
            workers => format!("{} did not close its store, and", workers.join(", ")),
        };
        fail!(
            Timeout,
            "close: {who} needs the server in this process; wait longer, or free this store, which ends \
             the job for all others"
        )
    }

    pub(super) fn abort(&self) {
        self.members.iter().for_each(|member| member.store.abort());
    }
}

impl Drop for EmbeddedMembers {
    /// A child of fork has none of the threads.
    fn drop(&mut self) {
        if self.generation == sys::fork_generation() {
            self.abort();
            for thread in self.members.iter_mut().filter_map(|member| member.thread.take()) {
                let _ = thread.join();
            }
        }
    }
}

impl MemberEnds {
    /// The thread of a member.
    fn serve(&self, store: &Store) {
        let listening = || {
            self.state.lock().listening += 1;
            self.changed.notify_all();
        };
        let result = store.serve_with(&listening);
        let mut state = self.state.lock();
        state.ended += 1;
        // An end by the worker's own abort is no failure.
        if let Err(error) = result
            && error.kind() != ErrorKind::Closed
        {
            log(Level::Warn, || format!("the {} in this process: {error}", store.role().name()));
            state.failure.get_or_insert(error);
        }
        drop(state);
        self.changed.notify_all();
    }

    fn wait_until_listening(&self, members: usize) -> Result<()> {
        let mut state = self.state.lock();
        while state.listening < members && state.ended == 0 {
            self.changed.wait(&mut state);
        }
        state.failure.clone().map_or(Ok(()), Err)
    }
}
