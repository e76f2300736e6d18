//! Runs the state machines of the protocol: passes them received messages and the time, sends their messages,
//! and has the host carry out their actions. Also called: event loop, reactor, driver of the state machines.

mod authorize;
mod buffers;
mod event_log;
mod inbox;
mod outbox;
mod spare_lists;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub(crate) use buffers::{Block, BlockPool, Bytes, Loan};
use event_log::DropLog;
pub(crate) use inbox::{BadDelivery, read_all};
use inbox::{FrameReader, ReadMemory, ReceiveBlocks};
use outbox::{Outbox, PeerPaths};
pub(crate) use spare_lists::SpareLists;

use crate::credentials::Identity;
use crate::error::{Error, Result};
use crate::interrupt;
use crate::log::{DeferredLog, Level, log};
use crate::panics;
use crate::sys::sync::{Condvar, Mutex, MutexGuard};
use crate::trace::Tracer;
use crate::transport::{
    Inbox, PayloadBlocks, PeerChoice, Piece, PolledCall, Polling, ReceiveRoom, ReceiveTarget,
    Transport, who_and_address,
};
use kvstore_protocol::{
    Header, Limits, MS, Machine, Peer, PeerEvent, Scheduler, Time, TransportsByAddress,
};

/// Flush timeout and poll interval at shutdown.
const LAST_WORDS: Duration = Duration::from_millis(500);
const LOOK_AGAIN: Duration = Duration::from_millis(1);

/// Number of messages of a delivery that one step processes.
const PORTION: usize = 64;

/// Carries out the actions that the state machine of a process requests.
pub(crate) trait DriverHost: Send + Sync + Sized + 'static {
    type Machine: Machine<Bytes> + Send;
    type Todo: Default;
    /// What is in flight, by names that the protocol carries for the host. The machine's lock guards it.
    type Registry: Send;

    /// The registry of a new driver.
    fn registry(&self) -> Self::Registry;

    /// Memory for the actions of a step: that of an earlier step of this thread.
    fn todo() -> Self::Todo {
        Self::Todo::default()
    }

    /// Prepares the machine for a delivery; called with the machine locked.
    fn expect(_machine: &mut Self::Machine, _now: Time) {}

    /// Takes the machine's actions, with the machine locked: nothing here may take long.
    fn collect(
        &self,
        _machine: &mut Self::Machine,
        _registry: &mut Self::Registry,
        _todo: &mut Self::Todo,
    ) {
    }

    /// Carries out the actions, without the lock.
    fn carry_out(&self, _driver: &Arc<Driver<Self>>, _todo: Self::Todo) {}

    /// A bug has stopped the driver: fails the calls that wait.
    fn broken(&self, _driver: &Driver<Self>, _bug: &Error) {}

    /// Whether pushed values get digests while they are copied.
    fn digests_pushes(&self) -> bool {
        false
    }

    /// The destination of a value of this many bytes, if a call waits for it; called with the machine locked.
    fn landing(
        &self,
        _machine: &Self::Machine,
        _registry: &Self::Registry,
        _head: &Header,
        _len: usize,
    ) -> Option<ReceiveTarget> {
        None
    }
}

/// Host of the scheduler, which has no data plane.
pub(crate) struct NoopHandler;

impl DriverHost for NoopHandler {
    type Machine = Scheduler<Bytes>;
    type Todo = ();
    type Registry = ();

    fn registry(&self) {}

    fn expect(scheduler: &mut Scheduler<Bytes>, now: Time) {
        scheduler.tell_time(clock(), now);
    }
}

pub(crate) struct Driver<H: DriverHost> {
    core: Mutex<Core<H>>,
    /// Count of takings of the lock.
    #[cfg(test)]
    takings: AtomicU64,
    /// Wakes the timer, and the threads that wait for the job to start or to end.
    changed: Condvar,
    /// The panic that has stopped the driver, if one has.
    bug: OnceLock<Error>,
    outbox: Outbox,
    ledger: DropLog,
    transport: Arc<dyn Transport>,
    began: Instant,
    pub(crate) tracer: Tracer,
    pub(crate) blocks: Arc<BlockPool>,
    pub(crate) host: H,
}

struct Core<H: DriverHost> {
    machine: Option<H::Machine>,
    registry: H::Registry,
    /// When the timer is due.
    wake: Time,
    /// Whether the machine is ready, and whether the job has ended, as last signalled to waiting threads.
    told: (bool, bool),
    stopped: bool,
}

