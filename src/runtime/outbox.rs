//! Encodes messages into bytes for the transport: one path for each address, its messages in order. Also called:
//! send queues, egress.
//!
//! A send does not wait. What a peer does not take stays with its connection, and the next messages stay in
//! their path until a thread of the transport calls it (backpressure). A send takes time, so it never runs
//! under the lock of the machine.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use foldhash::HashMap;
use smallvec::SmallVec;

use super::buffers::{Bytes, InPlace};
use crate::log::{Level, log};
use crate::panics;
use crate::sys::has_few_processors;
use crate::sys::sync::Mutex;
use crate::transport::{SendBuffer, SendMode, SendQueue, Sender, Transport};
use kvstore_protocol::{
    Body, BundleParts, Header, Message, OutgoingFrame, write_front, write_parts,
};

/// Maximum size of a batch of small messages, in bytes.
const TOGETHER: u64 = 192 << 10;

/// Maximum number of messages of a batch whose memory is kept.
const MOST_AT_ONCE: usize = 1_024;

/// Maximum number of open paths to non-members (rejected processes and observers), beside those to members.
/// The least recently used one is closed.
const MOST_WAYS: usize = 16;
/// Maximum number of further paths to non-members while all paths are in use.
const MOST_BUSY: usize = 32;

/// Size in bytes from which payloads are sent from their place (zero copy); smaller ones are copied as fast.
const LENT: usize = 16 << 10;

/// Size in bytes from which payloads in memory of callers are sent from their place: of smaller ones the sum costs
/// as much alone as with a copy.
const LENT_BRIEFLY: usize = 64 << 10;

/// Bytes of the front of a frame for which no memory is allocated.
const FRONT: usize = 192;

/// Bytes that a thread of the transport sends over one path before it turns to others.
const TURN: u64 = 1 << 20;

/// Bytes in flight up to which a posting thread sends by itself: the socket's queue is larger, even if the peer
/// is stopped.
const CALM: u64 = 512 << 10;

/// Called after a panic on a thread of the transport.
type PanicHandler = Arc<dyn Fn(&str) + Send + Sync>;

/// Paths to which a step of the machine has posted.
pub(super) type PeerPaths = SmallVec<[Arc<PeerPath>; 8]>;

type PeerQueues = HashMap<Arc<str>, Arc<PeerPath>>;

pub(crate) struct Outbox {
    transport: Arc<dyn Transport>,
    alarm: PanicHandler,
    ways: Mutex<PeerQueues>,
    /// Number of members of the job: this many paths stay open, whatever the number of further peers.
    members: usize,
    posts: AtomicU64,
}

/// Path to one address.
pub(crate) struct PeerPath {
    to: Arc<str>,
    state: Mutex<PathState>,
    alarm: PanicHandler,
    /// Whether the peer is a member of the job.
    is_of_member: AtomicBool,
}

#[derive(Default)]
struct PathState {
    messages: VecDeque<Message<Bytes>>,
    bytes: u64,
    /// Memory of the last batch.
    sent: Vec<Message<Bytes>>,
    /// Unacknowledged bytes in flight when the last message was posted.
    backlog: u64,
    /// None while a thread sends with it.
    line: Option<Box<dyn Sender>>,
    closed: bool,
    /// The transport is to call this path.
    is_called_back: bool,
    /// The number of the last post, for the least recently used order.
    used: u64,
}

impl Outbox {
    pub(crate) fn new(transport: Arc<dyn Transport>, members: usize, alarm: PanicHandler) -> Self {
        Self { transport, alarm, ways: Mutex::default(), members, posts: AtomicU64::new(0) }
    }

    /// Queues frames; their paths are added to `ways`, and the caller flushes them afterwards.
    pub(crate) fn post(
        &self,
        frames: impl Iterator<Item = OutgoingFrame<Bytes>>,
        ways: &mut PeerPaths,
    ) {
        let mut frames = frames.peekable();
        while let Some(first) = frames.next() {
            let to = Arc::clone(&first.to);
            let way = if let Some(known) = ways.iter().find(|way| way.to == to) {
                Arc::clone(known)
            } else if let Some(way) = self.way(&to, first.backlog.is_some()) {
                ways.push(Arc::clone(&way));
                way
            } else {
                continue;
            };
            let mut state = way.state.lock();
            // Relaxed: only the order of use matters, and that not exactly.
            state.used = self.posts.fetch_add(1, Ordering::Relaxed);
            state.post(first);
            while let Some(next) = frames.next_if(|frame| Arc::ptr_eq(&frame.to, &to)) {
                state.post(next);
            }
        }
    }

