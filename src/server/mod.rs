//! Server (also called: parameter server, shard), and the process of a scheduler, until the job ends.

mod dispatch;
mod slice_queue;
mod slice_value;

use std::fmt::Write;
use std::sync::{Arc, OnceLock};

use crate::config::JobConfig;
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
use crate::runtime::{Driver, DriverHost, NoopHandler, ProtocolMachine};
use crate::sys::sync::{AtomicBool, Ordering};
use crate::transport::{self, TransportConfig};
use dispatch::ServerDispatch;
use kvstore_protocol::{NodeRole, NodeStart, Peer};

pub(crate) struct ServerProcess {
    local: Arc<Local>,
    job: JobConfig,
    place: TransportConfig,
    kind: StoreKind,
    serves: AtomicBool,
    aborted: AtomicBool,
    running: OnceLock<ServingProcess>,
}

enum ServingProcess {
    Server(Arc<Driver<ServerDispatch>>),
    Scheduler(Arc<Driver<NoopHandler>>),
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
            running: OnceLock::new(),
        })
    }

    fn serve_as_server(&self) -> Result<()> {
        let driver = self.start_server()?;
        telemetry::trace(&driver);
        self.run(&driver, ServingProcess::Server)
    }

    fn serve_as_scheduler(&self) -> Result<()> {
        let listener = self.job.metrics.as_deref().map(metrics::listen).transpose()?;
        let driver = self.start_scheduler()?;
        let endpoint = listener.map(|it| metrics::serve(it, &self.job.root, &driver));
        let endpoint = endpoint.transpose().inspect_err(|_| driver.stop())?;
        let result = self.run(&driver, ServingProcess::Scheduler);
        drop(endpoint);
        result
    }

    fn start_scheduler(&self) -> Result<Arc<Driver<NoopHandler>>> {
        let limits = options::limits(&self.job, self.kind);
        Driver::start(
            NoopHandler,
            None,
            &|inbox| transport::open(&self.place, &inbox),
            |_, incarnation| ProtocolMachine::scheduler(limits, incarnation),
        )
    }

    fn start_server(&self) -> Result<Arc<Driver<ServerDispatch>>> {
        let limits = options::limits(&self.job, self.kind);
        // A user's updater needs uncut keys.
        let whole = matches!(self.local.handling.read().merger, Merger::Updater(_));
        Driver::start(
            ServerDispatch::new(Arc::clone(&self.local)),
            self.job.trace.clone(),
            &|inbox| transport::open(&self.place, &inbox),
            |address, incarnation| {
                let (role, scheduler) = (options::role(self.job.role), &self.job.root);
                let rank = options::rank(&self.job, &self.place);
                let birth = NodeStart { role, rank, incarnation, address, scheduler };
                let mut machine = ProtocolMachine::node(limits, &birth);
                if let ProtocolMachine::Node(node) = &mut machine
                    && let (NodeRole::Server(server), true) = (&mut node.part, whole)
                {
                    server.keep_whole();
                }
                machine
            },
        )
    }

    fn run<H: DriverHost>(
        &self,
        driver: &Arc<Driver<H>>,
        wrap: impl FnOnce(Arc<Driver<H>>) -> ServingProcess,
    ) -> Result<()> {
        let _ = self.running.set(wrap(Arc::clone(driver)));
        if self.aborted.load(Ordering::SeqCst) {
            driver.stop();
        }
        let end = driver.wait(None, ProtocolMachine::end);
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
        let me = match self.running.get() {
            Some(ServingProcess::Server(driver)) => driver.peek(ProtocolMachine::me),
            _ => None,
        };
        me.map_or(self.job.rank.unwrap_or(0), |peer: Peer| peer.rank)
    }

    fn stats(&self) -> String {
        let mut text = format!(
            ",\"role\":\"{}\",\"rank\":{},\"num_workers\":{}",
            self.role().name(),
            self.rank(),
            self.workers()
        );
        if let Some(ServingProcess::Server(driver)) = self.running.get() {
            let counts = driver.peek(|machine| match machine {
                ProtocolMachine::Node(node) => match &node.part {
                    NodeRole::Server(server) => Some((server.held_bytes(), server.duplicates())),
                    NodeRole::Worker(_) => None,
                },
                ProtocolMachine::Scheduler(_) => None,
            });
            let (held, duplicates) = counts.unwrap_or_default();
            let address = driver.address();
            let _ = write!(
                text,
                ",\"address\":\"{address}\",\"held_bytes\":{held},\"duplicates\":{duplicates}{}",
                telemetry::facts(driver)
            );
        }
        text
    }

    fn close(&self, _: Deadline) -> Result<()> {
        self.abort();
        Ok(())
    }

    fn serve(&self) -> Result<()> {
        if self.serves.swap(true, Ordering::SeqCst) {
            return Err(fail!(InvalidArgument, "serve: this store serves, or has served, already"));
        }
        let result = if self.job.role == Role::Scheduler {
            self.serve_as_scheduler()
        } else {
            self.serve_as_server()
        };
        result.map_err(|error: crate::Error| error.at("serve"))
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::SeqCst);
        match self.running.get() {
            Some(ServingProcess::Server(driver)) => driver.stop(),
            Some(ServingProcess::Scheduler(driver)) => driver.stop(),
            None => {}
        }
    }
}
