//! The buffered connections of rustls on the other side. They seal and open records by code of their own.

use std::io::{Read, Write};

use rustls::{ClientConnection, Connection, ServerConnection};

use super::super::sealer::PeerUpdate;
use super::{End, SUITES, TlsConnection, client, pattern, seal, server, server_of, unseal};
use crate::transport::tls::{Opener, Sealer};

/// Bytes that a peer has to send.
fn taken(peer: &mut Connection) -> Vec<u8> {
    let mut bytes = Vec::new();
    while peer.wants_write() {
        peer.write_tls(&mut bytes).unwrap();
    }
    bytes
}

/// Gives bytes to a peer; returns the application data in them.
fn give(peer: &mut Connection, mut bytes: &[u8]) -> Vec<u8> {
    let mut data = Vec::new();
    while !bytes.is_empty() {
        peer.read_tls(&mut bytes).unwrap();
        let state = peer.process_new_packets().unwrap();
        let mut part = vec![0; state.plaintext_bytes_to_read()];
        peer.reader().read_exact(&mut part).unwrap();
        data.append(&mut part);
    }
    data
}

fn shake_hands(mut ours: End, peer: &mut Connection) -> (Sealer, Opener) {
    ours.receive(&[]).unwrap();
    for _ in 0..5 {
        assert_eq!(give(peer, &ours.take()), b"");
        let bytes = taken(peer);
        ours.receive(&bytes).unwrap();
    }
    assert!(!ours.tls.is_handshaking() && !peer.is_handshaking());
    ours.tls.split().unwrap()
}

/// Our side as caller and as listener, with a peer of rustls and each cipher.
fn sides() -> Vec<(Sealer, Opener, Connection)> {
    let mut sides = Vec::new();
    for suite in SUITES {
        let server = server_of("scheduler", suite);
        let mut peer = Connection::from(ServerConnection::new(server.clone()).unwrap());
        let (sealer, opener) = shake_hands(End::caller("worker"), &mut peer);
        assert_eq!(peer.negotiated_cipher_suite(), Some(suite));
        sides.push((sealer, opener, peer));

        let host = "127.0.0.1".try_into().unwrap();
        let caller = ClientConnection::new(client("worker"), host).unwrap();
        let mut peer = Connection::from(caller);
        let ours = End::new(TlsConnection::listener(server).unwrap());
        let (sealer, opener) = shake_hands(ours, &mut peer);
        sides.push((sealer, opener, peer));
    }
    sides
}

#[test]
fn rustls_reads_our_records_and_we_read_its() {
    for (mut sealer, mut opener, mut peer) in sides() {
        peer.set_buffer_limit(None);
        for len in [1, 100, 16_383, 16_384, 16_385, 300_000] {
            let value = pattern(len);
            assert!(give(&mut peer, &seal(&mut sealer, &value)) == value, "{len} bytes to rustls");
            peer.writer().write_all(&value).unwrap();
            assert_eq!(unseal(&mut opener, &taken(&mut peer)), Ok((value, false)));
        }
    }
}

#[test]
fn key_updates_of_rustls_are_followed_and_answered() {
    for (mut sealer, mut opener, mut peer) in sides() {
        for round in 0..3_u8 {
            // It requests an update of our key too.
            peer.writer().write_all(b"before").unwrap();
            peer.refresh_traffic_keys().unwrap();
            peer.writer().write_all(b" and after").unwrap();
            let (plain, _) = unseal(&mut opener, &taken(&mut peer)).unwrap();
            assert_eq!(plain, b"before and after");
            let sealed = seal(&mut sealer, &[round]);
            // Two records: the update, and one byte.
            assert_eq!(sealed.len(), 27 + 23);
            assert_eq!(give(&mut peer, &sealed), [round]);
        }
    }
}

#[test]
fn rustls_follows_and_answers_our_key_updates() {
    for (mut sealer, mut opener, mut peer) in sides() {
        sealer.limit_records(7);
        for round in 0..30_u8 {
            assert_eq!(give(&mut peer, &seal(&mut sealer, &[round])), [round]);
        }
        let mut sealed = Vec::new();
        sealer.update(PeerUpdate::Requested, &mut sealed).unwrap();
        assert_eq!(give(&mut peer, &sealed), b"");
        peer.writer().write_all(b"answer").unwrap();
        let answer = taken(&mut peer);
        assert_eq!(answer.len(), 27 + 28);
        assert_eq!(unseal(&mut opener, &answer), Ok((b"answer".to_vec(), false)));
        assert_eq!(give(&mut peer, &seal(&mut sealer, b"last")), b"last");
    }
}

#[test]
fn ends_and_alerts_are_understood_by_rustls_and_by_us() {
    for (mut sealer, mut opener, mut peer) in sides() {
        let mut sealed = seal(&mut sealer, b"last");
        sealer.close(&mut sealed);
        peer.read_tls(&mut &*sealed).unwrap();
        assert!(peer.process_new_packets().unwrap().peer_has_closed());
        // A closed half does not close the other.
        peer.writer().write_all(b"still").unwrap();
        peer.send_close_notify();
        assert_eq!(unseal(&mut opener, &taken(&mut peer)), Ok((b"still".to_vec(), true)));
    }
    for (mut sealer, mut opener, mut peer) in sides() {
        let mut sealed = seal(&mut sealer, b"altered");
        sealed[8] ^= 1;
        peer.read_tls(&mut &*sealed).unwrap();
        assert!(peer.process_new_packets().is_err());
        let bad_tag = super::TlsError::Alert(rustls::AlertDescription::BadRecordMac);
        assert_eq!(unseal(&mut opener, &taken(&mut peer)), Err(bad_tag));
    }
}

#[test]
fn tickets_of_a_listener_with_sessions_are_dropped() {
    let mut config = rustls::ServerConfig::clone(&server("scheduler"));
    config.send_tls13_tickets = 4;
    config.session_storage = rustls::server::ServerSessionMemoryCache::new(32);
    let mut peer = Connection::from(ServerConnection::new(config.into()).unwrap());
    let (_, mut opener) = shake_hands(End::caller("worker"), &mut peer);
    peer.writer().write_all(b"data").unwrap();
    assert_eq!(unseal(&mut opener, &taken(&mut peer)), Ok((b"data".to_vec(), false)));
}

#[test]
fn our_listener_sends_no_tickets_and_our_caller_resumes_no_session() {
    let config = client("worker");
    for _ in 0..2 {
        let host = "127.0.0.1".try_into().unwrap();
        let mut peer = Connection::from(ClientConnection::new(config.clone(), host).unwrap());
        shake_hands(End::listener("scheduler"), &mut peer);
        assert_eq!(peer.handshake_kind(), Some(rustls::HandshakeKind::Full));
        let Connection::Client(peer) = peer else { panic!("a listener") };
        assert_eq!(peer.tls13_tickets_received(), 0);
    }
    let mut listening = rustls::ServerConfig::clone(&server("scheduler"));
    listening.send_tls13_tickets = 2;
    listening.session_storage = rustls::server::ServerSessionMemoryCache::new(32);
    let listening = std::sync::Arc::new(listening);
    for _ in 0..2 {
        let mut peer = Connection::from(ServerConnection::new(listening.clone()).unwrap());
        let ours = TlsConnection::caller(config.clone(), "127.0.0.1").unwrap();
        shake_hands(End::new(ours), &mut peer);
        assert_eq!(peer.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}
