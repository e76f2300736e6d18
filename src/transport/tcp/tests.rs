//! Both ends of connections in one process, on the loopback interface.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::handshake::{Handshake, SendSide};
use super::{MOST_BYTES, MOST_PEERS, PortOffer, TcpSender, TcpTransport};
use crate::credentials::Credentials;
use crate::transport::mail::{Heard, Mail, content, wait_for};
use crate::transport::{DialPolicy, Inbox, TransportConfig, tests};

const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const WORKER: &str = "worker";

fn place() -> TransportConfig {
    TransportConfig { lease_ms: 1_000, ..tests::place(None, DialPolicy::Everybody) }
}

/// A server and a worker, connected in both directions.
struct Pair {
    server: Arc<TcpTransport>,
    worker: Arc<TcpTransport>,
    at_server: Arc<Mail>,
    at_worker: Arc<Mail>,
    /// Address of the server, as the worker knows it.
    name: String,
}

impl Pair {
    fn strangers() -> Self {
        let (at_server, at_worker) = (Arc::new(Mail::default()), Arc::new(Mail::default()));
        let inbox = |mail: &Arc<Mail>| Arc::clone(mail) as Arc<dyn Inbox>;
        let server = TcpTransport::open(&place(), Some(HOST), &inbox(&at_server)).unwrap();
        let worker = TcpTransport::open(&place(), None, &inbox(&at_worker)).unwrap();
        // The port would be Zenoh's, which takes no part in these tests.
        Self { server, worker, at_server, at_worker, name: format!("{HOST}:9") }
    }

    fn connected() -> (Self, TcpSender, TcpSender) {
        let pair = Self::strangers();
        let offer = pair.server.offer_to(WORKER).unwrap();
        pair.worker.take(&pair.name, PortOffer::decode(&offer.encode()).unwrap());
        let forth = wait_for(|| pair.worker.outlet(&pair.name));
        let back = wait_for(|| pair.server.outlet(WORKER));
        (pair, forth, back)
    }
}

fn from(name: &str, bytes: Vec<u8>) -> Heard {
    Heard::Bytes(name.into(), bytes)
}

#[test]
fn what_is_written_on_one_side_is_read_on_the_other_in_its_order() {
    let (pair, mut forth, mut back) = Pair::connected();
    let size = |number: usize| match number % 4 {
        0 => number % 40,
        1 => 60_000 + number * 31 % 12_000,
        _ => number * 7_919 % 700_000,
    };
    for (outlet, mail, name) in
        [(&mut forth, &pair.at_server, WORKER), (&mut back, &pair.at_worker, &*pair.name)]
    {
        for number in 0..200 {
            outlet.send(&content(number, size(number)), &[], true).unwrap();
        }
        let largest = content(7, MOST_BYTES);
        assert!(TcpSender::takes(largest.len()) && !TcpSender::takes(largest.len() + 1));
        outlet.send(&largest, &[], true).unwrap();
        let heard = mail.wait(201);
        let sent = (0..200).map(|number| content(number, size(number))).chain([largest]);
        assert!(heard.into_iter().eq(sent.map(|bytes| from(name, bytes))));
    }
}

#[test]
fn what_is_lent_stands_where_it_was_put() {
    let (pair, mut forth, _back) = Pair::connected();
    let own = content(1, 1_000);
    // More slices than the system takes in one call.
    let lent: Vec<(usize, Bytes)> =
        (0..800).map(|at| (at, content(at, 1 + at * 3).into())).collect();
    let parts = lent.iter().flat_map(|(at, bytes)| [&bytes[..], &own[*at..=*at]]);
    let expected = [parts.collect::<Vec<_>>().concat(), own[800..].to_vec()].concat();
    forth.send(&own, &lent, true).unwrap();
    forth.send(&[], &[], true).unwrap();
    assert!(pair.at_server.wait(2) == [from(WORKER, expected), from(WORKER, Vec::new())]);
}