/// Inbox of a driver that may no longer exist.
struct DriverInbox<H: DriverHost>(OnceLock<Weak<Driver<H>>>);

/// Opens the transport for an inbox.
pub(crate) type TransportOpener<'a> = &'a dyn Fn(Arc<dyn Inbox>) -> Result<Arc<dyn Transport>>;

impl<H: DriverHost> Driver<H> {
    /// Opens the transport and starts the machine that `make` makes for its address. `trace` has the path prefix
    /// and the rounds of a trace file.
    pub(crate) fn start(
        host: H,
        trace: Option<(String, (u64, u64))>,
        open: TransportOpener<'_>,
        make: impl FnOnce(&str, u64) -> H::Machine,
    ) -> Result<Arc<Self>> {
        let door = Arc::new(DriverInbox(OnceLock::new()));
        let transport = open(door.clone())?;
        let began = Instant::now();
        let machine = make(transport.address(), incarnation());
        let Limits { workers, servers, .. } = *machine.limits();
        let members = workers as usize + servers as usize + 1;
        let (machine, registry, told) = (Some(machine), host.registry(), (false, false));
        let driver = Arc::new_cyclic(|driver: &Weak<Self>| {
            let broken = Weak::clone(driver);
            let alarm = move |panic: &str| {
                if let Some(driver) = broken.upgrade() {
                    driver.break_down(panic);
                }
            };
            Self {
                core: Mutex::new(Core { machine, registry, wake: 0, told, stopped: false }),
                #[cfg(test)]
                takings: AtomicU64::new(0),
                changed: Condvar::new(),
                bug: OnceLock::new(),
                outbox: Outbox::new(Arc::clone(&transport), members, Arc::new(alarm)),
                ledger: DropLog::default(),
                transport,
                began,
                tracer: Tracer::new(trace, began),
                blocks: Arc::default(),
                host,
            }
        });
        let _ = door.0.set(Arc::downgrade(&driver));
        driver.start_timer()?;
        Ok(driver)
    }

    /// Microseconds since the start.
    pub(crate) fn now(&self) -> Time {
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(Time::MAX)
    }

    /// The time of a deadline on the machine's clock.
    pub(crate) fn moment(&self, end: Option<Instant>) -> Time {
        let since = |end: Instant| end.saturating_duration_since(self.began).as_micros();
        end.map_or(Time::MAX, |end| u64::try_from(since(end)).unwrap_or(Time::MAX))
    }

    /// The address at which peers know this process.
    pub(crate) fn address(&self) -> &str {
        self.transport.address()
    }

