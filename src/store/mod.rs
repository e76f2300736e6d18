//! The store (also called: `KVStore`, client API): one type, opened by a type string.

mod bound;
mod checkpoint;
mod collectives;
mod data;
mod devices;
mod done;
#[cfg(feature = "dist")]
mod embedded;
mod groups;
mod keys;
mod lending;
#[cfg(feature = "dist")]
mod open;
mod settings;
mod transactions;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::job::remote::JobMember;
use crate::local::call::DataCall;
pub use crate::local::collective::Reduction;
pub use crate::local::kind::StoreKind;
use crate::local::merger::Merger;
pub(crate) use crate::local::plan::{Pairs, RowPairs, Tensors};
use crate::local::transaction::Commit;
pub(crate) use crate::local::updater::Updater;
pub use crate::local::updater::UpdaterError;
use crate::local::{Local, poisoned};
pub use bound::BoundList;
pub use devices::{set_stream, stream};
#[cfg(feature = "dist")]
use embedded::EmbeddedMembers;
pub use lending::{Pending, Scope};
#[cfg(all(any(fuzzing, test), feature = "dist"))]
pub(crate) use open::read_setting;

use crate::config::{Config, Settings};
use crate::deadline::Deadline;
use crate::error::{Error, Result, fail};
use crate::interrupt;
use crate::log::{Level, log};
use crate::panics;
use crate::reentry::{self, CallbackKind};
use crate::role::Role;
use crate::spans;
use crate::sys;

/// States of a store that a call accepts besides open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallClass {
    /// None: a call on keys or tickets.
    Work,
    /// Inside a callback of an operation's end: a call that does not wait.
    Now,
    /// Inside an updater, and after a close: a read-only call.
    Look,
    /// After a close: a call on the remaining operations.
    End,
    /// As `End`, also inside a callback of an operation's end: a call that does not wait.
    EndNow,
}

/// A key-value store.
///
/// Any thread may use it at any time. Operations of one thread on one key take effect in call
/// order. Dropping it cancels what is pending; [`Store::close`] finishes it first.
pub struct Store {
    local: Arc<Local>,
    /// Job of a distributed store.
    remote: Option<Box<dyn JobMember>>,
    /// The other members of that job in this process.
    #[cfg(feature = "dist")]
    embedded: Option<EmbeddedMembers>,
    kind: StoreKind,
    id: u16,
    generation: u32,
    closed: AtomicBool,
}

/// Number of stores that this process has opened.
static OPENED: AtomicU64 = AtomicU64::new(0);

/// Ids in use, one bit each: the top 16 bits of a ticket are the id of its store.
static IDS: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];

/// Serial number and id of a new store.
fn claim() -> Result<(u64, u16)> {
    let serial = OPENED.fetch_add(1, Ordering::SeqCst) + 1;
    let start = u16::try_from(serial % (1 << 16)).unwrap_or(0);
    (0..=u16::MAX)
        .map(|step| start.wrapping_add(step))
        // 0 stays unused, so that 0 is never a ticket.
        .filter(|&id| id != 0)
        .find(|&id| {
            let bit = 1u64 << (id % 64);
            IDS[usize::from(id / 64)].fetch_or(bit, Ordering::SeqCst) & bit == 0
        })
        .map(|id| (serial, id))
        .ok_or_else(|| fail!(OutOfMemory, "create: 65,535 stores are open in this process"))
}

/// What joining a job leads to; nothing for a local store.
#[derive(Default)]
struct JoinedJob {
    remote: Option<Box<dyn JobMember>>,
    #[cfg(feature = "dist")]
    embedded: Option<EmbeddedMembers>,
}

/// Joins the job of a distributed store.
#[cfg(feature = "dist")]
fn join(local: &Arc<Local>, kind: StoreKind, config: &Config) -> Result<JoinedJob> {
    if kind.is_distributed() { open::open(local, kind, config) } else { Ok(JoinedJob::default()) }
}

#[cfg(not(feature = "dist"))]
#[allow(clippy::unnecessary_wraps, reason = "the other build joins jobs")]
fn join(_: &Arc<Local>, _: StoreKind, _: &Config) -> Result<JoinedJob> {
    Ok(JoinedJob::default())
}

fn release_id(id: u16) {
    let bit = 1u64 << (id % 64);
    IDS[usize::from(id / 64)].fetch_and(!bit, Ordering::SeqCst);
}