#[test]
fn what_may_not_wait_is_owed_and_comes_in_its_order() {
    let (pair, mut forth, _back) = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    let mut sent = 0;
    while !forth.owes() {
        assert!(sent < 1_000, "the system takes 250 MB that nobody reads");
        forth.send(&content(sent, 250_000), &[], false).unwrap();
        sent += 1;
    }
    // Queued behind the owed bytes, although the socket would take them.
    for number in 0..3 {
        forth.send(&[number], &[(1, vec![9; 5].into())], false).unwrap();
    }
    drop(closed);
    while forth.owes() {
        forth.settle(true).unwrap();
    }
    let heard = pair.at_server.wait(sent + 3);
    let large = (0..sent).map(|number| content(number, 250_000));
    let small = (0..3).map(|number| vec![number, 9, 9, 9, 9, 9]);
    assert!(heard.into_iter().eq(large.chain(small).map(|bytes| from(WORKER, bytes))));
}

#[test]
fn waiting_for_whoever_reads_nothing_ends() {
    let (pair, mut forth, _back) = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    let begin = Instant::now();
    let error = (0..1_000).find_map(|_| forth.send(&content(0, 250_000), &[], true).err());
    assert_eq!(error.unwrap().kind(), std::io::ErrorKind::WouldBlock);
    assert!(begin.elapsed() < Duration::from_secs(15), "one second is allowed");
    // No sender writes there any more, and another connection may be made.
    pair.worker.give_up(&pair.name, &forth);
    drop((closed, forth));
    assert!(pair.worker.outlet(&pair.name).is_none());
}

#[test]
fn an_end_is_heard_behind_what_was_sent_before() {
    let (pair, mut forth, _back) = Pair::connected();
    let closed = pair.at_server.gate.lock().unwrap();
    for number in 0..20 {
        forth.send(&[number; 1_000], &[], true).unwrap();
    }
    assert!(pair.server.forget(WORKER) && !pair.server.forget("stranger"));
    drop(closed);
    let sent = (0..20).map(|number| from(WORKER, vec![number; 1_000]));
    let end = Heard::Down(WORKER.into());
    assert!(pair.at_server.wait(21).into_iter().eq(sent.chain([end])));
    assert!(!pair.server.forget(WORKER), "it is told once");
    let error = wait_for(|| forth.send(&[1], &[], true).err());
    assert_ne!(error.kind(), std::io::ErrorKind::WouldBlock);
}

#[test]
fn the_last_words_of_whoever_closes_come() {
    let (pair, mut forth, _back) = Pair::connected();
    forth.send(&content(5, 300_000), &[], true).unwrap();
    pair.worker.close();
    drop(forth);
    assert!(pair.at_server.wait(1) == [from(WORKER, content(5, 300_000))]);
    assert!(pair.worker.outlet(&pair.name).is_none());
    // Zenoh reports the end of a peer; a reader that has read to the end before reports nothing.
    if pair.server.forget(WORKER) {
        assert_eq!(pair.at_server.wait(2)[1], Heard::Down(WORKER.into()));
    }
}

#[test]
fn nobody_gets_in_without_a_token_that_was_offered() {
    let pair = Pair::strangers();
    let offer = pair.server.offer_to(WORKER).unwrap();
    let knock = |first: &[u8]| {
        let mut socket = TcpStream::connect((HOST, offer.port)).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // The listener may have closed the socket before all was written.
        let _ = socket.write_all(first);
        let mut answer = [0];
        socket.read(&mut answer).is_ok_and(|count| count == 1)
    };
    let mut wrong = offer.token;
    wrong[15] ^= 1;
    let greeting = |token: &[u8], writer: u8| [token, &[writer], &[0; 32]].concat();
    for first in [
        greeting(&wrong, 1),
        greeting(&wrong, 2),
        greeting(&offer.token, 3),
        greeting(&offer.token, 0),
        // No more bytes follow: the listener closes the connection after a timeout.
        offer.token[..7].to_vec(),
        Vec::new(),
    ] {
        assert!(!knock(&first), "{first:?}");
    }
    assert!(pair.server.outlet(WORKER).is_none());
    // A recorded handshake is useless: each one is accepted once.
    assert!(knock(&greeting(&offer.token, 1)) && !knock(&greeting(&offer.token, 1)));
    pair.server.forget(WORKER);
    assert!(!knock(&greeting(&offer.token, 2)), "it has gone");
}