    fn way(&self, to: &Arc<str>, is_of_member: bool) -> Option<Arc<PeerPath>> {
        let mut ways = self.ways.lock();
        let known = ways.get(to).cloned();
        if known.is_none() && !is_of_member && !has_room(&mut ways) {
            log(Level::Debug, || format!("nothing is sent to {to}: too many are answered now"));
            return None;
        }
        let way = known.unwrap_or_else(|| {
            let way = self.new_way(to, |queue| self.transport.line(to, queue));
            ways.insert(Arc::clone(to), Arc::clone(&way));
            way
        });
        // Relaxed: written under the lock of the paths.
        if is_of_member && !way.is_of_member.swap(true, Ordering::Relaxed) {
            self.release_member(&ways, &way);
        }
        Some(way)
    }

    fn new_way(
        &self,
        to: &Arc<str>,
        line: impl FnOnce(Weak<dyn SendQueue>) -> Box<dyn Sender>,
    ) -> Arc<PeerPath> {
        Arc::new_cyclic(|way: &Weak<PeerPath>| {
            let line = Some(line(Weak::clone(way) as Weak<dyn SendQueue>));
            PeerPath {
                to: Arc::clone(to),
                state: Mutex::new(PathState { line, ..PathState::default() }),
                alarm: Arc::clone(&self.alarm),
                is_of_member: AtomicBool::new(false),
            }
        })
    }

    /// With more paths to members than there are members, the least recently used one leads to a former
    /// member.
    fn release_member(&self, ways: &PeerQueues, new: &Arc<PeerPath>) {
        let members = || ways.values().filter(|way| way.is_of_member());
        if members().count() > self.members {
            let others = members().filter(|way| !Arc::ptr_eq(way, new));
            if let Some(way) = others.min_by_key(|way| way.state.lock().used) {
                way.is_of_member.store(false, Ordering::Relaxed);
            }
        }
    }

    /// Whether all posted messages have been sent, or dropped.
    pub(crate) fn is_empty(&self) -> bool {
        self.ways.lock().values().all(|way| way.state.lock().is_idle())
    }

    /// Closes the path to an address that no process has any more.
    pub(crate) fn forget(&self, to: &str) {
        if let Some(way) = self.ways.lock().remove(to) {
            way.end();
        }
    }

    /// Closes all paths.
    pub(crate) fn close(&self) {
        for (_, way) in self.ways.lock().drain() {
            way.end();
        }
    }
}

/// Whether there is room for a path to one more non-member, if need be after idle ones are closed.
fn has_room(ways: &mut PeerQueues) -> bool {
    let strangers = |ways: &PeerQueues| ways.values().filter(|way| !way.is_of_member()).count();
    while strangers(ways) >= MOST_WAYS && end_oldest(ways) {}
    strangers(ways) < MOST_WAYS + MOST_BUSY
}

/// Closes the path to a non-member that has been idle for the longest time, if there is one.
fn end_oldest(ways: &mut PeerQueues) -> bool {
    let strangers = ways.values().filter(|way| !way.is_of_member());
    let idle = strangers.filter_map(|way| {
        let state = way.state.lock();
        state.is_idle().then(|| (state.used, Arc::clone(&way.to)))
    });
    let Some((_, to)) = idle.min() else { return false };
    ways.remove(&to).inspect(|way| way.end()).is_some()
}

impl PeerPath {
    /// Called under the lock of the paths.
    fn is_of_member(&self) -> bool {
        self.is_of_member.load(Ordering::Relaxed)
    }

    fn end(&self) {
        self.state.lock().closed = true;
    }

    /// Sends queued messages, on this thread if that is worth it.
    pub(crate) fn flush(&self) {
        let mut state = self.state.lock();
        while state.can_send_at_once()
            && let Some(line) = state.line.take()
        {
            let mut batch = state.batch();
            drop(state);
            let line = Self::send(line, &batch);
            batch.clear();
            state = self.state.lock();
            (state.line, state.sent) = (Some(line), batch);
        }
        state.call_back();
    }

