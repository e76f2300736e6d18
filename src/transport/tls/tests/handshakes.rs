//! Handshakes of both of our sides: identities, pieces, and what users are told of failures.

use std::sync::Arc;

use rustls::ClientConfig;

use super::{End, SUITES, TlsConnection, TlsError, client, exchange, open_of, pattern, tls};
use crate::credentials::Identity;

/// What a caller learns from a listener that rejects it after the caller's end of the handshake, or
/// before.
fn failure(caller: &mut End, listener: &mut End) -> (Option<TlsError>, Option<TlsError>) {
    let (mut of_caller, mut of_listener) = (None, None);
    of_caller = of_caller.or(caller.receive(&[]).err());
    for _ in 0..5 {
        let bytes = caller.take();
        of_listener = of_listener.or(listener.receive(&bytes).err());
        let bytes = listener.take();
        of_caller = of_caller.or(caller.receive(&bytes).err());
    }
    (of_caller, of_listener)
}

fn reason(caller: &str, listener: &str) -> String {
    let (mut caller, mut listener) = (End::caller(caller), End::listener(listener));
    let (of_caller, of_listener) = failure(&mut caller, &mut listener);
    assert!(of_caller.is_some() && of_listener.is_some(), "{of_caller:?}, {of_listener:?}");
    of_caller.and_then(|error| error.reason("10.0.0.1:7")).expect("a reason")
}

#[test]
fn both_ends_know_the_identity_of_the_other() {
    for suite in SUITES {
        let (caller, listener) = open_of(suite);
        assert_eq!(caller.tls.peer(), Some(Identity::SCHEDULER));
        assert_eq!(listener.tls.peer(), Identity::parse("worker.3"));
        assert!(!caller.tls.is_handshaking() && !listener.tls.is_handshaking());
        assert!(caller.received.is_empty() && listener.received.is_empty());
    }
    let (mut caller, mut listener) = (End::caller("nameless"), End::listener("server"));
    exchange(&mut caller, &mut listener, usize::MAX).unwrap();
    assert_eq!(caller.tls.peer(), Identity::parse("server.1"));
    assert_eq!(listener.tls.peer(), None);
}

#[test]
fn a_handshake_in_pieces_of_any_size_ends() {
    for piece in [1, 2, 5, 100, 1000] {
        let (mut caller, mut listener) = (End::caller("worker"), End::listener("scheduler"));
        exchange(&mut caller, &mut listener, piece).unwrap();
        caller.tls.send(b"question", &mut caller.out).unwrap();
        exchange(&mut caller, &mut listener, piece).unwrap();
        assert_eq!(listener.plain, b"question");
        listener.tls.send(b"answer", &mut listener.out).unwrap();
        exchange(&mut caller, &mut listener, piece).unwrap();
        assert_eq!(caller.plain, b"answer");
    }
}

#[test]
fn handshake_messages_that_span_records_are_read() {
    for (size, piece) in [(32, usize::MAX), (32, 1), (77, 10), (400, 100)] {
        let mut config = ClientConfig::clone(&client("worker"));
        config.max_fragment_size = Some(size);
        let tls = TlsConnection::caller(config.into(), "127.0.0.1").unwrap();
        let mut caller = End::new(tls);
        let mut config = rustls::ServerConfig::clone(&super::server("scheduler"));
        config.max_fragment_size = Some(size);
        let mut listener = End::new(TlsConnection::listener(config.into()).unwrap());
        exchange(&mut caller, &mut listener, piece).unwrap();
        caller.tls.send(b"question", &mut caller.out).unwrap();
        exchange(&mut caller, &mut listener, piece).unwrap();
        assert_eq!(listener.plain, b"question");
    }
}

#[test]
fn what_arrives_with_the_end_of_the_handshake_is_for_the_application() {
    let (mut caller, mut listener) = (End::caller("worker"), End::listener("scheduler"));
    caller.receive(&[]).unwrap();
    listener.receive(&caller.take()).unwrap();
    caller.receive(&listener.take()).unwrap();
    assert!(!caller.tls.is_handshaking() && listener.tls.is_handshaking());
    // The rest of its handshake, data, and the beginning of a record, in one piece.
    caller.tls.send(b"first", &mut caller.out).unwrap();
    let mut bytes = caller.take();
    caller.tls.send(b"second", &mut caller.out).unwrap();
    let second = caller.take();
    bytes.extend_from_slice(&second[..9]);
    listener.receive(&bytes).unwrap();
    assert_eq!((&*listener.plain, &*listener.received), (&b"first"[..], &second[..9]));
    let (_, mut opener) = listener.tls.split().unwrap();
    listener.received.extend_from_slice(&second[9..]);
    opener.open(&mut listener.received, &mut listener.plain).unwrap();
    assert_eq!(listener.plain, b"firstsecond");
}