#[test]
fn with_a_token_of_the_job_an_offer_is_for_one_identity() {
    let (at_server, at_worker) = (Arc::new(Mail::default()), Arc::new(Mail::default()));
    let with =
        |credentials| TransportConfig { credentials: Some(Arc::new(credentials)), ..place() };
    let server = with(Credentials::of_token("server.0", "a secret of the job"));
    let server = TcpTransport::open(&server, Some(HOST), &(at_server as Arc<dyn Inbox>)).unwrap();
    for (secret, is_let_in) in [("another secret of a job", false), ("a secret of the job", true)] {
        let worker = with(Credentials::of_token("worker.1", secret));
        let inbox = Arc::clone(&at_worker) as Arc<dyn Inbox>;
        let worker = TcpTransport::open(&worker, None, &inbox).unwrap();
        // The offer of another worker.
        let other = wait_for(|| server.offer_to("worker.0@node"));
        worker.take("server@127.0.0.1:9", other);
        std::thread::sleep(Duration::from_millis(100));
        assert!(worker.outlet("127.0.0.1:9").is_none());
        let offer = wait_for(|| server.offer_to("worker.1@node"));
        worker.take("server@127.0.0.1:9", offer);
        if is_let_in {
            wait_for(|| worker.outlet("127.0.0.1:9"));
            let mut outlet = wait_for(|| server.outlet("worker.1@node"));
            outlet.send(&[4], &[], true).unwrap();
            assert_eq!(at_worker.wait(1), [from("server@127.0.0.1:9", vec![4])]);
        } else {
            std::thread::sleep(Duration::from_millis(100));
            assert!(worker.outlet("127.0.0.1:9").is_none());
        }
    }
}

#[test]
fn a_length_that_nobody_sends_ends_the_connection() {
    for length in [u32::try_from(MOST_BYTES + 1).unwrap(), u32::MAX] {
        let pair = Pair::strangers();
        let offer = pair.server.offer_to(WORKER).unwrap();
        let mut socket = TcpStream::connect((HOST, offer.port)).unwrap();
        Handshake::new(offer.token, SendSide::Caller, None).show(&socket).unwrap();
        socket.write_all(&[&2_u32.to_le_bytes()[..], &[5, 6]].concat()).unwrap();
        assert_eq!(pair.at_server.wait(1), [from(WORKER, vec![5, 6])]);
        socket.write_all(&length.to_le_bytes()).unwrap();
        wait_for(|| socket.write_all(&[0; 100]).is_err().then_some(()));
        assert_eq!(pair.at_server.wait(1).len(), 1);
    }
}

#[test]
fn strangers_who_say_nothing_keep_nobody_out() {
    let pair = Pair::strangers();
    let offer = pair.server.offer_to(WORKER).unwrap();
    let silent: Vec<_> =
        (0..300).filter_map(|_| TcpStream::connect((HOST, offer.port)).ok()).collect();
    wait_for(|| {
        pair.worker.take(&pair.name, offer);
        std::thread::sleep(Duration::from_millis(20));
        pair.worker.outlet(&pair.name)
    });
    drop(silent);
}

#[test]
fn an_offer_is_made_again_later_and_later_until_it_is_taken() {
    let pair = Pair::strangers();
    let first = pair.server.offer_to(WORKER).unwrap();
    assert!(pair.server.offer_to(WORKER).is_none(), "it is too soon");
    assert!(pair.worker.offer_to(&pair.name).is_none(), "it has no port");
    let second = wait_for(|| pair.server.offer_to(WORKER));
    assert_ne!(first.token, second.token);
    pair.worker.take(&pair.name, second);
    wait_for(|| pair.worker.outlet(&pair.name));
    wait_for(|| pair.server.outlet(WORKER));
    assert!(PortOffer::decode(&second.encode()[1..]).is_none() && PortOffer::decode(&[]).is_none());
}

#[test]
fn offers_that_nobody_takes_leave_room_for_others() {
    let pair = Pair::strangers();
    let offer = pair.server.offer_to(WORKER).unwrap();
    pair.worker.take(&pair.name, offer);
    wait_for(|| pair.server.outlet(WORKER));
    for number in 0..2 * MOST_PEERS {
        assert!(pair.server.offer_to(&format!("stranger {number}")).is_some());
    }
    assert!(pair.server.forget(WORKER), "it was not forgotten for them");
}

#[test]
fn nobody_is_let_in_after_the_end() {
    let pair = Pair::strangers();
    let offer = pair.server.offer_to(WORKER).unwrap();
    pair.server.close();
    wait_for(|| TcpStream::connect((HOST, offer.port)).is_err().then_some(()));
    assert!(pair.server.offer_to(WORKER).is_none());
}
