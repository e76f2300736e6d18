//! What processes that mean harm can say: by hand over TCP, and over a session of the engine. Over
//! TLS a session needs a process of its own, for the variable that TLS needs.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use siphasher::sip::SipHasher24;
use zenoh::{Session, Wait};

use super::program::say;

/// The variables that tell this program to attack: whom, as whom, the job, and how TLS is spoken.
pub const TO: &str = "KV_TEST_ATTACK_TO";
pub const KEY: &str = "KV_TEST_ATTACK_KEY";
pub const NAME: &str = "KV_TEST_ATTACK_NAME";
pub const TLS: &str = "KV_TEST_ATTACK_TLS";
/// Whether it lies, or says one thing that is true.
pub const LIES: &str = "KV_TEST_ATTACK_LIES";

pub const HELLO: u8 = 1;
pub const SERVER: u8 = 2;
pub const WORKER: u8 = 1;
const HEADER: usize = 140;

/// A frame as in docs/wire.md, of a process that the job does not know.
pub struct Frame {
    pub kind: u8,
    pub role: u8,
    pub rank: u32,
    pub job: u64,
    pub incarnation: u64,
    /// Its place in the stream; 0 outside of it.
    pub sequence: u64,
    /// A key in its first life.
    pub key: u64,
    pub round: u64,
    pub request: u64,
    pub version: u16,
    pub payload: Vec<u8>,
    /// What the header says of the payload, if not the truth.
    pub len: Option<u64>,
}

impl Frame {
    /// A process introduces itself.
    pub fn hello(job: &str, role: u8, rank: u32, (workers, servers): (u32, u32), at: &str) -> Self {
        let mut payload = workers.to_le_bytes().to_vec();
        payload.extend_from_slice(&servers.to_le_bytes());
        payload.extend_from_slice(&u16::try_from(at.len()).unwrap().to_le_bytes());
        payload.extend_from_slice(at.as_bytes());
        // No terms; a book of epoch 0 without terms and members; no barriers; not done.
        payload.extend_from_slice(&[0; 1 + 4 + 1 + 4 + 8 + 8 + 1]);
        let job = SipHasher24::new().hash(job.as_bytes());
        let incarnation = u64::MAX >> 8;
        Self {
            kind: HELLO,
            role,
            rank,
            job,
            incarnation,
            sequence: 0,
            key: 0,
            round: 0,
            request: 0,
            version: kvstore_protocol::VERSION,
            payload,
            len: None,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = b"KVST".to_vec();
        bytes.extend_from_slice(&self.version.to_le_bytes());
        bytes.extend_from_slice(&[self.kind, self.role]);
        for wide in [self.job, self.incarnation] {
            bytes.extend_from_slice(&wide.to_le_bytes());
        }
        // To no process in particular, and without an acknowledgement, an offset, a total and a setting.
        for wide in [0, self.sequence, 0, self.key, self.round, 0, 0, self.request, 0] {
            bytes.extend_from_slice(&wide.to_le_bytes());
        }
        let generation = u32::from(self.key > 0);
        for narrow in [self.rank, 0, generation, 0, 0] {
            bytes.extend_from_slice(&narrow.to_le_bytes());
        }
        let len = self.len.unwrap_or(self.payload.len() as u64);
        bytes.extend_from_slice(&len.to_le_bytes());
        bytes.resize(bytes.len() + 4 * 2, 0);
        bytes.extend_from_slice(&crc32c::crc32c(&self.payload).to_le_bytes());
        let sum = crc32c::crc32c(&bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        assert_eq!(bytes.len(), HEADER);
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// A session of the engine that calls an address, with settings besides.
pub fn session(protocol: &str, to: &str, settings: &[(&str, String)]) -> Option<Session> {
    let mut config = zenoh::Config::default();
    let own = [
        ("mode", "\"client\"".to_owned()),
        ("connect/endpoints", format!("[\"{protocol}/{to}\"]")),
        ("connect/timeout_ms", "3000".into()),
        ("connect/exit_on_failure", "true".into()),
        ("scouting/multicast/enabled", "false".into()),
        ("transport/shared_memory/enabled", "false".into()),
        ("transport/unicast/qos/enabled", "false".into()),
    ];
    for (name, value) in own.iter().chain(settings) {
        config.insert_json5(name, value).unwrap();
    }
    zenoh::open(config).wait().ok()
}

/// Plays an attacker if this test was started as one.
#[test]
fn plays() {
    let Ok(to) = std::env::var(TO) else { return };
    let [key, name, tls] = [KEY, NAME, TLS].map(|name| std::env::var(name).unwrap());
    let Some(session) = session("tls", &to, &[("transport/link/tls", tls)]) else {
        return say("kept out");
    };
    if std::env::var_os(LIES).is_some() {
        lie(&session, &key, &name);
    } else {
        let hello = Frame::hello(&name, WORKER, 0, (2, 1), "mallory");
        session.put(&key, hello.bytes()).wait().unwrap();
    }
    session.close().wait().unwrap();
    say("done");
}

/// What is no frame, much of it, frames cut off, and lengths that lie.
pub fn lie(session: &Session, key: &str, job: &str) {
    let put = |bytes: Vec<u8>| session.put(key, bytes).wait().unwrap();
    for _ in 0..8 {
        put(vec![0x5a; 8 << 20]);
    }
    let hello = || Frame::hello(job, WORKER, 0, (2, 1), "mallory");
    let whole = hello().bytes();
    for len in [u64::MAX, 1 << 40, 1 << 20, 141] {
        for kind in [1, 5, 13, 16, 18, 23, 28, 200] {
            put(Frame { kind, len: Some(len), ..hello() }.bytes());
        }
        for end in 0..whole.len() {
            put(whole[..end].to_vec());
        }
    }
}

/// A connection that says something, and nothing more.
pub fn call(to: &str, words: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(words).ok()?;
    Some(stream)
}

/// The first greeting of the engine, behind its length.
pub fn greeting() -> Vec<u8> {
    vec![11, 0, 0x01, 0x09, 0x72, 1, 2, 3, 4, 5, 6, 7, 8]
}

/// Waits until the other side ends a connection.
pub fn ends(mut stream: TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}
