//! Threads of the program that read from connections.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use super::{line, listener, open, place, send};
use crate::sys::processors;
use crate::transport::mail::{Mail, wait_for};
use crate::transport::polling::{PolledCall, Polling};
use crate::transport::tcp::TcpTransport;
use crate::transport::{BlockingSender, Inbox, Piece, Transport};

/// First bytes and lengths of what has arrived, and the threads that have delivered it.
#[derive(Default)]
struct Threads {
    heard: Mutex<Vec<(u8, usize, ThreadId)>>,
    /// What is called with each delivery.
    then: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Inbox for Threads {
    fn arrived(&self, _: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        let first = pieces.flat_map(Piece::to_vec).next().unwrap_or(0);
        self.heard.lock().unwrap().push((first, len, std::thread::current().id()));
        if let Some(then) = self.then.get() {
            then();
        }
    }

    fn down(&self, _: &str) {}
}

/// A worker that polls, and a server that sends to it.
struct Pair {
    server: TcpTransport,
    at_server: Arc<Mail>,
    worker: Arc<TcpTransport>,
    at_worker: Arc<Threads>,
    forth: BlockingSender,
    back: BlockingSender,
}

impl Pair {
    fn connected() -> Self {
        let (server, at_server) = listener();
        let at_worker = Arc::new(Threads::default());
        let inbox = Arc::clone(&at_worker) as Arc<dyn Inbox>;
        let worker = Arc::new(TcpTransport::open(&place(None), &inbox).unwrap());
        let mut forth = line(&worker, server.address());
        let mut back = line(&server, worker.address());
        send(&mut forth, b"hello", &[], true);
        at_server.wait(1);
        send(&mut back, b"hello", &[], true);
        wait_for(|| (!at_worker.heard.lock().unwrap().is_empty()).then_some(()));
        Self { server, at_server, worker, at_worker, forth, back }
    }

    /// Polls on this thread; other tests may hold the slots.
    fn polling(&self, call: PolledCall) -> Polling {
        wait_for(|| Some(self.worker.polling(call)).filter(Polling::is_admitted))
    }

    fn heard(&self) -> usize {
        self.at_worker.heard.lock().unwrap().len()
    }

    /// The thread that has delivered the last message.
    fn last(&self) -> ThreadId {
        self.at_worker.heard.lock().unwrap().last().unwrap().2
    }

    /// Waits for this number of messages, also on this thread.
    fn poll_until(&self, polling: &Polling, count: usize) {
        wait_for(|| {
            polling.look();
            (self.heard() >= count).then_some(())
        });
    }

