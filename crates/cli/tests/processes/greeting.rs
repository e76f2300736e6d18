//! The greeting of a connection, written from docs/internals/wire.md alone, for both of its sides.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use ring::hmac;

pub const VERSION: u16 = 1;
/// Bytes in front of the fields of Call and Answer: magic, version, length of the fields.
const FRONT: usize = 8;
const MOST_FIELDS: usize = 1_024;
/// The flag of a Call whose sender has a token, and of an Answer whose sender wants one.
const TOKEN: u8 = 1;

/// The statuses of an Answer and of a Verdict.
pub const GO_ON: u8 = 0;
pub const OTHER_VERSION: u8 = 1;
pub const WANTS_TLS: u8 = 2;
pub const WANTS_TOKEN: u8 = 3;
pub const WANTS_NO_TOKEN: u8 = 4;
pub const FULL: u8 = 5;
pub const OTHER_TOKEN: u8 = 6;
pub const NOT_ALLOWED: u8 = 7;
pub const MALFORMED: u8 = 8;

/// Which side signs: the caller its Proof, the listener its Verdict.
pub const CALLER: &str = "kvstore caller";
pub const LISTENER: &str = "kvstore listener";

pub type Proof = [u8; 32];

/// The first message of a caller.
#[derive(Clone)]
pub struct Call {
    pub version: u16,
    pub has_token: bool,
    pub random: [u8; 32],
    pub identity: String,
    pub name: String,
    /// Fields of a later version.
    pub more: Vec<u8>,
}

impl Call {
    pub fn new(identity: &str, name: &str, has_token: bool) -> Self {
        let (identity, name) = (identity.into(), name.into());
        Self { version: VERSION, has_token, random: random(), identity, name, more: Vec::new() }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut fields = vec![if self.has_token { TOKEN } else { 0 }, 0];
        fields.extend_from_slice(&self.random);
        put_text(&mut fields, &self.identity);
        put_text(&mut fields, &self.name);
        fields.extend_from_slice(&self.more);
        message(*b"KVSC", self.version, &fields)
    }

    /// Receives the Call of a process, and gives its bytes too.
    pub fn receive(stream: &mut impl Read) -> io::Result<(Self, Vec<u8>)> {
        let (version, bytes) = receive(stream, *b"KVSC")?;
        let mut fields = Fields(&bytes[FRONT..]);
        let has_token = fields.take(2)?[0] & TOKEN != 0;
        let random = fields.take(32)?.try_into().map_err(invalid)?;
        let (identity, name) = (fields.text()?, fields.text()?);
        let more = fields.0.to_vec();
        Ok((Self { version, has_token, random, identity, name, more }, bytes))
    }
}

/// The first message of a listener.
#[derive(Debug, Clone)]
pub struct Answer {
    pub status: u8,
    pub wants_token: bool,
    pub random: [u8; 32],
    pub identity: String,
    pub reason: String,
}

impl Answer {
    /// The Answer of a listener that goes on.
    pub fn new(identity: &str, wants_token: bool) -> Self {
        let (identity, reason) = (identity.into(), String::new());
        Self { status: GO_ON, wants_token, random: random(), identity, reason }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut fields = vec![self.status, if self.wants_token { TOKEN } else { 0 }];
        fields.extend_from_slice(&self.random);
        put_text(&mut fields, &self.identity);
        put_text(&mut fields, &self.reason);
        message(*b"KVSL", VERSION, &fields)
    }

    /// Receives the Answer of a process, and gives its bytes too.
    pub fn receive(stream: &mut impl Read) -> io::Result<(Self, Vec<u8>)> {
        let (_, bytes) = receive(stream, *b"KVSL")?;
        let mut fields = Fields(&bytes[FRONT..]);
        let [status, flags] = fields.take(2)?.try_into().map_err(invalid)?;
        let random = fields.take(32)?.try_into().map_err(invalid)?;
        let (identity, reason) = (fields.text()?, fields.text()?);
        let wants_token = flags & TOKEN != 0;
        Ok((Self { status, wants_token, random, identity, reason }, bytes))
    }
}

/// The proof that a side has the password of an identity, over both messages as they were sent.
pub fn proof(password: &str, side: &str, call: &[u8], answer: &[u8]) -> Proof {
    sign(password, &[side.as_bytes(), call, answer].concat())
}