    fn send(mut line: Box<dyn Sender>, batch: &[Message<Bytes>]) -> Box<dyn Sender> {
        if let [message] = batch
            && send_loan(message, &mut *line)
        {
            return line;
        }
        let room: usize = batch.iter().map(|message| length(message.frame_len())).sum();
        let mut parcel = line.parcel(room, batch.iter().map(lent).sum());
        batch.iter().for_each(|message| pack(message, &mut parcel));
        if parcel.len() > 0 {
            if let [Message { head, body: Body::Data(_) }] = batch {
                parcel.is_frame(head.len());
            }
            line.send(parcel);
        }
        line
    }

    /// Sends queued messages while the peer takes them, for one turn.
    fn serve(&self) {
        let mut state = self.state.lock();
        state.is_called_back = false;
        let mut sent = 0;
        while sent < TURN
            && state.can_send()
            && let Some(line) = state.line.take()
        {
            let before = state.bytes;
            let mut batch = state.batch();
            sent += before - state.bytes;
            drop(state);
            let line = Self::send(line, &batch);
            batch.clear();
            state = self.state.lock();
            (state.line, state.sent) = (Some(line), batch);
        }
        state.call_back();
    }
}

impl SendQueue for PeerPath {
    fn go_on(self: Arc<Self>) {
        if let Err(panic) = panics::catch(|| self.serve()) {
            (self.alarm)(&panic);
        }
    }
}

/// Sends a message with a large payload in memory of a caller without a copy; false if it has none, or the sender
/// does not take it. A call does not end while its memory is read.
fn send_loan(message: &Message<Bytes>, line: &mut dyn Sender) -> bool {
    let Body::Data(data) = &message.body else { return false };
    if !data.is_loan(LENT_BRIEFLY) || !line.sends_from_place(length(message.frame_len())) {
        return false;
    }
    let head = &message.head;
    // None: the loan has ended, and the payload was already acknowledged.
    let _ = data.read(|payload| {
        let mut front = SmallVec::<[u8; FRONT]>::from_elem(0, head.len());
        let sum = kvstore_checksum::crc32c(payload);
        _ = write_front(head, payload.len(), sum, &mut front);
        line.send_from_place(&front, payload);
    });
    true
}

/// Encodes a message into a buffer.
fn pack(Message { head, body }: &Message<Bytes>, parcel: &mut SendBuffer) {
    let data = match body {
        Body::Fields(fields) => return frame(head, parcel, |it| Some(it.copy_summed(fields))),
        Body::Parts(parts) => return frame(head, parcel, |it| bundle(head, parts, it)),
        Body::Data(data) => data,
    };
    let in_place = data.in_place();
    match (in_place, in_place.and_then(InPlace::known_checksum)) {
        (Some(data), _) if parcel.borrows() && is_worth_a_loan(&data) => {
            let sum = data.checksum();
            parcel.put(head.len(), |room| _ = write_front(head, data.len(), sum, room));
            parcel.lend(data.lend());
        }
        (Some(data), Some(sum)) => {
            parcel.put(head.len(), |room| _ = write_front(head, data.len(), sum, room));
            parcel.copy(data.bytes());
        }
        _ => frame(head, parcel, |it| data.read(|data| it.copy_summed(data))),
    }
}

/// Appends a frame with the payload that `append` appends; nothing if it gives no checksum: the loan has ended,
/// and the payload was already acknowledged.
fn frame(
    head: &Header,
    parcel: &mut SendBuffer,
    append: impl FnOnce(&mut SendBuffer) -> Option<u32>,
) {
    let (at, front) = (parcel.len(), head.len());
    parcel.leave(front);
    let Some(sum) = append(parcel) else { return parcel.cut(at) };
    let payload = parcel.len() - at - front;
    parcel.fill(at, front, |room| _ = write_front(head, payload, sum, room));
}