#[test]
fn nothing_is_sent_or_split_before_the_end_of_the_handshake() {
    let mut caller = End::caller("worker");
    caller.receive(&[]).unwrap();
    assert!(caller.tls.is_handshaking() && caller.tls.peer().is_none());
    let hello = caller.out.len();
    assert!(matches!(caller.tls.send(b"early", &mut caller.out), Err(TlsError::Misuse(_))));
    assert_eq!(caller.out.len(), hello);
    assert!(matches!(caller.tls.split().map(|_| ()), Err(TlsError::Misuse(_))));
}

#[test]
fn a_close_during_the_first_data_is_seen_behind_it() {
    let (mut caller, mut listener) = open_of(SUITES[0]);
    listener.tls.send(b"refused", &mut listener.out).unwrap();
    let (mut sealer, _) = listener.tls.split().unwrap();
    sealer.close(&mut listener.out);
    let bytes = std::mem::take(&mut listener.out);
    assert!(!caller.tls.is_closed());
    caller.receive(&bytes).unwrap();
    assert!(caller.tls.is_closed());
    assert_eq!(caller.plain, b"refused");
}

#[test]
fn hosts_are_names_or_addresses_that_the_certificate_has() {
    for host in ["localhost", "127.0.0.1", "::1", "[::1]"] {
        let tls = TlsConnection::caller(client("worker"), host).unwrap();
        let (mut caller, mut listener) = (End::new(tls), End::listener("server"));
        exchange(&mut caller, &mut listener, usize::MAX).unwrap();
    }
    for host in ["127.0.0.2", "[::2]", "example.org"] {
        let tls = TlsConnection::caller(client("worker"), host).unwrap();
        let (mut caller, mut listener) = (End::new(tls), End::listener("server"));
        assert!(exchange(&mut caller, &mut listener, usize::MAX).is_err(), "{host}");
    }
    for host in ["", "a b", "[::1", "[]"] {
        assert!(TlsConnection::caller(client("worker"), host).is_err(), "{host:?}");
    }
}

#[test]
fn names_are_not_checked_if_so_configured() {
    let mut any = tls("worker");
    any.verify_names = false;
    let tls = TlsConnection::caller(any.client().unwrap(), "127.0.0.1").unwrap();
    let (mut caller, mut listener) = (End::new(tls), End::listener("elsewhere"));
    exchange(&mut caller, &mut listener, usize::MAX).unwrap();
}

#[test]
fn the_flaw_of_a_listeners_certificate_is_named() {
    let said = |listener| reason("worker", listener);
    let begin = "the certificate of 10.0.0.1:7 is not good: ";
    let end = "it is of an authority that is not in tls_ca_file";
    assert_eq!(said("stranger"), format!("{begin}{end}"));
    assert_eq!(said("expired-server"), format!("{begin}it has expired"));
    let end = "it does not name this address; make one with --host, or set tls_verify_names=no";
    assert_eq!(said("elsewhere"), format!("{begin}{end}"));
    assert_eq!(said("worker"), format!("{begin}it is for callers only"));
}

#[test]
fn the_flaw_of_the_own_certificate_is_named_when_the_listener_tells_it() {
    let said = |caller| reason(caller, "scheduler");
    let begin = "10.0.0.1:7 does not take the certificate of this process: ";
    let end = "it is of an authority that is not in its tls_ca_file";
    // A caller of another authority still trusts the listener's.
    assert_eq!(said("stranger"), format!("{begin}{end}"));
    assert_eq!(said("expired-worker"), format!("{begin}it has expired"));
    assert_eq!(said("listener-only"), format!("{begin}it is not for callers"));
}

#[test]
fn a_caller_without_a_certificate_is_rejected() {
    let mut config = ClientConfig::clone(&client("worker"));
    config.client_auth_cert_resolver = Arc::new(NoCertificate);
    let tls = TlsConnection::caller(Arc::new(config), "127.0.0.1").unwrap();
    let (mut caller, mut listener) = (End::new(tls), End::listener("scheduler"));
    let (of_caller, of_listener) = failure(&mut caller, &mut listener);
    assert!(of_listener.is_some());
    let said = of_caller.and_then(|error| error.reason("[::1]:7"));
    let expected = "[::1]:7 does not take the certificate of this process: there is none";
    assert_eq!(said.as_deref(), Some(expected));
}

