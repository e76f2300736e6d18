//! A connection with one peer, and its sending side. Reading is the part of `readers`, and so is sending
//! what the socket has not taken at once.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockRef, Socket, TcpKeepalive, Type};

use super::call_backs::CallBacks;
use super::framing::{HEAD, MessageKind, head};
use super::greeting::Lane;
use crate::sys;
use crate::sys::sync::Mutex;
use crate::transport::send_buffer::{LentPart, PooledBuffer};
use crate::transport::tls::{Sealer, TlsError, records_len, write_content};
use crate::transport::{SendBuffers, SendQueue, who_and_address};

/// Idle time before the first TCP keepalive probe. A connection may be idle for long between rounds; probes
/// keep its state in firewalls and NAT, and end it when the other machine is gone.
const QUIET: Duration = Duration::from_secs(60);

/// A write to a broken connection must not end the process by SIGPIPE.
const FLAGS: i32 = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;

/// Maximum number of slices of one call (`IOV_MAX`).
const MOST_SLICES: usize = 1_024;
/// Maximum number of spare buffers for records of TLS in a process, and of bytes in one.
const SPARE: usize = 4;
const MOST_SPARE_BYTES: usize = 1 << 20;

/// An admitted connection.
pub(super) struct Connection {
    socket: TcpStream,
    /// The peer, as in [`crate::transport::Inbox::arrived`].
    from: String,
    lane: Lane,
    /// Whether this process sends over it, if it has another one with the peer.
    is_preferred: bool,
    /// Whether it carries records of TLS.
    is_sealed: bool,
    write: Mutex<WriteHalf>,
    ended: AtomicBool,
    /// The peer has announced the end of its process.
    said_goodbye: AtomicBool,
    /// Of the thread that reads from it.
    call_backs: Arc<CallBacks>,
}

/// Queues that wait for a connection: mostly one.
pub(super) type WaitingQueues = SmallVec<[Weak<dyn SendQueue>; 1]>;

struct WriteHalf {
    sealer: Option<Sealer>,
    records: Arc<RecordBuffers>,
    /// Bytes that the socket has not taken yet: what was lent is referenced, not copied.
    owed: VecDeque<Bytes>,
    /// When the socket last took bytes while some were owed.
    progress: Instant,
    /// The queues to call when no bytes are owed.
    waiting: WaitingQueues,
    /// The sending direction is to be closed behind the owed bytes.
    is_finishing: bool,
}

/// Spare buffers for records of TLS: an idle connection has none.
#[derive(Default)]
pub(super) struct RecordBuffers(Mutex<Vec<Vec<u8>>>);

/// A buffer that returns to its pool when it is dropped.
struct RecordBuffer {
    bytes: Vec<u8>,
    home: Arc<RecordBuffers>,
}

impl RecordBuffers {
    fn take(self: &Arc<Self>) -> RecordBuffer {
        let bytes = self.0.lock().pop().unwrap_or_default();
        RecordBuffer { bytes, home: Arc::clone(self) }
    }
}

impl AsRef<[u8]> for RecordBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for RecordBuffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut spare = self.home.0.lock();
        if spare.len() < SPARE && (1..=MOST_SPARE_BYTES).contains(&bytes.capacity()) {
            spare.push(bytes);
        }
    }
}

/// A new socket, to connect or bind to an address.
pub(super) fn socket_for(address: &SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
    #[cfg(target_os = "linux")]
    if address.ip().to_canonical().is_loopback() {
        // No link is shared there, and congestion control that paces (BBR) has a timer for each few packets.
        // Accepted connections inherit it. A system that refuses keeps its own.
        _ = socket.set_tcp_congestion(b"reno");
    }
    Ok(socket)
}

/// Sets the options of a socket, before its first byte.
pub(super) fn prepare(socket: &TcpStream) -> io::Result<()> {
    socket.set_nodelay(true)?;
    SockRef::from(socket).set_tcp_keepalive(&TcpKeepalive::new().with_time(QUIET))
}