thread_local! {
    /// Image of a bundle, of which only the part in front of the payloads is written: the payloads go to the
    /// buffer at once.
    static IMAGE: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Appends the payload of a bundle; None if one of it is no longer needed: one acknowledgement is for all.
fn bundle(head: &Header, parts: &BundleParts<Bytes>, parcel: &mut SendBuffer) -> Option<u32> {
    let (len, parts) = (length(parts.len()), parts.messages());
    let front = head.covered(len);
    let at = parcel.leave(front);
    IMAGE.with_borrow_mut(|image| {
        if image.len() < len {
            *image = vec![0; len];
        }
        let parcel = RefCell::new(parcel);
        let sum = write_parts(parts, &mut image[..len], |body, _| {
            let mut parcel = parcel.borrow_mut();
            match body {
                Body::Data(data) => match data.in_place().and_then(InPlace::known_checksum) {
                    Some(sum) => data.read(|bytes| parcel.copy(bytes)).map(|()| sum),
                    None => data.read(|bytes| parcel.copy_summed(bytes)),
                },
                Body::Fields(fields) => Some(parcel.copy_summed(fields)),
                Body::Parts(_) => None,
            }
        })?;
        let parcel = parcel.into_inner();
        parcel.fill_with(at, &image[..front]);
        Some(sum)
    })
}

/// Number of bytes of a message that take no space in a buffer that borrows.
fn lent(message: &Message<Bytes>) -> usize {
    let Body::Data(data) = &message.body else { return 0 };
    data.in_place().filter(is_worth_a_loan).map_or(0, InPlace::len)
}

/// Whether a message is copied anyway, and small.
fn is_small(message: &Message<Bytes>) -> bool {
    matches!(message.body, Body::Parts(_)) || length(message.frame_len()) <= LENT
}

fn is_worth_a_loan(data: &InPlace<'_>) -> bool {
    data.len() >= LENT
}

fn length(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(0)
}

impl PathState {
    fn post(&mut self, OutgoingFrame { message, backlog, .. }: OutgoingFrame<Bytes>) {
        self.bytes += message.frame_len();
        self.backlog = backlog.unwrap_or(0);
        self.messages.push_back(message);
    }

    /// Whether there is something to send, as far as is known while no thread sends.
    fn has_work(&self) -> bool {
        !self.messages.is_empty() || self.line.as_ref().is_some_and(|line| line.owes())
    }

    /// Whether all posted messages have been sent, or dropped.
    fn is_idle(&self) -> bool {
        self.line.is_some() && !self.has_work()
    }

    /// Whether there is a message that the sender takes.
    fn can_send(&mut self) -> bool {
        let has_work = !self.closed && !self.messages.is_empty();
        has_work && self.line.as_mut().is_some_and(|line| line.is_ready())
    }

    /// Has the transport call this path when the sender takes the messages that are left. A thread that sends
    /// with it does so at its end.
    fn call_back(&mut self) {
        if let Some(line) = &mut self.line
            && !self.closed
            && !self.messages.is_empty()
            && !std::mem::replace(&mut self.is_called_back, true)
        {
            line.call_back();
        }
    }

    /// Whether the posting thread sends a queued message.
    fn can_send_at_once(&mut self) -> bool {
        if !self.can_send() {
            return false;
        }
        let (Some(line), Some(first)) = (&mut self.line, self.messages.front()) else {
            return false;
        };
        let is_calm = self.bytes <= CALM && self.backlog <= CALM;
        if is_calm || !has_few_processors() {
            return is_calm;
        }
        // Another thread would only add latency, unless it copies much meanwhile. The next batch has no more
        // bytes than this.
        match line.room_for(length(self.bytes.min(TOGETHER).max(first.frame_len()))) {
            SendMode::Memory => true,
            SendMode::System => is_small(first),
            SendMode::Unknown => false,
        }
    }

    /// The messages of the next batch.
    fn batch(&mut self) -> Vec<Message<Bytes>> {
        let (mut batch, mut bytes) = (std::mem::take(&mut self.sent), 0);
        batch.shrink_to(MOST_AT_ONCE);
        while let Some(message) = self.messages.pop_front() {
            let more = message.frame_len();
            if !batch.is_empty() && bytes + more > TOGETHER {
                self.messages.push_front(message);
                break;
            }
            bytes += more;
            self.bytes -= more;
            batch.push(message);
        }
        batch
    }
}

#[cfg(test)]
mod tests;
