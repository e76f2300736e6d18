//! Attacks on a job that speaks TLS: the job makes its rounds meanwhile, and does not grow.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use kvstore::TLS_VARIABLE;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use super::attacker::{KEY, LIES, NAME, TLS, TO, call, ends, greeting};
use super::common::random::Random;
use super::hostile::{job, job_name, survives};
use super::job::{Job, LIMIT, Process, Turn, this_program};
use super::keys::{Keys, certified};

type Stream = StreamOwned<ClientConnection, TcpStream>;

/// Believes one authority, and shows a certificate of the same or another.
fn client(believes: &Keys, shows: Option<(&Keys, &str)>) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(believes.path("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    Arc::new(match shows {
        None => config.with_no_client_auth(),
        Some((keys, name)) => {
            let file = |kind: &str| keys.path(&format!("{name}.{kind}"));
            let chain = vec![CertificateDer::from_pem_file(file("pem")).unwrap()];
            let key = PrivateKeyDer::from_pem_file(file("key")).unwrap();
            config.with_client_auth_cert(chain, key).unwrap()
        }
    })
}

fn connection(config: &Arc<ClientConfig>) -> ClientConnection {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    ClientConnection::new(Arc::clone(config), name).unwrap()
}

/// A connection whose handshake is over on this side.
fn shake_hands(config: &Arc<ClientConfig>, to: &str) -> Option<Stream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_read_timeout(Some(LIMIT)).ok()?;
    stream.set_write_timeout(Some(LIMIT)).ok()?;
    let mut connection = connection(config);
    while connection.is_handshaking() {
        connection.complete_io(&mut stream).ok()?;
    }
    Some(StreamOwned::new(connection, stream))
}

/// The first words of a handshake.
fn client_hello(config: &Arc<ClientConfig>) -> Vec<u8> {
    let mut words = Vec::new();
    connection(config).write_tls(&mut words).unwrap();
    words
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
        // The engine forgets ten of them in a second, and fewer on a busy machine.
        for _ in 0..12 {
            let noise: Vec<u8> =
                (0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
            for to in at {
                // Nothing, half of a hello, a whole one and no more, another protocol, noise.
                for words in [&[], &hello[..hello.len() / 2], &hello, &greeting(), &noise] {
                    held.extend(call(to, words));
                }
            }
        }
        assert!(held.len() > 100, "{}", held.len());
        // Whoever says noise has to go at once.
        assert!(ends(held.swap_remove(4), LIMIT));
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
                    assert!(!matches!(stream.read(&mut [0; 64]), Ok(1..)));
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
        // Whoever does not say who it is has to go.
        let mut first = held.swap_remove(0);
        assert!(!matches!(first.read(&mut [0; 64]), Ok(1..)));
    });
}

/// How the engine speaks TLS with a certificate.
pub fn settings(keys: &Keys, name: &str) -> String {
    let file = |name: &str| keys.path(name).display().to_string();
    format!(
        "{{root_ca_certificate: {:?}, connect_certificate: {:?}, connect_private_key: {:?}, \
         enable_mtls: true}}",
        file("ca.pem"),
        file(&format!("{name}.pem")),
        file(&format!("{name}.key"))
    )
}

/// A process with the certificate of a worker calls `to`, and says something to whoever is at `place`.
fn attacks(keys: &Keys, job: &Job, (to, place): (&str, &str), lies: bool) {
    let mut command = this_program("attacker::plays");
    command
        .env(TLS_VARIABLE.0, TLS_VARIABLE.1)
        .env(TO, to)
        .env(KEY, format!("kvstore/-/{place}/worker/mallory"))
        .env(NAME, job_name(job))
        .env(TLS, settings(keys, "worker"));
    if lies {
        command.env(LIES, "yes");
    }
    let end = Process::start("attacker", command).end(LIMIT);
    assert!(end.said("done").is_some(), "{end:?}");
}

#[test]
fn lies_of_a_process_with_a_certificate_disturb_nobody() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-lies");
    let give = certified(&keys);
    survives("lies over TLS", &job(), give, |job, at| {
        for (to, place) in at.iter().zip(["scheduler", &at[1]]) {
            attacks(&keys, job, (to, place), true);
        }
    });
}

/// Passes the connection of a caller on to `to`; gives what the caller has said.
fn overhear(to: &str, call: impl FnOnce(&str)) -> Vec<u8> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let to = to.to_owned();
    let between = thread::spawn(move || {
        let ways = [listener.accept().unwrap().0, TcpStream::connect(to).unwrap()];
        ways.iter().for_each(|way| way.set_read_timeout(Some(LIMIT)).unwrap());
        let [mut caller, mut called] = ways;
        let back = (called.try_clone().unwrap(), caller.try_clone().unwrap());
        let answers = thread::spawn(move || {
            let (mut from, mut to) = back;
            let _ = io::copy(&mut from, &mut to);
        });
        let (mut said, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(count @ 1..) = caller.read(&mut piece) {
            said.extend_from_slice(&piece[..count]);
            called.write_all(&piece[..count]).unwrap();
        }
        let _ = called.shutdown(Shutdown::Both);
        answers.join().unwrap();
        said
    });
    call(&address);
    between.join().unwrap()
}

#[test]
fn what_was_overheard_is_of_no_use() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-replay");
    let give = certified(&keys);
    survives("replay", &job(), give, |job, at| {
        let said = overhear(&at[0], |to| attacks(&keys, job, (to, "scheduler"), false));
        assert!(said.len() > 1_000, "{}", said.len());
        for to in at {
            for end in [said.len(), said.len() / 2] {
                for _ in 0..2 {
                    // The other side may end it before all is said.
                    if let Some(stream) = call(to, &said[..end]) {
                        let _ = stream.shutdown(Shutdown::Write);
                        assert!(ends(stream, LIMIT));
                    }
                }
            }
        }
    });
}
