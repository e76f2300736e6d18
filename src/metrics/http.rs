//! As much of HTTP as a scrape needs: one request of a bounded size on each connection, one connection
//! at a time, each in a bounded time.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sync::{AtomicBool, Ordering};

/// A request is shorter.
const MOST_REQUEST: usize = 8 << 10;
/// How long a request may take to come, and an answer to go.
const PATIENCE: Duration = Duration::from_secs(1);
/// After an error of the system that may last.
const PAUSE: Duration = Duration::from_millis(100);

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers on a thread of its own until it is dropped.
pub(crate) struct Endpoint {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// `page` gives what is at `/metrics`, or None when there is nothing any more.
    pub(super) fn start(
        listener: TcpListener,
        page: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Self> {
        let address = listener
            .local_addr()
            .map_err(|error| fail!(Network, "the address of the metrics: {error}"))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let answer = move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                match stream {
                    // Whoever scrapes sees what went wrong, and tries again.
                    Ok(stream) => _ = serve(&stream, &page),
                    Err(error) => {
                        log(Level::Warn, || format!("metrics: {error}"));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name("kvstore-metrics".into());
        let thread = crate::pool::without_signals(|| thread.spawn(answer))
            .map_err(|error| fail!(OutOfMemory, "cannot start a thread: {error}"))?;
        Ok(Self { address, stopped, thread: Some(thread) })
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let v4 = address.is_ipv4();
            let own = if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            address.set_ip(own);
        }
        // Wakes the thread, which waits for somebody to come.
        if TcpStream::connect_timeout(&address, PATIENCE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn serve(stream: &TcpStream, page: &impl Fn() -> Option<String>) -> std::io::Result<()> {
    let end = Instant::now() + PATIENCE;
    let request = read(stream, end)?;
    let (status, kind, body) = match request.as_deref().map(target) {
        Some(Some("/metrics")) => match page() {
            Some(text) => ("200 OK", TEXT, text),
            None => ("503 Service Unavailable", "text/plain", "the job has ended\n".into()),
        },
        Some(Some("/")) => ("200 OK", "text/plain", "kvstore: see /metrics\n".into()),
        Some(Some(_)) => ("404 Not Found", "text/plain", "there is only /metrics\n".into()),
        Some(None) => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
        None => ("431 Request Header Fields Too Large", "text/plain", String::new()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nAllow: GET\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    let end = Instant::now() + PATIENCE;
    write(stream, head.as_bytes(), end)?;
    write(stream, body.as_bytes(), end)
}

/// All of the head of a request; None if it is too long.
fn read(mut stream: &TcpStream, end: Instant) -> std::io::Result<Option<String>> {
    let (mut request, mut piece) = (Vec::new(), [0; 1024]);
    while !request.windows(4).any(|four| four == b"\r\n\r\n") {
        if request.len() >= MOST_REQUEST {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left(end)?))?;
        match stream.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            count => request.extend_from_slice(&piece[..count]),
        }
    }
    Ok(Some(String::from_utf8_lossy(&request).into_owned()))
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], end: Instant) -> std::io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(left(end)?))?;
        match stream.write(bytes)? {
            0 => return Err(std::io::ErrorKind::WriteZero.into()),
            count => bytes = &bytes[count..],
        }
    }
    Ok(())
}

fn left(end: Instant) -> std::io::Result<Duration> {
    let left = end.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(std::io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// What a GET asks for, without what stands behind a question mark.
pub(crate) fn target(request: &str) -> Option<&str> {
    let mut words = request.lines().next()?.split(' ');
    let target = words.next().filter(|method| *method == "GET").and(words.next())?;
    target.split('?').next()
}
