//! Server (also called: parameter server, shard), and the process of a scheduler, until the job ends.

mod dispatch;
mod round_weights;
mod row_parts;
mod slice_context;
mod slice_digests;
mod slice_merge;
mod slice_queue;
mod slice_value;
mod tree_sum;

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use crate::config::{self, JobConfig};
use crate::deadline::Deadline;
use crate::error::{Result, fail};
use crate::interrupt;
use crate::job::errors::error_of;
use crate::job::remote::JobMember;
use crate::job::{options, telemetry};
use crate::local::Local;
use crate::local::kind::StoreKind;
use crate::local::merger::Merger;
use crate::metrics;
use crate::role::Role;
use crate::runtime::{Driver, DriverHost, NoopHandler, member};
use crate::sys::sync::{AtomicBool, Ordering};
use crate::transport::{self, TransportConfig};
use dispatch::ServerDispatch;
use kvstore_protocol::{Machine as _, Node, NodeStart, Scheduler, Server};

pub(crate) struct ServerProcess {
    local: Arc<Local>,
    job: JobConfig,
    place: TransportConfig,
    kind: StoreKind,
    serves: AtomicBool,
    aborted: AtomicBool,
    /// The driver while it serves: of a server, or of the scheduler.
    server: OnceLock<Arc<Driver<ServerDispatch>>>,
    scheduler: OnceLock<Arc<Driver<NoopHandler>>>,
}

impl ServerProcess {
    pub(crate) fn new(local: &Arc<Local>, job: JobConfig, kind: StoreKind) -> Result<Self> {
        Ok(Self {
            local: Arc::clone(local),
            // Configuration errors are reported before the job starts.
            place: options::place(&job)?,
            job,
            kind,
            serves: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            server: OnceLock::new(),
            scheduler: OnceLock::new(),
        })
    }

    fn serve_as_server(&self, listening: &dyn Fn()) -> Result<()> {
        let limits = options::limits(&self.job, self.kind);
        // A user's updater needs uncut keys.
        let whole = matches!(self.local.handling.read().merger, Merger::Updater(_));
        self.local.open_digest_log(self.kind.name(), "server", self.job.servers)?;
        let driver = Driver::start(
            ServerDispatch::new(Arc::clone(&self.local), self.job.workers),
            self.job.trace.clone(),
            &|inbox| transport::open(&self.place, &inbox),
            |address, incarnation| {
                let rank = options::rank(&self.job, &self.place);
                let birth = NodeStart { rank, incarnation, address, scheduler: &self.job.root };
                let mut node = Node::<_, Server<_>>::new(limits, &birth, 0);
                node.set_launch(config::launch());
                if whole {
                    node.part.keep_whole();
                }
                node
            },
        )?;
        telemetry::trace(&driver);
        listening();
        let result = self.run(&driver, &self.server);
        // A process that ends with its job does not drop the store.
        if let Some(log) = self.local.applier.digests.get() {
            log.finish(Deadline::Never);
        }
        result
    }

    fn serve_as_scheduler(&self, listening: &dyn Fn()) -> Result<()> {
        let listener = self.job.metrics.as_deref().map(metrics::listen).transpose()?;
        let limits = options::limits(&self.job, self.kind);
        let driver = Driver::start(
            NoopHandler,
            None,
            &|inbox| transport::open(&self.place, &inbox),
            |_, incarnation| Scheduler::new(limits, incarnation, 0),
        )?;
        let endpoint = listener.map(|it| metrics::serve(it, &self.job.root, &driver));
        let endpoint = endpoint.transpose().inspect_err(|_| driver.stop())?;
        listening();
        let result = self.run(&driver, &self.scheduler);
        drop(endpoint);
        result
    }

    fn run<H: DriverHost>(
        &self,
        driver: &Arc<Driver<H>>,
        running: &OnceLock<Arc<Driver<H>>>,
    ) -> Result<()> {
        let _ = running.set(Arc::clone(driver));
        if self.aborted.load(Ordering::SeqCst) {
            driver.stop();
        }
        let end = driver.wait(None, |machine| machine.end().cloned());
        driver.flush();
        // Before the driver stops: the rank is not available later.
        driver.tracer.finish("server", self.rank());
        driver.stop();
        if let Some(bug) = driver.bug() {
            self.local.poison();
            return Err(bug);
        }
        match end {
            Some(Ok(())) => Ok(()),
            Some(Err(failure)) => Err(error_of(&self.local.keys.names, &failure)),
            None if interrupt::requested() => Err(fail!(Timeout, "the job goes on without it")),
            None => Err(fail!(Closed, "the store was aborted")),
        }
    }
}

impl JobMember for ServerProcess {
    fn role(&self) -> Role {
        self.job.role
    }

    fn workers(&self) -> u32 {
        self.job.workers
    }

    /// Known once the job has started, or if an option sets it.
    fn rank(&self) -> u32 {
        let me = self.server.get().and_then(|driver| driver.peek(member).flatten());
        me.map_or(self.job.rank.unwrap_or(0), |peer| peer.rank)
    }

    fn lost(&self) -> usize {
        let as_server = self.server.get().and_then(|driver| driver.peek(Node::lost));
        let as_scheduler = || self.scheduler.get().and_then(|driver| driver.peek(Scheduler::lost));
        as_server.or_else(as_scheduler).unwrap_or(0)
    }

    fn workers_here(&self) -> Vec<u32> {
        let as_server = self.server.get().and_then(|driver| driver.peek(Node::workers_here));
        let as_scheduler =
            || self.scheduler.get().and_then(|driver| driver.peek(Scheduler::workers_here));
        let workers = as_server.or_else(as_scheduler).unwrap_or_default();
        workers.into_iter().map(|peer| peer.rank).collect()
    }

    #[cfg(test)]
    fn takings(&self) -> u64 {
        self.server.get().map_or(0, |driver| driver.takings())
    }

    fn stats(&self) -> String {
        let mut text = format!(
            ",\"role\":\"{}\",\"rank\":{},\"num_workers\":{}",
            self.role().name(),
            self.rank(),
            self.workers()
        );
        if let Some(driver) = self.server.get() {
            let counts = driver.peek(|node| (node.part.held_bytes(), node.part.duplicates()));
            let (held, duplicates) = counts.unwrap_or_default();
            let address = driver.address();
            let _ = write!(
                text,
                ",\"address\":\"{address}\",\"held_bytes\":{held},\"duplicates\":{duplicates}{}",
                telemetry::facts(driver.step(|node, now| (node.facts(now), node.ignored())))
            );
        }
        text
    }

    fn close(&self, _: Deadline) -> Result<()> {
        self.abort();
        Ok(())
    }

    fn serve(&self, listening: &dyn Fn()) -> Result<()> {
        if self.serves.swap(true, Ordering::SeqCst) {
            return Err(fail!(InvalidArgument, "serve: this store serves, or has served, already"));
        }
        let result = if self.job.role == Role::Scheduler {
            self.serve_as_scheduler(listening)
        } else {
            self.serve_as_server(listening)
        };
        result.map_err(|error: crate::Error| error.at("serve"))
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        self.server.get().into_iter().for_each(|driver| driver.stop());
        self.scheduler.get().into_iter().for_each(|driver| driver.stop());
    }
}
