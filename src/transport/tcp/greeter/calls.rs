//! All connections that this process makes: the attempts in progress, and when the next ones are due.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};

use super::super::dials::Order;
use super::super::endpoint::Endpoint;
use super::super::greeting::{Direction, Lane};
use super::call::{CallProgress, DialAttempt, DialError};
use crate::log::{Level, log};
use crate::transport::send_queue::go_on;

/// Pause between two attempts to connect: the first, and the longest.
const AGAIN: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(250));
/// Maximum time of an attempt without progress: of the first, and of any.
const ATTEMPT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(16));
/// A lost connection is made again by itself for so long; later when there is something to send.
const PERSISTENCE: Duration = Duration::from_secs(3);
/// A connection that has ended within this time counts as a failed attempt.
const SHORT: Duration = Duration::from_secs(1);

/// Bit of the tokens of attempts.
pub(super) const CALLS: usize = 1 << (usize::BITS - 2);

/// An address, and which of the connections with it.
type LineKey = (Arc<str>, Lane);

#[derive(Default)]
pub(super) struct Calls {
    lines: HashMap<LineKey, CallLine>,
    attempts: HashMap<usize, DialAttempt>,
    next: usize,
}

/// A connection that this process is to make, or has made.
struct CallLine {
    state: LineState,
    pause: Duration,
    limit: Duration,
    /// When an attempt may begin.
    not_before: Instant,
    /// Whether it begins by itself.
    is_due: bool,
    /// The last attempt failed because one process refuses the other.
    was_refused: bool,
    /// When the connection was made, and when the one was lost that is made again.
    made: Option<Instant>,
    lost: Option<Instant>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LineState {
    Idle,
    Resolving,
    /// With the token of the attempt.
    Calling(usize),
}

impl CallLine {
    fn new() -> Self {
        Self {
            state: LineState::Idle,
            pause: AGAIN.0,
            limit: ATTEMPT.0,
            not_before: Instant::now(),
            is_due: false,
            was_refused: false,
            made: None,
            lost: None,
        }
    }

    /// The next attempt begins after a pause, and the pause behind it is longer.
    fn rest(&mut self) {
        self.not_before = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(AGAIN.1);
    }

    /// Counts a failure. A reason to report: refused twice, as a single failure may be the start, or the end,
    /// of a process.
    fn fail(&mut self, error: &DialError) -> Option<String> {
        self.state = LineState::Idle;
        self.rest();
        match error {
            DialError::Refused(reason) => {
                std::mem::replace(&mut self.was_refused, true).then(|| reason.clone())
            }
            DialError::Failed(error) => {
                if error.kind() == io::ErrorKind::TimedOut {
                    self.limit = (self.limit * 2).min(ATTEMPT.1);
                }
                None
            }
        }
    }
}

impl Calls {
    /// Makes the connections with an address that are missing. With two, the one over which this process
    /// sends is the first.
    pub(super) fn dial(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, to: &Arc<str>) {
        let directions: &[Direction] = if endpoint.is_root(to) {
            &[Direction::Both]
        } else {
            &[Direction::CallerSends, Direction::ListenerSends]
        };
        for direction in directions {
            self.begin(endpoint, registry, to, Lane::first(*direction));
        }
    }

    /// Makes the lost connections with an address again, at once if they have lived for a while.
    pub(super) fn redial(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, to: &Arc<str>) {
        let now = Instant::now();
        let mut further = Vec::new();
        for ((address, lane), line) in &mut self.lines {
            if address != to || endpoint.incoming.peers.has_lane(to, *lane) {
                continue;
            }
            further.extend((lane.number > 0).then_some(*lane));
            line.lost = Some(now);
            match line.made.take() {
                Some(made) if made.elapsed() < SHORT => line.rest(),
                Some(_) => line.pause = AGAIN.0,
                None => {}
            }
        }
        self.dial(endpoint, registry, to);
        further.into_iter().for_each(|lane| self.begin(endpoint, registry, to, lane));
    }

    fn begin(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, to: &Arc<str>, lane: Lane) {
        if endpoint.incoming.peers.has_lane(to, lane) {
            if lane.is_main() {
                endpoint.incoming.dials.settle(to, None).iter().for_each(go_on);
            }
            return;
        }
        let line = self.lines.entry((Arc::clone(to), lane)).or_insert_with(CallLine::new);
        if line.state != LineState::Idle {
            return;
        }
        line.is_due = line.not_before > Instant::now();
        if line.is_due {
            return;
        }
        if lane.is_main() {
            endpoint.incoming.dials.begin(to);
        }
        line.state = LineState::Resolving;
        // Only the resolution of a name takes time.
        if let Ok(address) = to.parse::<SocketAddr>() {
            return self.resolved(endpoint, registry, to, lane, Ok(vec![address]));
        }
        let (dials, host) = (Arc::clone(&endpoint.incoming.dials), Arc::clone(to));
        let resolve = move || {
            let addresses = host.to_socket_addrs().map(Iterator::collect);
            dials.order(Order::Resolved(host, lane, addresses));
        };
        let thread = std::thread::Builder::new().name("kvstore-resolve".into());
        if let Err(error) = crate::pool::without_signals(|| thread.spawn(resolve)) {
            self.resolved(endpoint, registry, to, lane, Err(error));
        }
    }

