//! Processes that listen at the address of a scheduler and are none: a worker that has a credential finds
//! out, and sends them nothing.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};

use super::greeting::{Answer, CALLER, Call, GO_ON, LISTENER, derived, proof};
use super::job::{End, Job, LIMIT, soon};
use super::keys::Keys;

/// How long a caller may take to send something.
const PATIENCE: Duration = Duration::from_secs(5);

/// Both sides of a greeting: the Call, the Answer to it, and the Proof of the caller.
struct Heard {
    call: Vec<u8>,
    answer: Vec<u8>,
    proof: [u8; 32],
}

/// Makes the Verdict of a listener.
type SayVerdict<'a> = &'a dyn Fn(&Heard) -> Vec<u8>;

/// What a listener says: its Answer, and its Verdict if it wants a token.
struct Says<'a> {
    answer: Answer,
    verdict: SayVerdict<'a>,
}

/// Greets a caller, and gives how many bytes it sends afterwards, at most one.
fn greet(stream: &mut (impl Read + Write), says: &Says<'_>) -> io::Result<usize> {
    let (_, call) = Call::receive(stream)?;
    let answer = says.answer.bytes();
    stream.write_all(&answer)?;
    stream.flush()?;
    if says.answer.wants_token {
        let mut proof = [0; 32];
        stream.read_exact(&mut proof)?;
        stream.write_all(&(says.verdict)(&Heard { call, answer, proof }))?;
        stream.flush()?;
    }
    stream.read(&mut [0; 1])
}

/// How a worker fared with a listener: how many bytes it has sent behind each greeting, and how it ended.
/// One that sends something is not waited for.
struct Meeting {
    sent: Vec<io::Result<usize>>,
    end: Option<End>,
}

/// A worker calls a listener, which greets every connection.
fn meet(job: &Job, listen: impl Fn(TcpStream) -> io::Result<usize>) -> Meeting {
    let listener = TcpListener::bind(&job.root).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut worker = job.start_worker(0);
    let mut sent = Vec::new();
    let ended = soon(LIMIT, || {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false).unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            sent.push(listen(stream));
        }
        matches!(sent.last(), Some(Ok(1..))) || worker.has_ended()
    });
    assert!(ended, "the worker does not end: {sent:?}");
    let end = worker.has_ended().then(|| worker.end(LIMIT));
    Meeting { sent, end }
}

fn job() -> Job {
    Job::new("train", 1, 1).with("start_timeout_ms", 3_000)
}

impl Meeting {
    /// The worker speaks to the listener.
    fn is_accepted(&self) {
        assert!(matches!(self.sent.last(), Some(Ok(1))), "{:?}, {:?}", self.sent, self.end);
    }

    /// The worker has sent nothing behind a greeting, and fails because the listener is refused.
    fn is_refused(&self, case: &str) {
        let timed_out = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
        };
        assert!(!self.sent.is_empty(), "{case}: no connection");
        for sent in &self.sent {
            assert!(!matches!(sent, Ok(1..)), "{case}: it has sent something");
            assert!(!matches!(sent, Err(error) if timed_out(error)), "{case}: it has not ended it");
        }
        let end = self.end.as_ref().expect("an end");
        assert!(end.text().contains("KV_ERR_REFUSED"), "{case}: {end:?}");
    }
}

#[test]
fn a_listener_that_takes_any_token_and_has_none_is_refused() {
    let keys = Keys::new("listener-token");
    keys.make(&["token", "--for", "worker", "--rank", "0"]);
    let password = keys.password("worker.0");
    let verdict = |proof: [u8; 32]| [&[GO_ON][..], &proof].concat();
    let right = |heard: &Heard| verdict(proof(&password, LISTENER, &heard.call, &heard.answer));
    let meets = |answer: Answer, say: SayVerdict<'_>| {
        let says = Says { answer, verdict: say };
        meet(&keys.tokened(&job(), "worker.0"), |mut stream| greet(&mut stream, &says))
    };
    let scheduler = || Answer::new("scheduler", true);
    // One that has the token is spoken to.
    meets(scheduler(), &right).is_accepted();
    let guessed = derived("a token of another job", "worker.0");
    let wrong: [(&str, SayVerdict<'_>); 4] = [
        ("zeros", &|_| verdict([0; 32])),
        ("its own proof", &|heard| verdict(heard.proof)),
        ("the caller's words", &|heard| {
            verdict(proof(&password, CALLER, &heard.call, &heard.answer))
        }),
        ("another token", &|heard| verdict(proof(&guessed, LISTENER, &heard.call, &heard.answer))),
    ];
    for (case, say) in wrong {
        meets(scheduler(), say).is_refused(case);
    }
    meets(Answer::new("scheduler", false), &right).is_refused("wants no token");
    for identity in ["server", "server.0", "worker.0", "reader", ""] {
        meets(Answer::new(identity, true), &right).is_refused(identity);
    }
}

/// A TLS listener with a certificate of a folder.
fn tls(keys: &Keys, name: &str) -> Arc<ServerConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let (chain, key) = keys.certificate(name);
    let mut roots = RootCertStore::empty();
    roots.add(keys.authority()).unwrap();
    let roots = Arc::new(roots);
    let verifier = WebPkiClientVerifier::builder_with_provider(roots, Arc::clone(&provider));
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(chain, key)
        .unwrap();
    Arc::new(config)
}

#[test]
fn a_listener_with_the_certificate_of_another_role_is_refused() {
    let keys = Keys::new("listener-tls");
    keys.make_roles();
    let meets = |certificate: &str, identity: &str| {
        let config = tls(&keys, certificate);
        let says = Says { answer: Answer::new(identity, false), verdict: &|_| Vec::new() };
        meet(&keys.secured(&job(), "worker"), |stream| {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            greet(&mut StreamOwned::new(connection, stream), &says)
        })
    };
    meets("scheduler", "scheduler").is_accepted();
    for (certificate, identity) in [
        ("server", "server"),
        ("server", "scheduler"),
        ("worker", "scheduler"),
        ("scheduler", "server"),
    ] {
        meets(certificate, identity).is_refused(&format!("{certificate} as {identity}"));
    }
}