    fn wait_until_heard(&self, count: usize) {
        wait_for(|| (self.heard() >= count).then_some(()));
    }
}

#[test]
fn a_waiting_thread_reads_in_place_of_the_transport_s() {
    let (mut pair, own) = (Pair::connected(), std::thread::current().id());
    for _ in 0..100 {
        let (before, polling) = (pair.heard(), pair.polling(PolledCall::SMALL));
        // The thread of the transport may have woken before.
        std::thread::sleep(Duration::from_millis(1));
        send(&mut pair.back, &[1; 100], &[], true);
        pair.poll_until(&polling, before + 1);
        assert_eq!(pair.last(), own);
        drop(polling);
        send(&mut pair.back, &[2; 100], &[], true);
        pair.wait_until_heard(before + 2);
        assert_ne!(pair.last(), own, "no thread of the program reads any more");
    }
}

#[test]
fn a_thread_reads_large_messages_where_each_worker_has_one_processor() {
    let (mut pair, own) = (Pair::connected(), std::thread::current().id());
    // The thread of the transport may be about to read, in some of the turns.
    for (others, reads) in [(1, processors() <= 2), (2, false)] {
        let call = PolledCall { bytes: 1 << 20, others };
        let reads_itself = |_| {
            let begin = || Some(pair.worker.polling(call)).filter(|it| it.is_admitted() == reads);
            let (before, polling) = (pair.heard(), wait_for(begin));
            std::thread::sleep(Duration::from_millis(1));
            send(&mut pair.back, &vec![1; 1 << 20], &[], true);
            pair.poll_until(&polling, before + 1);
            pair.last() == own
        };
        assert_eq!((0..20).any(reads_itself), reads, "{call:?}");
    }
}

#[test]
fn what_a_thread_leaves_is_read_after_its_end() {
    let mut pair = Pair::connected();
    for number in 0..200 {
        let (before, polling) = (pair.heard(), pair.polling(PolledCall::SMALL));
        // More than a read takes at once.
        let large = if number % 2 == 0 { 1 << 20 } else { 10 };
        send(&mut pair.back, &vec![3; large], &[], true);
        send(&mut pair.back, &[4; 10], &[], true);
        if number % 3 == 0 {
            polling.look();
        }
        drop(polling);
        pair.wait_until_heard(before + 2);
    }
}

#[test]
fn a_thread_that_reads_also_sends_what_is_owed() {
    let mut pair = Pair::connected();
    let polling = pair.polling(PolledCall::SMALL);
    // More than sockets hold; the server reads it only while the worker sends on.
    send(&mut pair.forth, &[5], &[(1, vec![5; 32 << 20])], false);
    wait_for(|| {
        polling.look();
        (pair.at_server.heard.lock().unwrap().len() == 2).then_some(())
    });
}

#[test]
fn messages_come_once_and_in_order_while_threads_begin_and_end_to_poll() {
    let mut pair = Pair::connected();
    pair.at_worker.heard.lock().unwrap().clear();
    let is_over = AtomicBool::new(false);
    let (worker, is_over) = (&pair.worker, &is_over);
    std::thread::scope(|scope| {
        for wait in [0, 3, 50] {
            scope.spawn(move || {
                while !is_over.load(Ordering::Relaxed) {
                    let polling = worker.polling(PolledCall::SMALL);
                    polling.wait(|| is_over.load(Ordering::Relaxed));
                    std::thread::sleep(Duration::from_micros(wait));
                }
            });
        }
        let (mut sent, end) = (Vec::new(), Instant::now() + Duration::from_secs(60));
        for number in 1..=4_000_usize {
            let (first, len) =
                (number.to_le_bytes()[0], if number % 50 == 0 { 1 << 18 } else { 20 });
            send(&mut pair.back, &vec![first; len], &[], true);
            sent.push((first, len));
            // Now and then the worker has read everything, and its thread sleeps.
            while number % 7 == 0 && pair.at_worker.heard.lock().unwrap().len() < number {
                assert!(Instant::now() < end, "message {number} was not read");
                std::thread::yield_now();
            }
        }
        wait_for(|| (pair.at_worker.heard.lock().unwrap().len() == sent.len()).then_some(()));
        is_over.store(true, Ordering::Relaxed);
        let heard = pair.at_worker.heard.lock().unwrap();
        assert!(heard.iter().map(|(first, len, _)| (*first, *len)).eq(sent));
    });
}

#[test]
fn a_transport_is_closed_while_threads_read_and_by_one_that_delivers() {
    for by_delivery in [false, true] {
        let mut pair = Pair::connected();
        let (worker, before) = (Arc::clone(&pair.worker), pair.heard());
        if by_delivery {
            let _ = pair.at_worker.then.set(Box::new(move || worker.close()));
        }
        let polling = pair.polling(PolledCall::SMALL);
        send(&mut pair.back, &[6; 10], &[], true);
        if by_delivery {
            pair.poll_until(&polling, before + 1);
        } else {
            std::thread::scope(|scope| {
                let _closing = scope.spawn(|| pair.worker.close());
                wait_for(|| {
                    polling.look();
                    pair.worker.endpoint.threads().eq(&0).then_some(())
                });
            });
        }
        let after = pair.heard();
        send(&mut pair.back, &[7; 10], &[], false);
        drop(polling);
        std::thread::sleep(Duration::from_millis(20));
        assert_eq!(pair.heard(), after, "nothing arrives after the end");
        pair.server.close();
    }
}

#[test]
fn a_connection_that_ends_is_noticed_by_a_thread_that_reads() {
    let pair = Pair::connected();
    let polling = pair.polling(PolledCall::SMALL);
    let (_other, _mail) = open(&place(None));
    pair.server.close();
    wait_for(|| {
        polling.look();
        (pair.worker.endpoint.incoming.transports.on_connections() == 0).then_some(())
    });
}