#[derive(Debug)]
struct NoCertificate;

impl rustls::client::ResolvesClientCert for NoCertificate {
    fn resolve(
        &self,
        _: &[&[u8]],
        _: &[rustls::SignatureScheme],
    ) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }

    fn has_certs(&self) -> bool {
        false
    }
}

#[test]
fn a_listener_without_tls_is_recognised() {
    for answer in [&b"KVSL\x01\x00\x04\x00\x08\x00"[..], b"HTTP/1.1 400 Bad Request\r\n\r\n"] {
        let mut caller = End::caller("worker");
        caller.receive(&[]).unwrap();
        let error = caller.receive(answer).unwrap_err();
        assert_eq!(error.reason("a:1").as_deref(), Some("a:1 does not speak TLS"));
        assert_eq!(caller.receive(&[]), Err(error));
    }
}

/// Numbers of a seed, each below a bound.
fn numbers(seed: usize) -> impl FnMut(usize) -> usize {
    let mut bytes = pattern(8 * (seed + 1) * 50).split_off(8 * seed * 50).into_iter();
    move |bound| {
        let number = [0; 3].map(|_| usize::from(bytes.next().expect("enough numbers")));
        (number[0] << 16 | number[1] << 8 | number[2]) % bound
    }
}

#[test]
fn altered_handshakes_end_in_an_error_that_stays_and_without_a_panic() {
    let (mut failed, mut unharmed) = (0, 0);
    for seed in 0..200 {
        let mut below = numbers(seed);
        let mut ends = [End::caller("worker"), End::listener("scheduler")];
        ends[0].receive(&[]).unwrap();
        let target = below(3);
        let mut error = None;
        for flight in 0..3 {
            let mut bytes = ends[flight % 2].take();
            if flight == target && !bytes.is_empty() {
                let at = below(bytes.len());
                match below(5) {
                    0 => bytes.truncate(at),
                    1 => drop(bytes.splice(at..at, pattern(below(50)))),
                    2 => drop(bytes.drain(at..bytes.len().min(at + 1 + below(20)))),
                    3 => bytes = pattern(bytes.len()),
                    _ => bytes[at] ^= 1 << below(8),
                }
            }
            for piece in bytes.chunks(1 + below(1500)) {
                let end = &mut ends[(flight + 1) % 2];
                let result = end.receive(piece);
                let is_same = error.is_none() || error == result.clone().err();
                assert!(is_same || flight > target, "seed {seed}: {error:?}, then {result:?}");
                error = result.err().or(error);
            }
        }
        let is_open = ends.iter().all(|end| !end.tls.is_handshaking() && end.tls.peer().is_some());
        failed += usize::from(error.is_some());
        unharmed += usize::from(is_open && error.is_none());
    }
    // Versions in headers are ignored, and cut flights wait for their rest.
    assert!(failed > 100 && unharmed < 20, "{failed} failed, {unharmed} did not");
}

#[test]
fn a_failed_connection_stays_failed_and_has_an_alert_to_send() {
    let (mut caller, mut listener) = (End::caller("worker"), End::listener("worker"));
    caller.receive(&[]).unwrap();
    listener.receive(&caller.take()).unwrap();
    let error = caller.receive(&listener.take()).unwrap_err();
    let alert = caller.take();
    assert!(!alert.is_empty());
    assert!(matches!(listener.receive(&alert), Err(TlsError::Handshake(_))));
    assert_eq!(caller.receive(&[]), Err(error.clone()));
    assert_eq!(caller.tls.send(b"more", &mut caller.out), Err(error.clone()));
    assert_eq!(caller.tls.split().map(|_| ()), Err(error));
}

#[test]
fn only_version_1_3_is_spoken() {
    let hello_of_1_2 = {
        let mut hello = vec![22, 3, 1, 0, 47, 1, 0, 0, 43, 3, 3];
        hello.extend([7; 32]);
        // No session, TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, no compression, no extensions.
        hello.extend([0, 0, 2, 0xc0, 0x2b, 1, 0, 0, 0]);
        hello[4] = u8::try_from(hello.len() - 5).unwrap();
        hello[8] = u8::try_from(hello.len() - 9).unwrap();
        hello
    };
    let mut listener = End::listener("scheduler");
    assert!(listener.receive(&hello_of_1_2).is_err());
    assert_eq!(listener.out[..2], [21, 3], "an alert");
}