    /// Runs `work` on the machine, then carries out the actions and sends the messages that result. None
    /// after the end.
    ///
    /// After a panic the machine is stopped. Actions that it had requested are still carried out, because
    /// calls wait for them, before the panic resumes.
    pub(crate) fn step<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut H::Machine, Time) -> T,
    ) -> Option<T> {
        self.step_from(None, |machine, _, now| work(machine, now))
    }

    /// Like `step`, for work that changes the registry too.
    pub(crate) fn step_with<T>(
        self: &Arc<Self>,
        work: impl FnOnce(&mut H::Machine, &mut H::Registry, Time) -> T,
    ) -> Option<T> {
        self.step_from(None, work)
    }

    /// Reads or changes the registry.
    pub(crate) fn with_registry<T>(&self, work: impl FnOnce(&mut H::Registry) -> T) -> T {
        work(&mut self.lock().registry)
    }

    /// Takes the lock of the machine and of the registry: the one that all keys share.
    fn lock(&self) -> MutexGuard<'_, Core<H>> {
        // Relaxed: only a count.
        #[cfg(test)]
        self.takings.fetch_add(1, Ordering::Relaxed);
        self.core.lock()
    }

    #[cfg(test)]
    pub(crate) fn takings(&self) -> u64 {
        self.takings.load(Ordering::Relaxed)
    }

    /// Like `step`, for frames that arrived from an address.
    fn step_from<T>(
        self: &Arc<Self>,
        from: Option<&str>,
        work: impl FnOnce(&mut H::Machine, &mut H::Registry, Time) -> T,
    ) -> Option<T> {
        let (mut todo, mut news) = (H::todo(), None);
        let result = panics::catch(|| self.advance(work, &mut todo, &mut news));
        if result.is_err() {
            self.halt();
        }
        self.host.carry_out(self, todo);
        if let Some((who, news)) = news {
            for event in &news {
                self.tracer.tell(who, event);
                self.ledger.tell(who, from, event);
            }
        }
        result.unwrap_or_else(|panic| resume_unwind(Box::new(panic)))
    }

    fn advance<T>(
        &self,
        work: impl FnOnce(&mut H::Machine, &mut H::Registry, Time) -> T,
        todo: &mut H::Todo,
        news: &mut Option<(Peer, Vec<PeerEvent>)>,
    ) -> Option<T> {
        let mut ways = PeerPaths::new();
        let _logs_later = DeferredLog::begin();
        let mut core = self.lock();
        let now = self.now();
        let core_now = &mut *core;
        let machine = core_now.machine.as_mut().filter(|_| !core_now.stopped)?;
        let result = work(machine, &mut core_now.registry, now);
        self.host.collect(machine, &mut core_now.registry, todo);
        self.outbox.post(machine.send(now), &mut ways);
        let wake = machine.wake_at();
        let told = (machine.is_ready(), machine.end().is_some());
        *news = Some((machine.me(), machine.news()));
        if wake < core_now.wake || told != core_now.told {
            core_now.wake = core_now.wake.min(wake);
            core_now.told = told;
            self.changed.notify_all();
        }
        drop(core);
        ways.iter().for_each(|way| way.flush());
        Some(result)
    }

    /// Runs work that has no caller to report to: a panic stops the driver.
    fn guard(&self, work: impl FnOnce()) {
        if let Err(panic) = panics::catch(work) {
            self.break_down(&panic);
        }
    }

    /// Stops the driver because of a bug, and fails the calls that wait.
    fn break_down(&self, panic: &str) {
        let bug = self.bug.get_or_init(|| panics::internal(panic));
        self.halt();
        self.host.broken(self, bug);
        self.stop();
    }

    /// The bug that has stopped the driver, if one has.
    pub(crate) fn bug(&self) -> Option<Error> {
        self.bug.get().cloned()
    }

    /// Stops the machine for good.
    fn halt(&self) -> Option<H::Machine> {
        let mut core = self.lock();
        core.stopped = true;
        self.changed.notify_all();
        core.machine.take()
    }

    /// Waits until `ready` returns a value, the deadline has passed, or this thread was interrupted.
    pub(crate) fn wait<T>(
        &self,
        end: Option<Instant>,
        ready: impl Fn(&H::Machine) -> Option<T>,
    ) -> Option<T> {
        let mut core = self.lock();
        loop {
            let answer = core.machine.as_ref().and_then(&ready);
            if answer.is_some() || core.stopped {
                return answer;
            }
            let Some(until) = interrupt::next(end) else {
                self.changed.wait(&mut core);
                continue;
            };
            if self.changed.wait_until(&mut core, until) {
                let is_late = end.is_some_and(|end| Instant::now() >= end);
                if is_late || self.core.unlocked(&mut core, interrupt::requested) {
                    return core.machine.as_ref().and_then(&ready);
                }
            }
        }
    }

    /// Begins to poll on the calling thread, as [`Transport::polling`].
    pub(crate) fn polling(&self, call: PolledCall) -> Polling {
        self.transport.polling(call)
    }

    /// Reads the machine, if it exists.
    pub(crate) fn peek<T>(&self, look: impl FnOnce(&H::Machine) -> T) -> Option<T> {
        self.lock().machine.as_ref().map(look)
    }

    /// Waits until all queued messages are sent, with a timeout: a peer may receive no more.
    pub(crate) fn flush(&self) {
        let end = Instant::now() + LAST_WORDS;
        while !self.outbox.is_empty() && Instant::now() < end {
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Stops at once: no message is sent or received any more.
    pub(crate) fn stop(&self) {
        drop(self.halt());
        self.outbox.close();
        self.ledger.close();
        self.transport.close();
    }

    fn start_timer(self: &Arc<Self>) -> Result<()> {
        let driver = Arc::clone(self);
        let thread = std::thread::Builder::new().name("kvstore-timer".into());
        let keep_time = move || driver.guard(|| driver.keep_time());
        crate::pool::without_signals(|| thread.spawn(keep_time))
            .map_err(|error| crate::error::fail!(OutOfMemory, "cannot start a thread: {error}"))?;
        Ok(())
    }

    fn keep_time(self: &Arc<Self>) {
        let mut known = 0;
        loop {
            let due = {
                let mut core = self.lock();
                if core.stopped {
                    return;
                }
                let now = self.now();
                if core.wake > now {
                    let pause = Duration::from_micros((core.wake - now).min(60_000_000));
                    self.changed.wait_until(&mut core, Instant::now() + pause);
                    continue;
                }
                std::mem::replace(&mut core.wake, Time::MAX)
            };
            let transports = self.transport.choices(&mut known).map(by_address);
            self.step(|machine, now| {
                transports.into_iter().for_each(|known| machine.set_transports(known));
                // 0 stands for at once.
                if due > 0 {
                    machine.note_delay(now.saturating_sub(due));
                }
                machine.tick(now);
            });
        }
    }

    /// The destination of a value, if a call waits for it and the peer, as its credential names it, may send it.
    fn target(&self, who: Option<Identity>, head: &Header, len: usize) -> Option<ReceiveTarget> {
        if who.is_some_and(|who| !authorize::speaker(who).is(head)) {
            return None;
        }
        let core = self.lock();
        let machine = core.machine.as_ref().filter(|_| !core.stopped)?;
        self.host.landing(machine, &core.registry, head, len)
    }

    fn blocks(&self) -> ReceiveBlocks<'_> {
        ReceiveBlocks { pool: &self.blocks, digests_pushes: self.host.digests_pushes() }
    }

    fn arrived(
        self: &Arc<Self>,
        from: &str,
        len: usize,
        is_sealed: bool,
        pieces: &mut dyn Iterator<Item = Piece<'_>>,
    ) {
        let (who, _) = who_and_address(from);
        let land = |head: &Header, len: usize| self.target(who, head, len);
        let mut memory = ReadMemory::take();
        let blocks = self.blocks();
        let reader = &mut FrameReader { is_sealed, blocks, land: &land, memory: &mut memory };
        let broken = inbox::read(len, pieces, reader);
        self.take_messages(from, memory, broken);
    }

    /// Memory for the payload of a frame of which the front is there, and the length of what precedes the payload.
    fn room(&self, from: &str, len: usize, front: &[u8]) -> Option<(ReceiveRoom, usize)> {
        let (who, _) = who_and_address(from);
        inbox::room(len, front, self.blocks(), &|head, len| self.target(who, head, len))
    }

    /// Whether a call waits for a value, as far as is known while another thread has the machine.
    fn is_awaited(&self, head: &Header, len: usize) -> bool {
        self.core.try_lock().is_some_and(|core| {
            let machine = core.machine.as_ref().filter(|_| !core.stopped);
            let target = machine.and_then(|it| self.host.landing(it, &core.registry, head, len));
            target.is_some()
        })
    }

    /// A frame has arrived whose payload is in the memory that `room` has given.
    fn received(self: &Arc<Self>, from: &str, front: &[u8], payload: ReceiveRoom) {
        let mut memory = ReadMemory::take();
        let message = inbox::whole(front, payload, &self.blocks);
        let broken = message.map(|message| memory.messages.push_back(message)).err();
        self.take_messages(from, memory, broken);
    }

    /// Passes the messages of a delivery to the machine, and then the error that has ended it.
    fn take_messages(
        self: &Arc<Self>,
        from: &str,
        mut memory: ReadMemory,
        broken: Option<BadDelivery>,
    ) {
        let (who, from) = who_and_address(from);
        if let Some(who) = who {
            authorize::keep_own(who, from, &mut memory.messages, &self.ledger);
        }
        if let Some(broken) = broken {
            let reason = format!("dropped what is no frame: {broken:?}");
            self.ledger.note(Level::Warn, "a process".into(), from, reason);
        }
        let mut is_last = false;
        loop {
            let ReadMemory { messages, bundles, .. } = &mut memory;
            let step = self.step_from(Some(from), |machine, _, now| {
                H::expect(machine, now);
                // Replies to a portion are sent before the last message of a delivery is processed.
                let mut parts = 0;
                while parts < PORTION
                    && let Some(message) = messages.pop_front()
                {
                    parts += message.parts().len();
                    let is_known = who.is_none_or(|who| {
                        authorize::is_known(who, from, &message.head, machine, &self.ledger)
                    });
                    if is_known {
                        machine.receive(message, now);
                        bundles.extend(machine.spare_bundle());
                    }
                }
                is_last = messages.is_empty();
                if let Some(BadDelivery::Bad(bad)) = broken.filter(|_| is_last) {
                    machine.bad_frame(from, bad, now);
                }
            });
            // After the end of the machine no step takes messages.
            if is_last || step.is_none() {
                break;
            }
        }
        memory.leave();
    }
}

