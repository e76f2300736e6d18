//! Gives the descriptors of segments to the processes that read them, over an abstract Unix-domain socket
//! (`SCM_RIGHTS`). It needs a common network namespace, as processes on one address have it, and no common
//! process numbers.
//!
//! A process has one such socket, with a random name and a thread, and only while offers are open. An offer
//! is open until its descriptor was given away, or its time has passed.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use socket2::{Domain, SockAddr, Socket, Type};

use super::offer::{SegmentOffer, SegmentToken, SocketName};
use super::segment::Segment;
use crate::log::{Level, log};
use crate::sys;
use crate::sys::descriptors::{peer_user, receive_descriptor, send_descriptor};
use crate::transport::random::random_bytes;

/// What the name of a socket begins with: an offer reaches no socket of another program.
const PREFIX: &str = "\0kvstore-segments-";
/// Connections that may wait until the thread accepts them.
const BACKLOG: i32 = 128;
/// Interval at which the thread looks whether offers are still open.
const LOOK_AGAIN: Duration = Duration::from_millis(200);
/// Timeout of a receiver that has connected, and does not show a token: more than a busy machine delays it.
/// Others wait meanwhile.
const SHOW: Duration = Duration::from_secs(1);
/// Timeout of the receiver for each step: to connect, and to get the descriptor.
const GET: Duration = Duration::from_secs(2);

/// The offers of this process, while there are any: a thread serves them.
static OFFERS: Mutex<Option<OpenOffers>> = Mutex::new(None);

struct OpenOffers {
    /// Of the process that has the thread.
    generation: u32,
    socket: SocketName,
    segments: HashMap<SegmentToken, OpenOffer>,
}

struct OpenOffer {
    segment: Weak<Segment>,
    until: Instant,
}

fn offers() -> MutexGuard<'static, Option<OpenOffers>> {
    OFFERS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// New random bytes of the system.
pub(super) fn random() -> io::Result<[u8; 16]> {
    random_bytes().ok_or_else(|| io::Error::other("the system has no random bytes"))
}

/// Lets one process that shows the token get the descriptor of a segment, from the socket whose name it gives.
pub(super) fn open(
    segment: &Arc<Segment>,
    token: SegmentToken,
    time: Duration,
) -> io::Result<SocketName> {
    let mut offers = offers();
    // After a fork the thread is that of the parent.
    let generation = sys::fork_generation();
    let open = match offers.take().filter(|open| open.generation == generation) {
        Some(open) => open,
        None => serve_offers(generation)?,
    };
    let open = offers.insert(open);
    let (segment, until) = (Arc::downgrade(segment), Instant::now() + time);
    open.segments.insert(token, OpenOffer { segment, until });
    Ok(open.socket)
}

/// Opens the socket, and starts the thread, which waits for the lock of the offers.
fn serve_offers(generation: u32) -> io::Result<OpenOffers> {
    let (socket, listener) = (random()?, Socket::new(Domain::UNIX, Type::STREAM, None)?);
    listener.bind(&address(&socket)?)?;
    listener.listen(BACKLOG)?;
    listener.set_read_timeout(Some(LOOK_AGAIN))?;
    let thread = thread::Builder::new().name("kvstore-offers".into());
    crate::pool::without_signals(|| thread.spawn(move || serve(&listener)))?;
    Ok(OpenOffers { generation, socket, segments: HashMap::new() })
}

fn address(socket: &SocketName) -> io::Result<SockAddr> {
    let random = u128::from_le_bytes(*socket);
    SockAddr::unix(OsStr::from_bytes(format!("{PREFIX}{random:032x}").as_bytes()))
}

/// The thread.
fn serve(listener: &Socket) {
    while !is_over() {
        let given = match listener.accept() {
            Ok((receiver, _)) => give(&receiver),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
            Err(error) => {
                // Too many files are open, for example.
                thread::sleep(LOOK_AGAIN);
                Err(error)
            }
        };
        if let Err(error) = given {
            log(Level::Debug, || format!("a process gets no descriptor: {error}"));
        }
    }
}

/// Whether no offer is open any more, so that the thread ends.
fn is_over() -> bool {
    let (mut offers, now) = (offers(), Instant::now());
    let is_open = |offer: &OpenOffer| offer.until > now && offer.segment.strong_count() > 0;
    let open = offers.as_mut().is_some_and(|open| {
        open.segments.retain(|_, offer| is_open(offer));
        !open.segments.is_empty()
    });
    if !open {
        *offers = None;
    }
    !open
}

/// Gives a process the descriptor whose token it shows.
fn give(mut receiver: &Socket) -> io::Result<()> {
    check_user(receiver)?;
    receiver.set_read_timeout(Some(SHOW))?;
    let mut token = SegmentToken::default();
    // One read: a process that sends it byte by byte would keep the thread.
    if receiver.read(&mut token)? < token.len() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let segment =
        offers().as_mut().and_then(|open| open.segments.remove(&token)?.segment.upgrade());
    let segment = segment.ok_or_else(|| io::Error::other("there is no such segment"))?;
    send_descriptor(receiver, segment.file().ok_or(io::ErrorKind::NotFound)?)
}

/// Gets the descriptor of an offered segment.
pub(super) fn get(offer: &SegmentOffer) -> io::Result<OwnedFd> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_write_timeout(Some(GET))?;
    socket.set_read_timeout(Some(GET))?;
    socket.connect(&address(&offer.socket)?)?;
    check_user(&socket)?;
    socket.send_with_flags(&offer.token, libc::MSG_NOSIGNAL)?;
    receive_descriptor(&socket)
}

/// Fails unless the process at the other end belongs to the user of this one, or to root.
fn check_user(socket: &Socket) -> io::Result<()> {
    let user = peer_user(socket)?;
    if user == sys::user() || user == 0 {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("it belongs to user {user}")))
}

/// A socket with a random name that gives nothing by itself.
#[cfg(test)]
pub(super) fn rogue() -> (SocketName, Socket) {
    let (name, socket) =
        (random().unwrap(), Socket::new(Domain::UNIX, Type::STREAM, None).unwrap());
    socket.bind(&address(&name).unwrap()).unwrap();
    socket.listen(BACKLOG).unwrap();
    (name, socket)
}
