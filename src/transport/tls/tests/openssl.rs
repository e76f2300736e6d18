//! OpenSSL on the other side, over a socket of the loopback interface.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use super::super::record::OVERHEAD;
use super::{CERTS, End, TlsConnection, server};
use crate::transport::tls::{Opener, Sealer};

/// Timeout of each step.
const PATIENCE: Duration = Duration::from_secs(20);
/// How many short messages openssl receives after a value.
const MARKS: usize = 14;
const CIPHERS: [&str; 3] =
    ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"];

/// A running `openssl`; its output is read to the end.
struct OpenSsl {
    child: Child,
    output: Option<JoinHandle<Vec<u8>>>,
    /// The first line of a listener, with its port.
    first: String,
}

impl OpenSsl {
    /// None, and a line that says so, without the program.
    fn start(arguments: &[&str], is_listener: bool) -> Option<Self> {
        let mut command = Command::new("openssl");
        command.args(arguments).args(["-tls1_3", "-CAfile"]).arg(format!("{CERTS}/ca.pem"));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                eprintln!("not tested: there is no program `openssl`");
                return None;
            }
            Err(error) => panic!("openssl: {error}"),
        };
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        while is_listener && !first.starts_with("ACCEPT") {
            first.clear();
            assert_ne!(output.read_line(&mut first).unwrap(), 0, "openssl ended");
        }
        let output = thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = output.read_to_end(&mut bytes);
            bytes
        });
        Some(Self { child, output: Some(output), first })
    }

    fn write(&mut self, bytes: &[u8]) {
        let mut input = self.child.stdin.as_ref().unwrap();
        input.write_all(bytes).unwrap();
        input.flush().unwrap();
    }

    /// Waits for its end: all of its output.
    fn finish(mut self) -> Vec<u8> {
        let end = Instant::now() + PATIENCE;
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < end, "openssl does not end");
            thread::sleep(Duration::from_millis(5));
        }
        self.output.take().unwrap().join().unwrap()
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Our end of a connection, over a socket.
struct Wire {
    stream: TcpStream,
    sealer: Sealer,
    opener: Opener,
    received: Vec<u8>,
    plain: Vec<u8>,
    is_closed: bool,
}

impl Wire {
    fn shake_hands(mut end: End, mut stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        end.receive(&[]).unwrap();
        stream.write_all(&end.take()).unwrap();
        let mut buffer = [0; 4096];
        while end.tls.is_handshaking() {
            let len = stream.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "openssl ended the connection");
            end.receive(&buffer[..len]).unwrap();
            stream.write_all(&end.take()).unwrap();
        }
        let End { tls, received, plain, .. } = end;
        let (sealer, opener) = tls.split().unwrap();
        Self { stream, sealer, opener, received, plain, is_closed: false }
    }

    fn send(&mut self, bytes: &[u8]) -> usize {
        let sealed = super::seal(&mut self.sealer, bytes);
        self.stream.write_all(&sealed).unwrap();
        sealed.len()
    }

    /// Receives until a condition holds.
    fn receive_until(&mut self, mut is_enough: impl FnMut(&Self, usize) -> bool) {
        let mut buffer = vec![0; 1 << 16];
        loop {
            let opened = self.opener.open(&mut self.received, &mut self.plain).unwrap();
            self.received.drain(..opened.consumed);
            self.is_closed = opened.is_closed;
            if is_enough(self, opened.consumed) {
                return;
            }
            let len = self.stream.read(&mut buffer).unwrap();
            assert_ne!(len, 0, "openssl ended the connection");
            self.received.extend_from_slice(&buffer[..len]);
        }
    }

    fn expect(&mut self, bytes: &[u8]) {
        self.receive_until(|wire, _| wire.plain.len() >= bytes.len());
        assert!(self.plain == bytes, "other bytes than openssl sent");
        self.plain.clear();
    }

    fn close(&mut self) {
        let mut sealed = Vec::new();
        self.sealer.close(&mut sealed);
        self.stream.write_all(&sealed).unwrap();
    }
}

