//! What hostile processes send: frames, messages that are none, and bytes before a greeting has succeeded.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use super::greeting::Call;
use super::job::LIMIT;
use super::session::{FRAMES, Login, Session};

pub const HELLO: u8 = 1;
pub const LOOK: u8 = 29;
pub const SERVER: u8 = 2;
pub const WORKER: u8 = 1;
const HEADER: usize = 140;
/// The longest payload of a message.
const MOST_BYTES: u32 = 1 << 30;
/// The kind of a message that offers shared memory.
pub const OFFER: u16 = 1;

/// A frame as in docs/internals/wire.md, of a process that the job does not know.
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
        // No terms; behind its length a book of epoch 0 without terms, features and members; no barriers; not
        // done; no features.
        payload.extend_from_slice(&[0, 0, 0, 0, 20, 0, 0, 0]);
        payload.extend_from_slice(&[0; 4 + 4 + 8 + 4 + 8 + 8 + 1 + 8]);
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

    /// A process asks for an echo of this many bytes.
    pub fn look(job: &str, at: &str, echo: u32) -> Self {
        let mut payload = u16::try_from(at.len()).unwrap().to_le_bytes().to_vec();
        payload.extend_from_slice(at.as_bytes());
        payload.extend_from_slice(&u32::MAX.to_le_bytes());
        payload.push(255);
        payload.extend_from_slice(&echo.to_le_bytes());
        let hello = Self::hello(job, WORKER, u32::MAX, (0, 0), at);
        Self { kind: LOOK, request: 1, payload, ..hello }
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

/// What is no frame, much of it, frames cut off, and lengths that lie.
pub fn lie(session: &mut Session, job: &str) {
    for _ in 0..8 {
        session.put(&vec![0x5a; 8 << 20]).unwrap();
    }
    let hello = || Frame::hello(job, WORKER, 0, (2, 1), "mallory");
    let whole = hello().bytes();
    for len in [u64::MAX, 1 << 40, 1 << 20, 141] {
        for kind in [1, 5, 13, 16, 18, 23, 28, 200] {
            session.put(&Frame { kind, len: Some(len), ..hello() }.bytes()).unwrap();
        }
        for end in 0..whole.len() {
            session.put(&whole[..end]).unwrap();
        }
    }
    // Kinds of messages that receivers do not know, and offers of memory that are none.
    for kind in [2, 300, u16::MAX] {
        session.send(kind, &[0x5a; 999]).unwrap();
    }
    for len in [0, 1, 39, 40, 41, 4_096] {
        session.send(OFFER, &vec![0x5a; len]).unwrap();
    }
}

/// Messages of the longest length, of which little follows; the sessions have to stay.
pub fn claim_much(to: &str, login: &Login) -> Vec<Session> {
    let claim = |number| {
        let mut session = Session::open(to, &format!("mallory{number}"), login).unwrap();
        session.send_as(MOST_BYTES, FRAMES, &[0x5a; 4_096]).unwrap();
        session
    };
    (0..8).map(claim).collect()
}

/// A connection that says something, and nothing more.
pub fn call(to: &str, words: &[u8]) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(to).ok()?;
    stream.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
    stream.write_all(words).ok()?;
    Some(stream)
}

/// A whole Call, of a process without a credential.
pub fn greeting() -> Vec<u8> {
    Call::new("", "mallory", false).bytes()
}

/// Waits until the other side ends a connection.
pub fn ends(mut stream: TcpStream, limit: Duration) -> bool {
    stream.set_read_timeout(Some(limit)).unwrap();
    let mut bytes = [0; 4096];
    loop {
        match stream.read(&mut bytes) {
            Ok(0) => return true,
            Ok(_) => {}
            Err(error) => return error.kind() == io::ErrorKind::ConnectionReset,
        }
    }
}

/// Passes the connection of a caller on to `to`; gives what the caller has said.
pub fn overhear(to: &str, call: impl FnOnce(&str)) -> Vec<u8> {
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
            let _ = to.shutdown(Shutdown::Both);
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

/// Sends recorded bytes again; gives what the receiver answers until it ends the connection. None if it
/// does not end it.
pub fn replay(to: &str, said: &[u8]) -> Option<Vec<u8>> {
    // The receiver may end it before all is said.
    let Some(mut stream) = call(to, said) else { return Some(Vec::new()) };
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let (mut heard, mut piece) = (Vec::new(), [0; 4096]);
    loop {
        match stream.read(&mut piece) {
            Ok(0) => return Some(heard),
            Ok(count) => heard.extend_from_slice(&piece[..count]),
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Some(heard),
            Err(_) => return None,
        }
    }
}
