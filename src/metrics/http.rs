//! As much of HTTP as a scrape needs: one request on each connection, of bounded size and in a bounded time.
//! An idle connection delays no other one: one thread serves all in turn, without blocking.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Result, fail};
use crate::log::{Level, log};
use crate::sys::sync::{AtomicBool, Ordering};

/// Upper bound of a request, in bytes.
const MOST_REQUEST: usize = 8 << 10;
/// Timeout to receive a request, and to send an answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Pause after an error of the system that may last.
const PAUSE: Duration = Duration::from_millis(100);
/// Interval at which open connections are served; without one the thread sleeps.
const TURN: Duration = Duration::from_millis(2);
/// Maximum number of open connections; the oldest one is closed for one more.
const MOST_OPEN: usize = 256;

const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Answers on a thread of its own until it is dropped.
pub(crate) struct MetricsServer {
    address: SocketAddr,
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl MetricsServer {
    /// `page` returns the body of `/metrics`, or None when the job has ended.
    pub(super) fn start(
        listener: TcpListener,
        page: impl Fn() -> Option<String> + Send + 'static,
    ) -> Result<Self> {
        let address = listener
            .local_addr()
            .map_err(|error| fail!(Network, "the address of the metrics: {error}"))?;
        let stopped = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopped);
        let answer = move || answer(&listener, &stop, &page);
        let thread = std::thread::Builder::new().name("kvstore-metrics".into());
        let thread = crate::pool::without_signals(|| thread.spawn(answer))
            .map_err(|error| fail!(OutOfMemory, "cannot start a thread: {error}"))?;
        Ok(Self { address, stopped, thread: Some(thread) })
    }
}

impl Drop for MetricsServer {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::SeqCst);
        let mut address = self.address;
        if address.ip().is_unspecified() {
            let v4 = address.is_ipv4();
            let own = if v4 { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() };
            address.set_ip(own);
        }
        // Wakes the thread, which blocks in `accept`.
        if TcpStream::connect_timeout(&address, PATIENCE).is_ok()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}

fn answer(listener: &TcpListener, stop: &AtomicBool, page: &impl Fn() -> Option<String>) {
    let mut open = VecDeque::new();
    loop {
        let accepted = accept(listener, &mut open);
        if stop.load(Ordering::SeqCst) {
            return;
        }
        if let Err(error) = accepted {
            log(Level::Warn, || format!("metrics: {error}"));
            std::thread::sleep(PAUSE);
        }
        open.retain_mut(|connection: &mut HttpConnection| connection.goes_on(page));
        if !open.is_empty() {
            std::thread::sleep(TURN);
        }
    }
}

/// Accepts the pending connections; without an open one it blocks until the first.
fn accept(listener: &TcpListener, open: &mut VecDeque<HttpConnection>) -> std::io::Result<()> {
    listener.set_nonblocking(!open.is_empty())?;
    for _ in 0..MOST_OPEN {
        match listener.accept() {
            Ok((stream, _)) => {
                // The client may have disconnected already; it retries.
                if stream.set_nonblocking(true).is_ok() {
                    open.push_back(HttpConnection::new(stream));
                }
                if open.len() > MOST_OPEN {
                    open.pop_front();
                }
                listener.set_nonblocking(true)?;
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Progress of a connection.
enum HttpStage {
    /// Receives a request, of which these bytes have arrived.
    Request(Vec<u8>),
    /// Sends an answer, of which this many bytes have been sent.
    Answer(Vec<u8>, usize),
}

struct HttpConnection {
    stream: TcpStream,
    stage: HttpStage,
    end: Instant,
}

impl HttpConnection {
    fn new(stream: TcpStream) -> Self {
        Self { stream, stage: HttpStage::Request(Vec::new()), end: Instant::now() + PATIENCE }
    }

    /// Advances without blocking; false when the connection has ended.
    fn goes_on(&mut self, page: &impl Fn() -> Option<String>) -> bool {
        let waits = match self.advance(page) {
            Ok(is_over) => !is_over,
            Err(error) => [ErrorKind::WouldBlock, ErrorKind::Interrupted].contains(&error.kind()),
        };
        waits && Instant::now() < self.end
    }

    /// True once the answer is sent.
    fn advance(&mut self, page: &impl Fn() -> Option<String>) -> std::io::Result<bool> {
        let mut piece = [0; 1024];
        loop {
            match &mut self.stage {
                HttpStage::Request(request) => match self.stream.read(&mut piece)? {
                    0 => return Ok(true),
                    count => {
                        request.extend_from_slice(&piece[..count]);
                        if let Some(answer) = reply(request, page) {
                            self.stage = HttpStage::Answer(answer, 0);
                            self.end = Instant::now() + PATIENCE;
                        }
                    }
                },
                HttpStage::Answer(answer, sent) if *sent < answer.len() => {
                    match self.stream.write(&answer[*sent..])? {
                        0 => return Ok(true),
                        count => *sent += count,
                    }
                }
                HttpStage::Answer(..) => return Ok(true),
            }
        }
    }
}

/// The answer to a request; None before its header is complete.
fn reply(request: &[u8], page: &impl Fn() -> Option<String>) -> Option<Vec<u8>> {
    let is_whole = request.windows(4).any(|four| four == b"\r\n\r\n");
    if !is_whole && request.len() < MOST_REQUEST {
        return None;
    }
    let request = String::from_utf8_lossy(request);
    let (status, kind, body) = match is_whole.then(|| target(&request)) {
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
    Some([head.into_bytes(), body.into_bytes()].concat())
}

/// Path of a GET request, without its query.
pub(crate) fn target(request: &str) -> Option<&str> {
    let mut words = request.lines().next()?.split(' ');
    let target = words.next().filter(|method| *method == "GET").and(words.next())?;
    target.split('?').next()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Far above the time of one answer, and far below the sum of the idle connections' timeouts.
    const LIMIT: Duration = Duration::from_secs(20);

    #[test]
    fn silent_connections_keep_no_scrape_waiting() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let endpoint = MetricsServer::start(listener, || Some("a page\n".into())).unwrap();
        let mut silent = Vec::new();
        for round in 0..20 {
            silent.extend((0..200).map(|_| TcpStream::connect(address).unwrap()));
            let mut stream = TcpStream::connect(address).unwrap();
            stream.set_read_timeout(Some(LIMIT)).unwrap();
            stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.ends_with("a page\n"), "round {round}: {answer}");
            // The server keeps the remaining connections, or has closed them.
            silent.drain(..silent.len() - 200);
        }
        drop(endpoint);
    }

    #[test]
    fn a_connection_that_says_nothing_is_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let _endpoint = MetricsServer::start(listener, || None).unwrap();
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        assert_eq!(stream.read(&mut [0; 8]).unwrap(), 0);
    }
}