/// What the transport uses for each peer, for a report.
fn by_address(choices: BTreeMap<Arc<str>, PeerChoice>) -> TransportsByAddress {
    let others = |choice: &PeerChoice| {
        let each = choice.others.iter().map(|(name, reason)| format!("{name}: {reason}"));
        each.collect::<Vec<_>>().join("; ")
    };
    let one = |(to, choice): (_, PeerChoice)| (to, (choice.transport, others(&choice)));
    choices.into_iter().map(one).collect()
}

impl<H: DriverHost> DriverInbox<H> {
    /// Runs `work` on the driver, if it exists. The calling threads are the transport's.
    fn tell(&self, work: impl FnOnce(&Arc<Driver<H>>)) {
        if let Some(driver) = self.0.get().and_then(Weak::upgrade) {
            driver.guard(|| work(&driver));
        }
    }
}

impl<H: DriverHost> PayloadBlocks for Driver<H> {
    fn block(&self, len: usize, front: &[u8]) -> Option<ReceiveRoom> {
        let is_awaited = &|head: &Header, len| self.is_awaited(head, len);
        // A bug stops the driver when the frame is read.
        panics::catch(|| inbox::block(len, front, self.blocks(), is_awaited)).ok().flatten()
    }
}

impl<H: DriverHost> Inbox for DriverInbox<H> {
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.tell(|driver| driver.arrived(from, len, false, pieces));
    }

    fn opened(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        self.tell(|driver| driver.arrived(from, len, true, pieces));
    }

    fn room(&self, from: &str, len: usize, front: &[u8]) -> Option<(ReceiveRoom, usize)> {
        let driver = self.0.get().and_then(Weak::upgrade)?;
        let room = panics::catch(|| driver.room(from, len, front));
        room.unwrap_or_else(|panic| {
            driver.break_down(&panic);
            None
        })
    }

    fn blocks(&self) -> Option<Arc<dyn PayloadBlocks>> {
        Some(self.0.get().and_then(Weak::upgrade)?)
    }

    fn received(&self, from: &str, front: &[u8], payload: ReceiveRoom) {
        self.tell(|driver| driver.received(from, front, payload));
    }

    fn down(&self, address: &str) {
        self.tell(|driver| {
            let known = driver.step(|machine, now| {
                machine.down(address, now);
                machine.knows(address)
            });
            // Observers are stateless clients: one that has disconnected needs no path any more.
            if known == Some(false) {
                driver.outbox.forget(address);
            }
        });
    }

    fn reconnected(&self, address: &str) {
        self.tell(|driver| {
            driver.step(|machine, now| machine.reconnected(address, now));
        });
    }

    fn refused(&self, address: &str, reason: &str) {
        log(Level::Warn, || format!("no way to {address}: {reason}"));
        self.tell(|driver| {
            driver.step(|machine, now| machine.refused(address, reason, now));
        });
    }

    fn rejected(&self, address: &str, who: &str, reason: &str) {
        self.tell(|driver| {
            let reason = format!("refused a connection: {reason}");
            driver.ledger.note(Level::Warn, who.into(), address, reason);
        });
    }
}

/// Role and rank of a member, once its job has started.
pub(crate) fn member(machine: &impl Machine<Bytes>) -> Option<Peer> {
    machine.has_started().then(|| machine.me())
}

/// Microseconds since 1970, by the system clock.
pub(crate) fn clock() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Incarnation of a process: larger than that of every earlier process, by the system clock. Processes that
/// start at the same moment get different numbers: milliseconds, then random bits.
pub(crate) fn incarnation() -> u64 {
    const CHANCE: u32 = 22;
    static LAST: AtomicU64 = AtomicU64::new(0);
    let moment = (clock() / MS) << CHANCE;
    let chance = RandomState::new().build_hasher().finish() >> (u64::BITS - CHANCE);
    let next = |last: u64| Some((moment | chance).max(last + 1));
    let last = LAST.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).unwrap_or_default();
    (moment | chance).max(last + 1)
}
