//! Requirements on every transport, tested on the real one over the loopback interface.

use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use super::mail::wait_for;
use super::{BlockingSender, DialPolicy, Inbox, Piece, SendMode, TransportConfig, open};

pub(super) fn place(listen: Option<&str>, calls: DialPolicy) -> TransportConfig {
    let listen = listen.map(Into::into);
    let root = "127.0.0.1:1".into();
    TransportConfig {
        listen,
        advertised: None,
        calls,
        root,
        is_scheduler: false,
        lease_ms: 10_000,
        grace_ms: 200,
        shm: true,
        transport: super::AUTO.into(),
        connections: None,
        most_connections: 10,
        most_threads: crate::sys::processors(),
        credentials: None,
    }
}

fn inbox(mail: &Arc<Mail>) -> Arc<dyn Inbox> {
    Arc::clone(mail) as Arc<dyn Inbox>
}

fn send(line: &mut BlockingSender, bytes: &[u8]) {
    let mut parcel = line.parcel(bytes.len(), 0);
    parcel.copy(bytes);
    line.send(parcel, Instant::now() + Duration::from_secs(20));
}

/// Sender and bytes of a message.
type Letter = (String, Vec<u8>);

#[derive(Default)]
struct Mail {
    state: Mutex<(Vec<Letter>, Vec<String>)>,
    changed: Condvar,
}

impl Inbox for Mail {
    fn arrived(&self, from: &str, len: usize, pieces: &mut dyn Iterator<Item = Piece<'_>>) {
        let bytes = pieces.flat_map(Piece::to_vec).collect::<Vec<_>>();
        assert_eq!(bytes.len(), len);
        self.state.lock().unwrap().0.push((from.into(), bytes));
        self.changed.notify_all();
    }

    fn down(&self, address: &str) {
        self.state.lock().unwrap().1.push(address.into());
        self.changed.notify_all();
    }
}

impl Mail {
    fn wait(&self, mut ready: impl FnMut(&[Letter], &[String]) -> bool) {
        let end = Instant::now() + Duration::from_secs(20);
        let mut state = self.state.lock().unwrap();
        while !ready(&state.0, &state.1) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "nothing came");
            state = self.changed.wait_timeout(state, left).unwrap().0;
        }
    }
}

#[test]
fn bytes_go_both_ways_and_an_end_is_seen() {
    let (server_mail, worker_mail) = (Arc::new(Mail::default()), Arc::new(Mail::default()));
    let server =
        open(&place(Some("127.0.0.1:0"), DialPolicy::Nobody), &inbox(&server_mail)).unwrap();
    let worker = open(&place(None, DialPolicy::Everybody), &inbox(&worker_mail)).unwrap();

    let large: Vec<u8> = (0..251).cycle().take(3_000_000).collect();
    let mut forth = BlockingSender::new(&*worker, server.address());
    send(&mut forth, &[1, 2, 3]);
    send(&mut forth, &large);
    server_mail.wait(|mail, _| mail.len() == 2);
    let mail = server_mail.state.lock().unwrap().0.clone();
    assert_eq!(mail[0], (worker.address().to_string(), vec![1, 2, 3]));
    assert!(mail[1].1 == large);

    let mut back = BlockingSender::new(&*server, worker.address());
    send(&mut back, &large);
    worker_mail.wait(|mail, _| mail.len() == 1);
    assert!(worker_mail.state.lock().unwrap().0[0].1 == large);

    let name = worker.address().to_string();
    worker.close();
    server_mail.wait(|_, down| down.contains(&name));
    server.close();
}