/// The password of an identity in a file of `kvstore certs token`: that of the job, or a derived one.
pub fn password(file: &Path, identity: &str) -> String {
    let text = fs::read_to_string(file).unwrap();
    match text.trim().split_once(':') {
        Some((_, digits)) => digits.into(),
        None => derived(text.trim(), identity),
    }
}

/// The password of an identity under the token of a job.
pub fn derived(token: &str, identity: &str) -> String {
    let tag = sign(token, format!("kvstore token {identity}").as_bytes());
    tag.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

fn sign(secret: &str, words: &[u8]) -> Proof {
    let key = hmac::Key::new(hmac::HMAC_SHA256, secret.as_bytes());
    hmac::sign(&key, words).as_ref().try_into().unwrap()
}

fn random() -> [u8; 32] {
    let mut random = [0; 32];
    fs::File::open("/dev/urandom").unwrap().read_exact(&mut random).unwrap();
    random
}

fn message(magic: [u8; 4], version: u16, fields: &[u8]) -> Vec<u8> {
    let len = u16::try_from(fields.len()).unwrap();
    [&magic[..], &version.to_le_bytes(), &len.to_le_bytes(), fields].concat()
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&u16::try_from(text.len()).unwrap().to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

/// Receives a message with this magic, and gives its version and all of its bytes.
fn receive(stream: &mut impl Read, magic: [u8; 4]) -> io::Result<(u16, Vec<u8>)> {
    let mut bytes = vec![0; FRONT];
    stream.read_exact(&mut bytes)?;
    let number = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (version, len) = (number(4), usize::from(number(6)));
    if bytes[..4] != magic || len > MOST_FIELDS {
        return Err(invalid(&bytes));
    }
    bytes.resize(FRONT + len, 0);
    stream.read_exact(&mut bytes[FRONT..])?;
    Ok((version, bytes))
}

fn invalid(what: impl std::fmt::Debug) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not of a greeting: {what:?}"))
}

struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, count: usize) -> io::Result<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or_else(|| invalid(self.0))?;
        self.0 = rest;
        Ok(taken)
    }

    fn text(&mut self) -> io::Result<String> {
        let len = u16::from_le_bytes(self.take(2)?.try_into().map_err(invalid)?);
        String::from_utf8(self.take(len.into())?.to_vec()).map_err(invalid)
    }
}

/// The examples of docs/internals/wire.md, in the order of the page.
fn examples() -> Vec<Vec<u8>> {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/internals/wire.md");
    let page = fs::read_to_string(page).unwrap();
    let section = page.split("\n### Greeting\n").nth(1).and_then(|it| it.split("\n### ").next());
    let blocks = section.expect("the section").split("```hex\n").skip(1);
    let bytes = |block: &str| -> Vec<u8> {
        let words = block.split("```").next().unwrap().split_whitespace();
        words.map(|word| u8::from_str_radix(word, 16).unwrap()).collect()
    };
    blocks.map(bytes).collect()
}

/// A whole greeting between worker 3 and the scheduler of a job, as the page shows it.
#[test]
fn the_greeting_is_the_documented_one() {
    let counted = |from: u8| std::array::from_fn(|at| from + u8::try_from(at).unwrap());
    let (identity, name) = ("worker.3".into(), "host.4711.1a2b3c4d".into());
    let more = Vec::new();
    let (version, random, has_token) = (VERSION, counted(0), true);
    let call = Call { version, has_token, random, identity, name, more }.bytes();
    let answer = Answer { random: counted(0x20), ..Answer::new("scheduler", true) }.bytes();
    let password = derived("0123456789abcdef", "worker.3");
    let verdict = [&[GO_ON][..], &proof(&password, LISTENER, &call, &answer)].concat();
    let proof = proof(&password, CALLER, &call, &answer).to_vec();
    let hex = |bytes: &[u8]| {
        let row = |row: &[u8]| row.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>();
        bytes.chunks(16).map(|bytes| row(bytes).join(" ") + "\n").collect::<String>()
    };
    let expected = [call, answer, proof, verdict];
    let documented = examples();
    for (documented, expected) in documented.iter().zip(&expected) {
        assert_eq!(documented, expected, "expected:\n{}", hex(expected));
    }
    assert_eq!(documented.len(), expected.len());
}