/// Digits, as openssl takes letters at the beginning of its input for commands.
fn digits(len: usize) -> Vec<u8> {
    super::pattern(len).into_iter().map(|byte| b'0' + byte % 10).collect()
}

/// Values in both directions, then key updates from both sides, each with the other direction's.
fn converse(wire: &mut Wire, openssl: &mut OpenSsl) {
    let value = digits(100_000);
    openssl.write(&value);
    wire.expect(&value);
    assert_eq!(wire.send(&value), value.len() + 7 * OVERHEAD);
    // `k` updates the key of openssl; `K` requests ours as well, which is a record before the next.
    let update = 5 + OVERHEAD;
    for (number, (command, more)) in
        [(b"k\n", 0), (b"K\n", update), (b"K\n", update), (b"k\n", 0)].into_iter().enumerate()
    {
        openssl.write(command);
        wire.receive_until(|_, consumed| consumed > 0);
        assert!(wire.plain.is_empty());
        assert_eq!(wire.send(&mark(number)), mark(number).len() + OVERHEAD + more);
        openssl.write(b"12345");
        wire.expect(b"12345");
    }
    wire.sealer.limit_records(3);
    for number in 4..MARKS {
        wire.send(&mark(number));
    }
    wire.close();
    wire.receive_until(|wire, _| wire.is_closed);
}

fn mark(number: usize) -> Vec<u8> {
    format!("<mark {number}>").into_bytes()
}

/// What openssl wrote has all of the application data of `converse`, among lines of its own.
fn check(output: &[u8]) {
    let mut text = String::from_utf8_lossy(output).into_owned();
    // It writes these wherever it has to wait.
    for line in ["Read BLOCK\n", "read R BLOCK\n", "SSL_do_handshake -> 1\n"] {
        text = text.replace(line, "");
    }
    let value = String::from_utf8(digits(100_000)).unwrap();
    assert!(text.contains(&value), "not the whole value in {} bytes", output.len());
    for number in 0..MARKS {
        assert!(text.contains(&format!("<mark {number}>")), "mark {number}");
    }
}

#[test]
fn openssl_as_caller_reads_and_writes_our_records_and_updates_keys() {
    for cipher in CIPHERS {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (cert, key) = (format!("{CERTS}/worker.pem"), format!("{CERTS}/worker.key"));
        let arguments = ["s_client", "-connect", &address, "-cert", &cert, "-key", &key];
        let more = ["-ciphersuites", cipher, "-verify_return_error"];
        let Some(mut openssl) = OpenSsl::start(&[&arguments[..], &more].concat(), false) else {
            return;
        };
        let (stream, _) = listener.accept().unwrap();
        let end = End::new(TlsConnection::listener(server("server")).unwrap());
        let mut wire = Wire::shake_hands(end, stream);
        converse(&mut wire, &mut openssl);
        check(&openssl.finish());
    }
}

#[test]
fn openssl_as_listener_reads_and_writes_our_records_and_updates_keys() {
    for cipher in CIPHERS {
        let (cert, key) = (format!("{CERTS}/server.pem"), format!("{CERTS}/server.key"));
        let arguments = ["s_server", "-accept", "127.0.0.1:0", "-cert", &cert, "-key", &key];
        let more = ["-ciphersuites", cipher, "-Verify", "1", "-verify_return_error"];
        let arguments = [&arguments[..], &more, &["-naccept", "1"]].concat();
        let Some(mut openssl) = OpenSsl::start(&arguments, true) else { return };
        let address = openssl.first.trim().strip_prefix("ACCEPT ").expect("an address").to_owned();
        let stream = TcpStream::connect(address).unwrap();
        let mut wire = Wire::shake_hands(End::caller("worker"), stream);
        converse(&mut wire, &mut openssl);
        check(&openssl.finish());
    }
}
