//! Attacks on a job that speaks TLS: the job makes its rounds meanwhile, and does not grow.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::ClientConfig;

use super::attacker::{Frame, WORKER, call, claim_much, ends, greeting, lie, overhear, replay};
use super::common::random::Random;
use super::greeting::{NOT_ALLOWED, WANTS_TLS};
use super::hostile::{job, job_name, survives};
use super::job::{LIMIT, Turn};
use super::keys::{Keys, certified};
use super::program::ROUNDS;
use super::session::{Login, Session, client, client_connection, shake_hands};

/// The first words of a handshake.
pub fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut words = Vec::new();
    client_connection(config).write_tls(&mut words).unwrap();
    words
}

/// Whether a read has found the end of a connection, and neither data nor the end of its timeout.
fn is_ended(read: &io::Result<usize>) -> bool {
    match read {
        Ok(count) => *count == 0,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn handshakes_that_do_not_end_disturb_nobody() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-half");
    let give = certified(&keys);
    survives("half a handshake", &job(), give, |_, at| {
        let hello = client_hello(&client(&keys, None));
        let mut random = Random::new(11);
        let mut held: Vec<TcpStream> = Vec::new();
        for _ in 0..40 {
            let noise: Vec<u8> =
                (0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
            for to in at {
                // Nothing, half of a hello, a whole one and no more, a greeting without TLS, noise.
                for words in [&[], &hello[..hello.len() / 2], &hello, &greeting(), &noise] {
                    held.extend(call(to, words));
                }
            }
        }
        assert!(held.len() > 300, "{}", held.len());
        // A process that does not say who it is has to go.
        let silent = [&[][..], &hello[..hello.len() / 2], &hello, &[0x5a; 99]];
        for stream in silent.map(|words| call(&at[0], words).unwrap()) {
            assert!(ends(stream, LIMIT));
        }
    });
}

#[test]
fn strangers_with_a_certificate_disturb_nobody() {
    let _turn = Turn::take();
    let (keys, others) = (Keys::new("tls-known"), Keys::new("tls-strange"));
    let give = certified(&keys);
    others.make(&["worker"]);
    survives("another authority", &job(), give, |_, at| {
        for config in [client(&keys, Some((&others, "worker"))), client(&keys, None)] {
            for _ in 0..5 {
                for to in at {
                    // It learns only afterwards that it is not believed.
                    let mut stream = shake_hands(&config, to).unwrap();
                    let _ = stream.write_all(&greeting());
                    assert!(is_ended(&stream.read(&mut [0; 64])));
                }
            }
        }
    });
}

#[test]
fn noise_behind_a_handshake_disturbs_nobody() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-noise");
    let give = certified(&keys);
    survives("noise over TLS", &job(), give, |_, at| {
        let config = client(&keys, Some((&keys, "worker")));
        let mut held = Vec::new();
        for _ in 0..20 {
            for to in at {
                for words in [&[][..], &greeting()[..5], &greeting(), &[0xff, 0xff, 1], &[0x5a; 99]]
                {
                    let mut stream = shake_hands(&config, to).unwrap();
                    stream.write_all(words).unwrap();
                    held.push(stream);
                }
            }
        }
        // A process that does not say who it is has to go, though its certificate is good.
        let mut first = held.swap_remove(0);
        assert!(is_ended(&first.read(&mut [0; 64])));
    });
}

/// A process with the certificate of a worker calls under other identities, and without TLS.
#[test]
fn identities_that_are_not_those_of_the_certificate_are_refused() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-names");
    let give = certified(&keys);
    survives("other identities", &job(), give, |_, at| {
        let own = Login::certificate(&keys, "worker");
        for to in at {
            for (identity, name) in [
                ("", "mallory"),
                ("worker.0", "mallory"),
                ("reader", "mallory"),
                ("server", "127.0.0.1:1"),
                ("server.0", "127.0.0.1:1"),
                ("scheduler", "127.0.0.1:1"),
            ] {
                let login = Login { identity: identity.into(), ..own.clone() };
                let refusal = Session::open(to, name, &login).err().unwrap();
                assert_eq!(refusal.status(), Some(NOT_ALLOWED), "{identity}: {refusal:?}");
            }
            let refusal = Session::open(to, "127.0.0.1:1", &own).err().unwrap();
            assert!(refusal.status().is_some_and(|it| it >= NOT_ALLOWED), "{refusal:?}");
            let refusal = Session::open(to, "mallory", &Login::default()).err().unwrap();
            assert_eq!(refusal.status(), Some(WANTS_TLS), "{refusal:?}");
            Session::open(to, "mallory", &own).unwrap().close();
        }
    });
}

#[test]
fn lies_of_a_process_with_a_certificate_disturb_nobody() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-lies");
    let give = certified(&keys);
    survives("lies over TLS", &job(), give, |job, at| {
        let login = Login::certificate(&keys, "worker");
        for to in at {
            let mut session = Session::open(to, "mallory", &login).unwrap();
            lie(&mut session, &job_name(job));
            session.close();
            drop(claim_much(to, &login));
        }
    });
}

#[test]
fn what_was_overheard_is_of_no_use() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-replay");
    let give = certified(&keys);
    survives("replay", &job().told(ROUNDS, 800), give, |job, at| {
        let login = Login::certificate(&keys, "worker");
        let said = overhear(&at[0], |to| {
            let mut session = Session::open(to, "mallory", &login).unwrap();
            let hello = Frame::hello(&job_name(job), WORKER, 0, (2, 1), "worker@mallory");
            session.put(&hello.bytes()).unwrap();
            session.close();
        });
        assert!(said.len() > 1_000, "{}", said.len());
        for to in at {
            for end in [said.len(), said.len() / 2] {
                for _ in 0..2 {
                    assert!(replay(to, &said[..end]).is_some(), "no end");
                }
            }
        }
    });
}
