//! A job of three processes over a transport within one process.

use std::marker::PhantomData;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use super::{Bytes, Driver, DriverHost, NoopHandler, incarnation, member};
use crate::log::{Level, log, set_logger};
use crate::sys::sync::Mutex;
use crate::transport::Exchange;
use kvstore_protocol::{
    Limits, MS, Machine, Mode, Node, NodeStart, OnLoss, Scheduler, Server, SumOrder, Time, Worker,
};

/// Host that carries out no action of its machine.
struct Lazy<R>(PhantomData<fn() -> R>);

impl<R> DriverHost for Lazy<R>
where
    R: Send + 'static,
    Node<Bytes, R>: Machine<Bytes>,
{
    type Machine = Node<Bytes, R>;
    type Todo = ();
    type Registry = ();

    fn registry(&self) {}
}

/// Host that logs while its machine is locked.
struct Noisy;

const NOISE: &str = "noise of a test";

impl DriverHost for Noisy {
    type Machine = Node<Bytes, Worker<Bytes>>;
    type Todo = ();
    type Registry = ();

    fn registry(&self) {}

    fn collect(&self, _: &mut Self::Machine, (): &mut (), (): &mut ()) {
        log(Level::Error, || NOISE.into());
    }
}

fn limits() -> Limits {
    Limits {
        job: 1,
        workers: 1,
        servers: 1,
        mode: Mode::Sync,
        on_loss: OnLoss::Fail,
        peer_timeout: 5_000 * MS,
        start_timeout: 20_000 * MS,
        embedded: false,
        block_elements: 4,
        slice_bytes: 16,
        hold_bytes: 1 << 20,
        max_rounds_ahead: 1,
        sum_order: SumOrder::Linear,
        window_frames: 32,
        window_bytes: 1 << 20,
        one_way_at_a_time: false,
    }
}

fn node<H: DriverHost>(
    host: H,
    exchange: &Arc<Exchange>,
    address: &'static str,
    make: fn(Limits, &NodeStart<'_>, Time) -> H::Machine,
) -> Arc<Driver<H>> {
    Driver::start(
        host,
        None,
        &|inbox| Ok(exchange.join(address, &inbox)),
        |address, incarnation| {
            let birth = NodeStart { rank: None, incarnation, address, scheduler: "root" };
            make(limits(), &birth, 0)
        },
    )
    .unwrap()
}

#[test]
fn processes_meet_and_a_stopped_one_is_missed() {
    let exchange = Arc::new(Exchange::default());
    let server = node(Lazy::<Server<_>>(PhantomData), &exchange, "server", Node::new);
    let worker = node(Lazy::<Worker<_>>(PhantomData), &exchange, "worker", Node::new);
    let scheduler = Driver::start(
        NoopHandler,
        None,
        &|inbox| Ok(exchange.join("root", &inbox)),
        |_, incarnation| Scheduler::new(limits(), incarnation, 0),
    )
    .unwrap();
    let end = Some(Instant::now() + Duration::from_secs(20));
    assert_eq!(server.wait(end, member).unwrap().to_string(), "server 0");
    assert_eq!(worker.wait(end, member).unwrap().to_string(), "worker 0");
    assert_eq!(worker.address(), "worker");
    server.stop();
    assert!(server.step(|_, _| ()).is_none(), "a stopped driver does nothing");
    worker.stop();
    scheduler.stop();
}

#[test]
fn who_hears_the_log_may_ask_the_machine() {
    let driver = node(Noisy, &Arc::default(), "noisy", Node::new);
    let (heard, hears) = mpsc::channel();
    let (heard, asked) = (Mutex::new(heard), Arc::downgrade(&driver));
    let sink = move |_, text: &str| {
        if let (NOISE, Some(driver)) = (text, asked.upgrade()) {
            driver.peek(|_| ());
            let _ = heard.lock().send(());
        }
    };
    set_logger(Level::Error, Some(Arc::new(sink)));
    let noisy = Arc::clone(&driver);
    // Deadlocks if the log sink runs while the machine is locked.
    std::thread::spawn(move || noisy.step(|_, _| ()));
    hears.recv_timeout(Duration::from_secs(20)).expect("a word");
    set_logger(Level::Off, None);
    driver.stop();
}

#[test]
fn no_two_processes_are_taken_for_one() {
    let made = || (0..2_000).map(|_| incarnation()).collect::<Vec<_>>();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(made)).collect();
    let mut all = Vec::new();
    for thread in threads {
        let numbers = thread.join().unwrap();
        assert!(numbers.is_sorted(), "a later one is larger");
        all.extend(numbers);
    }
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 8_000);
}