impl Store {
    /// Opens a store of a type: `local`, `device`, `dist_sync`, `dist_async`, their `dist_device`
    /// kinds, or an alias, in any case.
    ///
    /// A local store starts no thread and opens no socket. A distributed worker's call returns when all
    /// processes of the job have joined.
    ///
    /// # Errors
    /// `InvalidArgument` for an unknown type, `Unsupported` for one that this build does not have. `Option`
    /// for a missing option or a bad value in the environment. Distributed: `Timeout`, which names the
    /// missing processes, `Refused`, `Network`.
    pub fn open(kind: &str, config: &Config) -> Result<Self> {
        interrupt::watch_whole(|| Self::open_watched(kind, config))
    }

    fn open_watched(kind: &str, config: &Config) -> Result<Self> {
        let kind = StoreKind::parse(kind)?;
        let _span = spans::enter!("open", kind = kind.name());
        let settings = Settings::new(config)?;
        sys::watch_forks();
        let (serial, id) = claim()?;
        log(Level::Info, || format!("opened {} store {serial}: {settings:?}", kind.name()));
        let local = Arc::new(Local::new(serial, id, settings, kind));
        if !kind.is_distributed() {
            let opened = local.open_digest_log(kind.name(), "worker", 0);
            opened.inspect_err(|_| release_id(id)).map_err(|error| error.at("create"))?;
        }
        let joined = panics::catch(|| join(&local, kind, config))
            .unwrap_or_else(|panic| Err(panics::internal(&panic)))
            .inspect_err(|_| release_id(id))?;
        Ok(Self::of_job(local, joined, kind, id))
    }

    /// An open store of this id.
    fn of_job(local: Arc<Local>, joined: JoinedJob, kind: StoreKind, id: u16) -> Self {
        Self {
            local,
            remote: joined.remote,
            #[cfg(feature = "dist")]
            embedded: joined.embedded,
            kind,
            id,
            generation: sys::fork_generation(),
            closed: AtomicBool::new(false),
        }
    }

    /// How often the lock of a job was taken that all keys share.
    #[cfg(all(test, feature = "dist"))]
    pub(crate) fn takings(&self) -> u64 {
        self.remote.as_ref().map_or(0, |remote| remote.takings())
    }

    /// Runs a call after the checks of its gate, and turns a panic of the library into an error that poisons
    /// the store.
    fn enter<T>(&self, gate: CallClass, call: impl FnOnce(&Arc<Local>) -> Result<T>) -> Result<T> {
        let is_plain = self.generation == sys::fork_generation()
            && !self.local.poisoned.load(Ordering::SeqCst)
            && !self.closed.load(Ordering::SeqCst)
            && reentry::is_outside()
            && !interrupt::is_asking();
        if !is_plain {
            self.admit(gate)?;
        }
        let call =
            || panics::catch(|| call(&self.local)).unwrap_or_else(|panic| Err(self.broken(&panic)));
        // Operations that a wait or a close waits for continue after an interrupt.
        if gate == CallClass::End { interrupt::watch(call) } else { interrupt::watch_whole(call) }
    }

    /// Poisons the store after a panic of the library.
    #[cold]
    fn broken(&self, panic: &str) -> Error {
        let error = panics::internal(panic);
        self.local.poison();
        if let Some(remote) = &self.remote {
            remote.abort();
        }
        error
    }

    /// The checks of a gate, in their order.
    #[cold]
    fn admit(&self, gate: CallClass) -> Result<()> {
        if self.generation != sys::fork_generation() {
            return Err(fail!(
                Forked,
                "the store belongs to the parent process; open a new one after fork()"
            ));
        }
        if self.local.poisoned.load(Ordering::SeqCst) {
            return Err(poisoned());
        }
        match self.callback() {
            Some(CallbackKind::Updater) if gate != CallClass::Look => {
                return Err(fail!(
                    Reentrant,
                    "called from inside an updater of the same store; return from the updater first"
                ));
            }
            Some(CallbackKind::Done) if matches!(gate, CallClass::Work | CallClass::End) => {
                return Err(fail!(
                    Reentrant,
                    "a call that may wait, from inside a callback of on_done of the same store; use a \
                     ticket, or return first"
                ));
            }
            _ => {}
        }
        if gate != CallClass::Look && interrupt::is_asking() {
            return Err(fail!(
                Reentrant,
                "called while another call of this thread waits (from a signal handler?); return first"
            ));
        }
        if matches!(gate, CallClass::Work | CallClass::Now) && self.closed.load(Ordering::SeqCst) {
            return Err(closed());
        }
        Ok(())
    }