#[test]
fn what_a_parcel_has_borrowed_stands_where_it_was_put() {
    for shm in [false, true] {
        let mail = Arc::new(Mail::default());
        let listens = TransportConfig { shm, ..place(Some("127.0.0.1:0"), DialPolicy::Nobody) };
        let calls = TransportConfig { shm, ..place(None, DialPolicy::Everybody) };
        let server = open(&listens, &inbox(&mail)).unwrap();
        let worker = open(&calls, &inbox(&Arc::default())).unwrap();
        let mut line = BlockingSender::new(&*worker, server.address());
        // The receiver maps a ring only after its offer.
        send(&mut line, &[0]);
        mail.wait(|mail, _| mail.len() == 1);
        if shm {
            wait_for(|| (line.room_for(1) == SendMode::Memory).then_some(()));
        }
        let parts: Vec<Vec<u8>> = [3_u8, 0, 5, 7, 9]
            .map(|seed| (0..251).cycle().skip(seed.into()).take(usize::from(seed) << 15).collect())
            .into();
        let lent = |at: usize| at % 2 == 1 || at == 4;
        let length = |which: &dyn Fn(usize) -> bool| -> usize {
            let parts = parts.iter().enumerate().filter(|(at, _)| which(*at));
            parts.map(|(_, part)| part.len()).sum()
        };
        let mut parcel = line.parcel(length(&|_| true), length(&lent));
        for (at, part) in parts.iter().enumerate() {
            if parcel.borrows() && lent(at) {
                parcel.lend(part.clone().into());
            } else {
                parcel.copy(part);
            }
        }
        line.send(parcel, Instant::now() + Duration::from_secs(20));
        mail.wait(|mail, _| mail.len() == 2);
        assert!(mail.state.lock().unwrap().0[1].1 == parts.concat(), "shared memory: {shm}");
        worker.close();
        server.close();
    }
}

#[test]
fn a_transport_of_the_table_carries_what_has_room_and_the_connection_all_else() {
    let mail = Arc::new(Mail::default());
    let of = |place| TransportConfig { transport: "memory".into(), ..place };
    let listens = of(place(Some("127.0.0.1:0"), DialPolicy::Nobody));
    let server = open(&listens, &inbox(&mail)).unwrap();
    let worker = open(&of(place(None, DialPolicy::Everybody)), &inbox(&Arc::default())).unwrap();
    let mut line = BlockingSender::new(&*worker, server.address());
    let used = |line: &mut BlockingSender, len: usize| {
        let mut parcel = line.parcel(len, 0);
        let row = parcel.row;
        parcel.copy(&vec![7; len]);
        line.send(parcel, Instant::now() + Duration::from_secs(20));
        row
    };
    assert_eq!(used(&mut line, 10), None, "its offer travels over the connection");
    let choice =
        |network: &dyn super::Transport, to: &str| network.choices(&mut 0).unwrap()[to].clone();
    let pending = choice(&*worker, server.address());
    assert_eq!(pending.transport, "tcp");
    let why = [
        ("memory", "the peer has not accepted it"),
        ("shm", "transport=memory"),
        ("ucx", "transport=memory"),
    ];
    assert!(pending.others.iter().map(|(name, why)| (*name, &**why)).eq(why), "{pending:?}");
    mail.wait(|mail, _| mail.len() == 1);
    assert_eq!(used(&mut line, 20), Some(0));
    assert_eq!(used(&mut line, 2 << 20), None);
    assert_eq!(used(&mut line, 30), Some(0));
    mail.wait(|mail, _| mail.len() == 4);
    let name = worker.address().to_owned();
    assert!(mail.state.lock().unwrap().0.iter().all(|(from, _)| *from == name));
    let open = choice(&*worker, server.address());
    assert_eq!((open.transport, &open.others[..]), ("memory", &[][..]));
    worker.close();
    mail.wait(|_, down| down.contains(&name));
    server.close();
}

#[test]
fn a_port_in_use_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let error =
        open(&place(Some(&address), DialPolicy::Nobody), &inbox(&Arc::default())).err().unwrap();
    assert_eq!(error.kind(), crate::ErrorKind::Network);
    assert!(error.message().contains(&address), "{error}");
}