impl Connection {
    /// `call_backs` are those of the thread that reads from it.
    pub(super) fn new(
        socket: TcpStream,
        from: String,
        (lane, is_preferred): (Lane, bool),
        sealer: Option<Sealer>,
        records: &Arc<RecordBuffers>,
        call_backs: &Arc<CallBacks>,
    ) -> Arc<Self> {
        let is_sealed = sealer.is_some();
        let write = WriteHalf {
            sealer,
            records: Arc::clone(records),
            owed: VecDeque::new(),
            progress: Instant::now(),
            waiting: WaitingQueues::new(),
            is_finishing: false,
        };
        Arc::new(Self {
            socket,
            from,
            lane,
            is_preferred,
            is_sealed,
            write: Mutex::new(write),
            ended: AtomicBool::new(false),
            said_goodbye: AtomicBool::new(false),
            call_backs: Arc::clone(call_backs),
        })
    }

    pub(super) fn from(&self) -> &str {
        &self.from
    }

    /// The address at which the peer is reached.
    pub(super) fn address(&self) -> &str {
        who_and_address(&self.from).1
    }

    pub(super) fn lane(&self) -> Lane {
        self.lane
    }

    pub(super) fn is_preferred(&self) -> bool {
        self.is_preferred
    }

    pub(super) fn is_sealed(&self) -> bool {
        self.is_sealed
    }

    pub(super) fn fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Those of the thread that reads from it.
    pub(super) fn call_backs(&self) -> &Arc<CallBacks> {
        &self.call_backs
    }

    pub(super) fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// The peer announces the end of its process.
    pub(super) fn take_goodbye(&self) {
        self.said_goodbye.store(true, Ordering::Release);
    }

    pub(super) fn has_said_goodbye(&self) -> bool {
        self.said_goodbye.load(Ordering::Acquire)
    }

    /// Ends the connection in both directions: its reader notices, and each write fails. Queues that wait for
    /// it are called.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        // The socket may be closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
        let mut write = self.write.lock();
        if write.owes() {
            write.owed = VecDeque::new();
            self.call_backs.owe(false);
        }
        let waiting = std::mem::take(&mut write.waiting);
        drop(write);
        waiting.into_iter().for_each(|queue| self.call_backs.post(queue));
    }

    /// Tells the peer by an alert of TLS why the connection ends.
    pub(super) fn alert(&self, error: &TlsError) {
        let mut write = self.write.lock();
        // A peer that takes no bytes gets no alert either.
        let _ = write.seal(self, |sealer, out| {
            sealer.alert(error, out);
            Ok(())
        });
    }

    /// Ends the connection behind what was sent, with the notice that this process ends; bytes of the peer
    /// are still read.
    pub(super) fn finish(&self) {
        let mut write = self.write.lock();
        if !self.is_open() {
            return;
        }
        // After an error the peer has no connection either.
        let _ = write.send(self, MessageKind::Goodbye, Vec::new(), &[]);
        let _ = write.seal(self, |sealer, out| {
            sealer.close(out);
            Ok(())
        });
        self.ended.store(true, Ordering::Release);
        write.is_finishing = true;
        write.finish(self);
    }

    /// Whether bytes of earlier messages are still unsent.
    pub(super) fn owes(&self) -> bool {
        self.write.lock().owes()
    }

    /// Whether the peer has taken no owed byte for this time.
    pub(super) fn is_stuck(&self, patience: Duration) -> bool {
        let write = self.write.lock();
        write.owes() && write.progress.elapsed() > patience
    }

    /// Sends a message with scatter/gather: each lent slice follows its number of own bytes. Bytes that the
    /// socket does not take at once are owed. After an error the connection is unusable.
    pub(super) fn send(
        &self,
        kind: MessageKind,
        own: impl AsRef<[u8]> + Send + 'static,
        lent: &[(usize, LentPart)],
    ) -> io::Result<()> {
        self.write.lock().send(self, kind, own, lent)
    }

    /// Sends frames in two parts, neither of which is read behind the call: what is owed is copied. Without records.
    pub(super) fn send_from_place(
        &self,
        frames: [&[u8]; 2],
        spare: &Arc<SendBuffers>,
    ) -> io::Result<()> {
        self.write.lock().send_from_place(self, frames, spare)
    }

    /// Sends frames that lie in records, `len` bytes behind the place of the head of their message. Without TLS
    /// they are lost: they have no checksums.
    pub(super) fn send_records(&self, records: PooledBuffer, len: usize) -> io::Result<()> {
        self.write.lock().send_records(self, records, len)
    }

    /// Has the queue called on the thread that reads from this connection, once no bytes are owed.
    pub(super) fn call_back(&self, queue: Weak<dyn SendQueue>) {
        let mut write = self.write.lock();
        if write.owes() && self.is_open() {
            // A queue may wait for several connections, and for this one from the time before.
            if !write.waiting.iter().any(|waiting| waiting.ptr_eq(&queue)) {
                write.waiting.push(queue);
            }
        } else {
            drop(write);
            self.call_backs.post(queue);
        }
    }

    /// Sends owed bytes, as many as the socket takes; gives the queues to call if none are left.
    pub(super) fn pay(&self) -> io::Result<WaitingQueues> {
        let mut write = self.write.lock();
        write.flush(self)?;
        if write.owes() {
            return Ok(WaitingQueues::new());
        }
        write.finish(self);
        Ok(std::mem::take(&mut write.waiting))
    }

    /// Reads what has arrived.
    pub(super) fn receive(&self, room: &mut [u8]) -> io::Result<usize> {
        sys::receive_now(self.fd(), room)
    }

    /// As `receive`, to memory without a value.
    pub(super) fn receive_into(&self, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        sys::receive_into(self.fd(), room)
    }

    /// Number of bytes taken; None if the socket takes none now.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<Option<usize>> {
        let slices = &slices[..slices.len().min(MOST_SLICES)];
        loop {
            match SockRef::from(&self.socket).send_vectored_with_flags(slices, FLAGS) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => return Ok(Some(count)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }
}