    /// Calls the addresses of a host.
    pub(super) fn resolved(
        &mut self,
        endpoint: &Endpoint,
        registry: &Registry,
        to: &Arc<str>,
        lane: Lane,
        addresses: io::Result<Vec<SocketAddr>>,
    ) {
        let Some(line) = self.lines.get_mut(&(Arc::clone(to), lane)) else { return };
        let call = addresses
            .map_err(DialError::from)
            .and_then(|addresses| DialAttempt::begin(to, lane, addresses, line.limit));
        let token = CALLS | self.next;
        self.next += 1;
        let registered = call.and_then(|call| {
            register(registry, &call, token)?;
            Ok(call)
        });
        match registered {
            Ok(call) => {
                line.state = LineState::Calling(token);
                self.attempts.insert(token, call);
            }
            Err(error) => self.fail(endpoint, to, lane, &error),
        }
    }

    /// Something has happened on the socket of an attempt.
    pub(super) fn serve(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, token: usize) {
        let Some(call) = self.attempts.get_mut(&token) else { return };
        let error = match call.advance(endpoint) {
            Ok(CallProgress::Waits) => return,
            Ok(CallProgress::Moved) => match register(registry, call, token) {
                Ok(()) => return,
                Err(error) => error.into(),
            },
            Ok(CallProgress::Over(from)) => return self.admit(endpoint, registry, token, from),
            Err(error) => error,
        };
        self.end(endpoint, token, &error);
    }

    fn admit(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, token: usize, from: String) {
        let Some(call) = self.attempts.remove(&token) else { return };
        // It was registered.
        let _ = registry.deregister(&mut SourceFd(&call.socket().as_raw_fd()));
        let (to, lane, round_trip) = (Arc::clone(&call.to), call.lane, call.round_trip());
        let greeted = call.greeted(from);
        let Some(connection) = greeted.and_then(|greeted| endpoint.adopt(greeted)) else {
            let error = io::Error::other("this process takes no connection");
            return self.fail(endpoint, &to, lane, &error.into());
        };
        if let Some(line) = self.lines.get_mut(&(Arc::clone(&to), lane)) {
            let (pause, limit, made) = (line.pause, line.limit, Some(Instant::now()));
            *line = CallLine { pause, limit, made, ..CallLine::new() };
        }
        if lane.is_main() {
            let waiting = endpoint.incoming.dials.settle(&to, None);
            waiting.into_iter().for_each(|queue| connection.call_back(queue));
            for lane in endpoint.further_lanes(&to, round_trip) {
                self.begin(endpoint, registry, &to, lane);
            }
        }
    }

    /// Ends an attempt after an error.
    fn end(&mut self, endpoint: &Endpoint, token: usize, error: &DialError) {
        if let Some(call) = self.attempts.remove(&token) {
            self.fail(endpoint, &call.to, call.lane, error);
        }
    }

    fn fail(&mut self, endpoint: &Endpoint, to: &Arc<str>, lane: Lane, error: &DialError) {
        let Some(line) = self.lines.get_mut(&(Arc::clone(to), lane)) else { return };
        let reason = line.fail(error);
        let is_lost = line.lost.is_some_and(|lost| lost.elapsed() < PERSISTENCE);
        let incoming = &endpoint.incoming;
        // Without the second connection the listener sends over the first, so it is not urgent.
        let is_second = lane.number == 0 && !lane.caller_sends();
        line.is_due = is_lost || is_second && incoming.peers.sends_to(to);
        if let DialError::Failed(error) = error {
            log(Level::Debug, || format!("no connection to {to}: {error}"));
        }
        if !lane.is_main() {
            return;
        }
        // Known before the queues are called, which drop their messages.
        let is_gone = is_lost && !incoming.peers.is_connected(to) && is_refusal(error);
        if is_gone {
            (line.lost, line.is_due) = (None, false);
        }
        let next = line.not_before;
        let waiting = incoming.dials.settle(to, Some(next));
        if is_gone {
            incoming.gone(to);
        }
        if let Some(reason) = reason {
            incoming.inbox.refused(to, &reason);
        }
        waiting.iter().for_each(go_on);
    }

    /// Ends attempts whose time is over, and begins those that are due.
    pub(super) fn tick(&mut self, endpoint: &Arc<Endpoint>, registry: &Registry, now: Instant) {
        let late = self.attempts.iter().filter(|(_, call)| call.deadline() <= now);
        for token in late.map(|(token, _)| *token).collect::<Vec<_>>() {
            let error = io::Error::new(io::ErrorKind::TimedOut, "it has not answered in time");
            self.end(endpoint, token, &error.into());
        }
        let due = self.lines.iter().filter(|(_, line)| line.is_due && line.not_before <= now);
        for (to, lane) in due.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.begin(endpoint, registry, &to, lane);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let attempts = self.attempts.values().map(DialAttempt::deadline);
        let due = self.lines.values().filter(|line| line.is_due).map(|line| line.not_before);
        attempts.chain(due).min()
    }
}

/// No process listens at the address.
fn is_refusal(error: &DialError) -> bool {
    matches!(error, DialError::Failed(error) if error.kind() == io::ErrorKind::ConnectionRefused)
}

fn register(registry: &Registry, call: &DialAttempt, token: usize) -> io::Result<()> {
    let interest = Interest::READABLE | Interest::WRITABLE;
    registry.register(&mut SourceFd(&call.socket().as_raw_fd()), Token(token), interest)
}