    /// Type of the store, as given to [`Store::open`].
    #[must_use]
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// The strictest callback of the store that this thread is inside of.
    pub(crate) fn callback(&self) -> Option<CallbackKind> {
        reentry::inside(self.local.applier.serial)
    }

    /// Whether the store belongs to the parent process of a fork.
    pub(crate) fn is_of_parent(&self) -> bool {
        self.generation != sys::fork_generation()
    }

    /// Applies the checks of a read-only call.
    pub(crate) fn look(&self) -> Result<()> {
        self.enter(CallClass::Look, |_| Ok(()))
    }

    /// Role of this process in its job; that of a local store is worker.
    #[must_use]
    pub fn role(&self) -> Role {
        self.remote.as_ref().map_or(Role::Worker, |remote| remote.role())
    }

    /// Serves as a server or a scheduler until the job ends.
    ///
    /// # Errors
    /// `Role` on a worker and on local stores.
    pub fn serve(&self) -> Result<()> {
        self.serve_with(&|| ())
    }

    /// As [`Store::serve`]; calls `listening` once other processes can connect.
    fn serve_with(&self, listening: &dyn Fn()) -> Result<()> {
        self.enter(CallClass::Work, |_| match &self.remote {
            Some(remote) => remote.serve(listening),
            None => {
                Err(fail!(Role, "serve: this process is a worker, all there is of a local store"))
            }
        })
    }

    /// Rank of this process among the members of its role, from 0.
    #[must_use]
    pub fn rank(&self) -> i32 {
        self.remote.as_ref().map_or(0, |remote| i32::try_from(remote.rank()).unwrap_or(i32::MAX))
    }

    /// The number of workers.
    #[must_use]
    pub fn num_workers(&self) -> i32 {
        self.remote.as_ref().map_or(1, |remote| i32::try_from(remote.workers()).unwrap_or(i32::MAX))
    }

    /// The number of workers and servers that the job has declared lost, as far as this process knows: its
    /// calls do not wait for another one. 0 in a local store.
    #[must_use]
    pub fn num_lost(&self) -> i32 {
        self.remote.as_ref().map_or(0, |remote| i32::try_from(remote.lost()).unwrap_or(i32::MAX))
    }

    /// Barrier (also called: rendezvous): waits until all workers have called it. A local store returns at
    /// once.
    pub fn barrier(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let _span = spans::enter!("barrier");
        self.enter(CallClass::Work, |_| {
            self.remote.as_ref().map_or(Ok(()), |it| it.barrier(deadline))
        })
    }

    /// Declares that this worker pushes no more. It may still pull; it may save once all workers have made
    /// this call.
    pub fn done(&self) -> Result<()> {
        let _span = spans::enter!("done");
        self.enter(CallClass::Work, |_| self.remote.as_ref().map_or(Ok(()), |it| it.done()))
    }

    /// Waits until all workers have made this call, whether they are [done](Store::done) or not. Then none is done,
    /// and rounds wait for all of them again. In a local store it returns at once.
    ///
    /// # Errors
    /// `Timeout` names the workers that have not made it: this worker is done then, and the next call joins the
    /// same resume. `PeerLost` if a worker is lost, unless the job goes on without it.
    pub fn resume(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let _span = spans::enter!("resume");
        self.enter(CallClass::Work, |_| {
            self.remote.as_ref().map_or(Ok(()), |it| it.resume(deadline))
        })
    }

    pub(crate) fn wait_ticket(&self, ticket: u64, deadline: Deadline) -> Result<()> {
        let _span = spans::enter!("wait", ticket);
        if self.callback() == Some(CallbackKind::Done) {
            return self.look_at_ticket(ticket, deadline);
        }
        self.enter(CallClass::End, |local| {
            if let Some(remote) = &self.remote {
                let is_over = || !local.tickets.is_pending(ticket) || deadline.has_passed();
                remote.poll(ticket, &is_over);
            }
            local.tickets.wait(ticket, deadline)
        })
    }

    pub(crate) fn cancel_ticket(&self, ticket: u64) -> Result<()> {
        self.enter(CallClass::End, |local| {
            if let Some(remote) = &self.remote {
                remote.cancel(ticket);
            }
            local.cancel(ticket)
        })
    }

    /// Whether all running operations end within a second.
    fn comes_to_rest(&self) -> bool {
        let soon = Deadline::after(Duration::from_secs(1));
        self.local.tickets.wait_idle(soon)
    }

    /// Waits for every operation that is pending now; gives the first failure that no call has reported yet.
    pub fn wait_all(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let _span = spans::enter!("wait_all");
        self.enter(CallClass::End, |local| local.tickets.wait_all(deadline.into()))
    }