impl WriteHalf {
    fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    fn send(
        &mut self,
        connection: &Connection,
        kind: MessageKind,
        own: impl AsRef<[u8]> + Send + 'static,
        lent: &[(usize, LentPart)],
    ) -> io::Result<()> {
        let len = own.as_ref().len() + lent.iter().map(|(_, lent)| lent.len()).sum::<usize>();
        let head = head(kind, len)?;
        let sent = self.try_send(connection, &head, own.as_ref(), lent)?;
        if sent < HEAD + len {
            self.begin(connection);
            self.owe(sent, &head, &Bytes::from_owner(own), lent);
        }
        Ok(())
    }

    fn send_from_place(
        &mut self,
        connection: &Connection,
        [front, payload]: [&[u8]; 2],
        spare: &Arc<SendBuffers>,
    ) -> io::Result<()> {
        let head = head(MessageKind::Frames, front.len() + payload.len())?;
        let parts = [&head[..], front, payload];
        let len: usize = parts.iter().map(|part| part.len()).sum();
        let mut sent = self.write_all(connection, &mut parts.map(IoSlice::new), len)?;
        if sent < len {
            let mut rest = spare.take(len - sent);
            for part in parts {
                let skip = sent.min(part.len());
                sent -= skip;
                rest.copy(&part[skip..]);
            }
            self.begin(connection);
            self.owed.extend(rest.into_own().map(Bytes::from_owner));
        }
        Ok(())
    }

