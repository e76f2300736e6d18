//! Several connections of a worker with a server, as over a long link.

use super::super::Lanes;
use super::{Pair, content, from, open, place, send};
use crate::transport::mail::{Heard, wait_for};
use crate::transport::{Transport, TransportConfig};

const CONNECTIONS: u8 = 8;
/// All but that over which only the peer sends.
const SENDING: usize = 7;

/// A process with some time to take bytes, in which none may be taken while a busy machine makes messages.
fn several(listen: Option<&str>) -> TransportConfig {
    TransportConfig { connections: Some(CONNECTIONS), lease_ms: 60_000, ..place(listen) }
}

fn connected() -> Pair {
    let pair = Pair::between(open(&several(Some("127.0.0.1:0"))), open(&several(None)));
    wait_for(|| (lanes(&pair).iter().all(|lanes| lanes.len() == SENDING)).then_some(()));
    pair
}

/// The connections over which the worker sends, and the server.
fn lanes(pair: &Pair) -> [Lanes; 2] {
    let lanes = |at: &super::TcpTransport, to: &super::TcpTransport| {
        at.endpoint.incoming.peers.lanes(to.address())
    };
    [lanes(&pair.worker, &pair.server), lanes(&pair.server, &pair.worker)]
}

#[test]
fn large_messages_take_turns_on_all_connections_and_all_arrive() {
    let mut pair = connected();
    // No process reads, so a connection that is not used has no byte to send.
    let gates = [&pair.at_server, &pair.at_worker].map(|mail| mail.gate.lock().unwrap());
    let count = 100;
    for number in 0..count {
        send(&mut pair.forth, &content(number, 1_000_000), &[], false);
        send(&mut pair.back, &content(number, 1_000_000), &[], false);
    }
    for lanes in lanes(&pair) {
        assert!(lanes.iter().all(|lane| lane.owes()), "each has its share");
    }
    drop(gates);
    for (mail, name) in
        [(&pair.at_server, pair.worker.address()), (&pair.at_worker, pair.server.address())]
    {
        let heard = mail.wait(count);
        for number in 0..count {
            assert!(heard.contains(&from(name, content(number, 1_000_000))), "{number}");
        }
    }
}

#[test]
fn each_lost_connection_is_made_again_and_no_process_counts_as_ended() {
    let mut pair = connected();
    let (worker, server) = (pair.worker.address().to_owned(), pair.server.address().to_owned());
    for turn in 0..2 * SENDING {
        let lost = lanes(&pair)[turn % 2][turn / 2].clone();
        lost.end();
        let is_whole = || lanes(&pair).iter().all(|it| it.len() == SENDING);
        wait_for(|| is_whole().then_some(()));
        let number = u8::try_from(turn).unwrap();
        let (forth, back) = (from(&worker, vec![number]), from(&server, vec![number]));
        wait_for(|| {
            send(&mut pair.forth, &[number], &[], true);
            send(&mut pair.back, &[number], &[], true);
            (pair.at_server.has(&forth) && pair.at_worker.has(&back)).then_some(())
        });
    }
    assert!(pair.at_worker.reconnected() > 0 && pair.at_server.reconnected() > 0);
    for mail in [&pair.at_worker, &pair.at_server] {
        assert!(!mail.heard.lock().unwrap().iter().any(|it| matches!(it, Heard::Down(_))));
    }
}