    /// Counters and settings as one JSON object.
    pub fn stats(&self) -> Result<String> {
        self.enter(CallClass::Now, |local| {
            let (keys, bytes) = local.keys.table.size();
            let totals = local.applier.counters.total();
            let (pending, failed) = local.tickets.counts();
            let (codec, codec_params) = local.compression();
            Ok(format!(
                "{{\"type\":\"{}\",\"keys\":{},\"bytes\":{},\"pushes\":{},\"pulls\":{},\
                 \"push_bytes\":{},\"pull_bytes\":{},\"updater_calls\":{},\"pending\":{pending},\
                 \"failed\":{failed},\"threads\":{},\"isa\":\"{}\",\
                 \"compression\":\"{codec}\",\"compression_params\":\"{codec_params}\"{}{}{}}}",
                self.kind.name(),
                keys,
                bytes,
                totals.pushes,
                totals.pulls,
                totals.push_bytes,
                totals.pull_bytes,
                totals.updater_calls,
                local.settings.threads,
                local.settings.isa.name(),
                devices::statistics(local),
                local.digest_statistics(),
                self.remote.as_ref().map_or(String::new(), |remote| remote.stats()),
            ))
        })
    }

    /// Finishes all pending operations and closes the store.
    ///
    /// # Errors
    /// `Timeout`: operations continue and the store stays open. Any other error is the first failure that no
    /// call has waited for; the store is closed then.
    pub fn close(&self, deadline: impl Into<Deadline>) -> Result<()> {
        let deadline = deadline.into();
        let _span = spans::enter!("close");
        self.enter(CallClass::End, |local| {
            let result = local.tickets.close(deadline, closed());
            let late =
                result.as_ref().is_err_and(|error| error.kind() == crate::ErrorKind::Timeout);
            if late {
                return result;
            }
            let is_first = !self.closed.swap(true, Ordering::SeqCst);
            let left = match &self.remote {
                Some(remote) if is_first => remote.close(deadline),
                None if is_first => {
                    local.close_digest_log(deadline);
                    Ok(())
                }
                _ => Ok(()),
            };
            // Also in a second close, behind one that has timed out here.
            result.and(left).and(self.wait_for_embedded(deadline))
        })
    }

    /// Waits for the end of a job whose servers are in the processes of workers.
    #[cfg(feature = "dist")]
    fn wait_for_embedded(&self, deadline: Deadline) -> Result<()> {
        self.embedded.as_ref().map_or(Ok(()), |embedded| embedded.wait(deadline))
    }

    #[cfg(not(feature = "dist"))]
    #[allow(clippy::unnecessary_wraps, clippy::unused_self, reason = "the other build has servers")]
    fn wait_for_embedded(&self, _: Deadline) -> Result<()> {
        Ok(())
    }

    /// Fails every pending operation now and closes the store. Never waits.
    pub fn abort(&self) {
        if self.generation == sys::fork_generation() {
            self.closed.store(true, Ordering::SeqCst);
            if let Some(remote) = &self.remote {
                remote.abort();
            }
            #[cfg(feature = "dist")]
            if let Some(embedded) = &self.embedded {
                embedded.abort();
            }
            self.local.tickets.abort(&fail!(Closed, "the store was aborted"));
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        if self.generation != sys::fork_generation() {
            // The parent's threads do not exist in the child, but locks may be in the state that they left.
            // The memory is leaked, so that it is never reused for other locks.
            std::mem::forget(Arc::clone(&self.local));
            return;
        }
        let (pending, failed) = self.local.tickets.counts();
        if pending + failed > 0 {
            log(Level::Warn, || {
                format!("freed with {pending} operations pending and {failed} failures untold")
            });
        }
        self.abort();
        // Its groups keep the values then.
        let is_shared = self.remote.take().is_some_and(|remote| remote.is_shared());
        #[cfg(feature = "dist")]
        {
            self.embedded = None;
        }
        let deadline = self.local.deadline();
        if self.local.tickets.wait_idle(deadline) {
            self.local.tickets.end_calls(deadline);
            // A pool thread that has just finished drops its reference soon; the values and the updater are
            // then freed on the caller's thread.
            while !is_shared && Arc::strong_count(&self.local) > 1 && !deadline.has_passed() {
                std::thread::yield_now();
            }
        }
        self.local.tickets.close_descriptor();
        release_id(self.id);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").field("kind", &self.kind).finish_non_exhaustive()
    }
}

fn closed() -> crate::Error {
    fail!(Closed, "the store has been closed; open a new one")
}