    /// Number of the `len` bytes of some slices that the socket takes, if nothing is owed before them.
    fn write_all(
        &self,
        connection: &Connection,
        mut slices: &mut [IoSlice<'_>],
        len: usize,
    ) -> io::Result<usize> {
        let mut sent = 0;
        while !self.owes() && sent < len {
            let Some(count) = connection.write(slices)? else { break };
            IoSlice::advance_slices(&mut slices, count);
            sent += count;
        }
        Ok(sent)
    }

    /// Number of bytes that are sent, or sealed.
    fn try_send(
        &mut self,
        connection: &Connection,
        head: &[u8],
        own: &[u8],
        lent: &[(usize, LentPart)],
    ) -> io::Result<usize> {
        let mut slices = SmallVec::<[IoSlice<'_>; 8]>::new();
        slices.push(IoSlice::new(head));
        let mut taken = 0;
        for (at, lent) in lent {
            slices.extend([IoSlice::new(&own[taken..*at]), IoSlice::new(lent)]);
            taken = *at;
        }
        slices.push(IoSlice::new(&own[taken..]));
        let len = slices.iter().map(|slice| slice.len()).sum();
        if self.sealer.is_some() {
            self.seal(connection, |sealer, out| sealer.seal(&slices, out))?;
            return Ok(len);
        }
        self.write_all(connection, &mut slices, len)
    }

    /// Keeps a message behind its first `sent` bytes.
    fn owe(&mut self, mut sent: usize, head: &[u8], own: &Bytes, lent: &[(usize, LentPart)]) {
        let mut keep = |part: Bytes| {
            let skip = sent.min(part.len());
            sent -= skip;
            if skip < part.len() {
                self.owed.push_back(part.slice(skip..));
            }
        };
        keep(Bytes::copy_from_slice(head));
        let mut taken = 0;
        for (at, lent) in lent {
            keep(own.slice(taken..*at));
            keep(Bytes::from_owner(lent.clone()));
            taken = *at;
        }
        keep(own.slice(taken..));
    }

    /// The peer has its time from the first owed byte on.
    fn begin(&mut self, connection: &Connection) {
        if !self.owes() {
            connection.call_backs.owe(true);
            self.progress = Instant::now();
        }
    }

    /// Sends records of TLS, if there is TLS.
    fn seal(
        &mut self,
        connection: &Connection,
        seal: impl FnOnce(&mut Sealer, &mut Vec<u8>) -> Result<(), TlsError>,
    ) -> io::Result<()> {
        let Some(sealer) = &mut self.sealer else { return Ok(()) };
        let mut records = self.records.take();
        seal(sealer, &mut records.bytes).map_err(io::Error::other)?;
        self.put(connection, records)
    }

    fn send_records(
        &mut self,
        connection: &Connection,
        mut records: PooledBuffer,
        len: usize,
    ) -> io::Result<()> {
        let Some(sealer) = &mut self.sealer else { return Ok(()) };
        let (image, len, mut before) = (records.bytes_mut(), HEAD + len, Vec::new());
        write_content(image, 0, &head(MessageKind::Frames, len - HEAD)?);
        let is_sealed = sealer.seal_image(image, len, &mut before).map_err(io::Error::other)?;
        if !before.is_empty() {
            self.put(connection, before)?;
        }
        if is_sealed { self.put(connection, records.cut(records_len(len))) } else { Ok(()) }
    }

    /// Sends bytes behind those that are owed, and owes what the socket does not take.
    fn put(
        &mut self,
        connection: &Connection,
        bytes: impl AsRef<[u8]> + Send + 'static,
    ) -> io::Result<()> {
        let (mut sent, len) = (0, bytes.as_ref().len());
        while !self.owes() && sent < len {
            let Some(count) = connection.write(&[IoSlice::new(&bytes.as_ref()[sent..])])? else {
                break;
            };
            sent += count;
        }
        if sent < len {
            self.begin(connection);
            self.owed.push_back(Bytes::from_owner(bytes).slice(sent..));
        }
        Ok(())
    }

    fn flush(&mut self, connection: &Connection) -> io::Result<()> {
        while self.owes() {
            let slices = self.owed.iter().take(MOST_SLICES).map(|part| IoSlice::new(part));
            let slices: SmallVec<[IoSlice<'_>; 8]> = slices.collect();
            let taken = connection.write(&slices)?;
            drop(slices);
            let Some(mut count) = taken else { return Ok(()) };
            self.progress = Instant::now();
            while let Some(first) = self.owed.front_mut() {
                if count < first.len() {
                    bytes::Buf::advance(first, count);
                    break;
                }
                count -= first.len();
                self.owed.pop_front();
            }
            if !self.owes() {
                connection.call_backs.owe(false);
            }
        }
        Ok(())
    }

    /// Closes the sending direction if that is due.
    fn finish(&mut self, connection: &Connection) {
        if self.is_finishing && !self.owes() {
            self.is_finishing = false;
            let _ = connection.socket.shutdown(Shutdown::Write);
        }
    }
}
