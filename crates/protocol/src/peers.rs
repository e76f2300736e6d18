//! All links of one process, and the stamps on what it sends.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::job::{Data, Limits, MS, Peer, Role, Time, Token, take_all};
use super::message::{HEADER, Header, Kind, Look, Message};
use super::stream::{Link, Received};
use super::telemetry::Traffic;

/// Maximum number of echoes in each such time; an observer that gets none asks again.
const MOST_ECHOES: u32 = 32;
const ECHO_SPAN: Time = 100 * MS;

/// A frame for the engine: where to, and what.
pub struct Frame<D> {
    pub to: Arc<str>,
    pub message: Message<D>,
    /// Bytes of its link that are not known to have arrived, with this one. A frame outside of any link
    /// has none: whoever gets it need not be a member of the job.
    pub backlog: Option<u64>,
}

/// What has changed for this process.
#[derive(Debug)]
pub enum News {
    /// A stream to a peer begins, or has ended.
    Up(Peer, Arc<str>),
    Down(Peer),
    Epoch(u32),
    /// A member is lost: where it was, and why it counts as lost.
    Lost(Peer, String, String),
    /// A process that was declared lost is told so.
    Evicted(Peer, String),
    /// This process cannot go on, and why.
    Fatal(String),
    /// A frame of a process that has this name had no effect.
    Dropped(Peer, Why),
    /// A message of a traced round was sent or received.
    Passed(Passage),
    /// The scheduler was asked for its clock, and answered, at these times; the clock that it gave.
    Clock {
        asked: Time,
        answered: Time,
        clock: Time,
    },
}

/// The way of a message with values, as seen at one of its two ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// A value of a server, rather than a push of a worker.
    pub is_value: bool,
    /// This process sent it, rather than received it.
    pub is_sent: bool,
    pub key: u64,
    pub slice: u32,
    pub round: u64,
    /// Ranks of both ends.
    pub worker: u32,
    pub server: u32,
    /// Number of the worker's request.
    pub request: u64,
    pub at: Time,
}

/// Why a frame is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    OtherJob,
    /// Of a process that had the rank before the linked one.
    Earlier,
    /// Meant for a process that was at our place before.
    Former,
    /// From a process that there is no stream to.
    Stranger,
    /// A hello with the incarnation of another process.
    Foreign,
    /// Its fields cannot be read, or its kind is not for us.
    Unreadable,
    /// An answer to a request that was never made.
    Unasked,
    /// Not for what the request is about, or not as long as its slice.
    Misfit,
    /// Beyond what its sender may have on its way.
    Far,
    /// A pull of a round that will never be, which is answered so at once.
    Unanswerable,
}

impl Why {
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::OtherJob => "of another job",
            Self::Earlier => "of a process that had its rank before",
            Self::Former => "that was meant for a process before this one",
            Self::Stranger => "without a stream to its sender",
            Self::Foreign => "that introduces its sender as another process",
            Self::Unreadable => "that cannot be read, or is not for this process",
            Self::Unasked => "that answers no request of this process",
            Self::Misfit => "that does not fit the request or the key that it names",
            Self::Far => "far ahead of the messages that have arrived",
            Self::Unanswerable => "that can never be answered",
        }
    }

    /// What becomes of the frame.
    #[must_use]
    pub fn verb(self) -> &'static str {
        if self == Self::Unanswerable { "refused a pull" } else { "dropped a frame" }
    }

    /// Whether frames are dropped so in jobs where nothing is wrong, as members come and go.
    #[must_use]
    pub fn is_harmless(self) -> bool {
        matches!(self, Self::Earlier | Self::Former | Self::Stranger)
    }
}

/// A message to a peer, on its way to the link.
#[derive(Debug)]
pub(super) struct Letter<D> {
    pub(super) to: Peer,
    pub(super) message: Message<D>,
    pub(super) priority: i32,
    /// Comes back when the peer has it.
    pub(super) token: Option<Token>,
}

struct Line<D> {
    address: Arc<str>,
    link: Link<D>,
    /// The peer only reads: that it is heard says nothing about the way to the others.
    reads: bool,
}

/// What became of an incoming frame.
pub(super) enum Incoming<D> {
    /// From a linked incarnation.
    Linked(Received<D>),
    /// For another job, or from a process before the linked one.
    Stale,
    /// Meant for the process that was at our place before.
    Former(Peer, u64),
    /// From nobody that we have a link to, or a younger process than the one linked.
    Stranger(Message<D>),
}

pub(super) struct Net<D> {
    pub(super) limits: Limits,
    pub(super) me: Peer,
    pub(super) incarnation: u64,
    pub(super) epoch: u32,
    lines: BTreeMap<Peer, Line<D>>,
    frames: Vec<Frame<D>>,
    last_now: Time,
    /// When the last frame of any linked peer arrived; pauses of this process do not count.
    any_heard: Time,
    /// When this process last noticed a pause of its own.
    paused: Option<Time>,
    traffic: Traffic,
    /// First and last round whose messages with values are reported.
    pub(super) traced: Option<(u64, u64)>,
    news: Vec<News>,
    /// The epoch that was news.
    told: u32,
    /// How many echoes were sent since when.
    echoes: (Time, u32),
}

impl<D: Data> Net<D> {
    pub(super) fn new(limits: Limits, me: Peer, incarnation: u64, now: Time) -> Self {
        let lines = BTreeMap::new();
        let (frames, traffic) = (Vec::new(), Traffic::default());
        Self {
            limits,
            me,
            incarnation,
            epoch: 0,
            lines,
            frames,
            last_now: now,
            any_heard: now,
            paused: None,
            traffic,
            traced: None,
            news: Vec::new(),
            told: 0,
            echoes: (0, 0),
        }
    }

    /// Starts a fresh stream to a peer, whatever was before.
    pub(super) fn connect(&mut self, peer: Peer, incarnation: u64, address: &str, now: Time) {
        let (address, link): (Arc<str>, _) = (address.into(), Link::new(incarnation, now));
        self.news.push(News::Up(peer, Arc::clone(&address)));
        self.any_heard = self.any_heard.max(now);
        self.lines.insert(peer, Line { address, link, reads: false });
    }

    /// Notes that a linked peer only reads.
    pub(super) fn only_reads(&mut self, peer: Peer) {
        if let Some(line) = self.lines.get_mut(&peer) {
            line.reads = true;
        }
    }

    /// Whether a peer is linked, and takes part in the job.
    pub(super) fn takes_part(&self, peer: Peer) -> bool {
        self.lines.get(&peer).is_some_and(|line| !line.reads)
    }

    pub(super) fn disconnect(&mut self, peer: Peer) {
        self.news.extend(self.lines.remove(&peer).map(|_| News::Down(peer)));
    }

    /// What has changed since the last time.
    pub(super) fn news(&mut self) -> Vec<News> {
        if std::mem::replace(&mut self.told, self.epoch) != self.epoch {
            self.news.push(News::Epoch(self.epoch));
        }
        std::mem::take(&mut self.news)
    }

    /// Members turn out to be others: their streams go on under the right names.
    pub(super) fn rename(&mut self, names: &[(Peer, Peer)]) {
        let old: Vec<_> = names.iter().map(|(old, _)| self.lines.remove(old)).collect();
        for (line, (_, new)) in old.into_iter().zip(names) {
            self.lines.extend(line.map(|line| (*new, line)));
        }
    }

    pub(super) fn incarnation_of(&self, peer: Peer) -> Option<u64> {
        self.lines.get(&peer).map(|line| line.link.incarnation())
    }

    /// Address and incarnation of a peer that has a link.
    pub(super) fn linked(&self, peer: Peer) -> Option<(&str, u64)> {
        self.lines.get(&peer).map(|line| (&*line.address, line.link.incarnation()))
    }

    /// When the link to a peer was made.
    pub(super) fn linked_since(&self, peer: Peer) -> Option<Time> {
        self.lines.get(&peer).map(|line| line.link.since())
    }

    /// When a peer was heard last.
    pub(super) fn heard_at(&self, peer: Peer) -> Option<Time> {
        self.lines.get(&peer).map(|line| line.link.last_heard())
    }

    /// Whether a peer, in this incarnation, has ever been heard.
    pub(super) fn has_heard(&self, peer: Peer, incarnation: u64) -> bool {
        let line = self.lines.get(&peer).filter(|line| line.link.incarnation() == incarnation);
        line.is_some_and(|line| line.link.was_heard())
    }

    /// A member that is heard and acknowledges nothing.
    pub(super) fn unanswered(&self) -> Option<Peer> {
        let mut lines = self.lines.iter();
        lines.find(|(_, line)| line.link.is_unanswered(&self.limits)).map(|(peer, _)| *peer)
    }

    /// Queues a letter; one to a peer that is gone is dropped.
    pub(super) fn post(&mut self, letter: Letter<D>) {
        if let Some(line) = self.lines.get_mut(&letter.to) {
            line.link.queue(letter.message, letter.priority, letter.token);
        }
    }

    /// Sends one frame outside of any stream.
    pub(super) fn cast(&mut self, to: &str, to_incarnation: u64, message: Message<D>) {
        self.cast_into(self.limits.job, to, to_incarnation, message);
    }

    /// Sends one frame outside of any stream to a process of another job.
    pub(super) fn cast_into(
        &mut self,
        job: u64,
        to: &str,
        to_incarnation: u64,
        mut message: Message<D>,
    ) {
        message.head.to_incarnation = to_incarnation;
        stamp(&mut message.head, self.me, self.incarnation, self.epoch, job);
        self.frames.push(Frame { to: to.into(), message, backlog: None });
    }

    /// Whether one more echo can be sent now: a flood of questions costs a bounded time and memory.
    pub(super) fn may_echo(&mut self, now: Time) -> bool {
        if now >= self.echoes.0 + ECHO_SPAN {
            self.echoes = (now, 0);
        }
        self.echoes.1 += 1;
        self.echoes.1 <= MOST_ECHOES
    }

    /// Answers a Look of any job that asks for an echo; false if it asks for something else.
    pub(super) fn echo(&mut self, message: &Message<D>) -> bool {
        let Some((look, echo)) = Look::echo(message.fields()) else { return false };
        let mut answer = Message::new(Kind::Seen, echo);
        answer.head.request = message.head.request;
        let (job, incarnation) = (message.head.job, message.head.incarnation);
        self.cast_into(job, &look.address, incarnation, answer);
        true
    }

    /// `room` bounds the messages in line to the peer: beyond it nothing new of its stream is taken.
    pub(super) fn receive(&mut self, message: Message<D>, now: Time, room: usize) -> Incoming<D> {
        let head = &message.head;
        let peer = Peer { role: head.role, rank: head.rank };
        if head.job != self.limits.job {
            self.note_drop(peer, Why::OtherJob);
            return Incoming::Stale;
        }
        if ![0, self.incarnation].contains(&head.to_incarnation) {
            self.note_drop(peer, Why::Former);
            return Incoming::Former(peer, head.incarnation);
        }
        let Some(line) = self.lines.get_mut(&peer) else { return Incoming::Stranger(message) };
        match head.incarnation.cmp(&line.link.incarnation()) {
            // An older process that asks for the name is not always one that has ended.
            Ordering::Less if head.sequence == 0 && head.kind == Kind::Hello => {
                Incoming::Stranger(message)
            }
            Ordering::Less => {
                self.note_drop(peer, Why::Earlier);
                Incoming::Stale
            }
            Ordering::Greater => Incoming::Stranger(message),
            // Frames outside of the stream are for whoever keeps the members.
            Ordering::Equal if head.sequence == 0 && head.kind != Kind::Alive => {
                line.link.hear(now);
                if !line.reads {
                    self.any_heard = self.any_heard.max(now);
                }
                Incoming::Stranger(message)
            }
            Ordering::Equal => {
                if let Some(rounds) = self.traced {
                    passages(&message, rounds, (self.me, peer), now, false, &mut self.news);
                }
                if !line.reads {
                    self.any_heard = self.any_heard.max(now);
                }
                self.traffic.messages_in += 1;
                self.traffic.bytes_in += HEADER as u64 + message.body.len();
                let far = line.link.is_far(head.sequence, &self.limits);
                let received = line.link.receive(message, now, &self.limits, room);
                if far {
                    self.note_drop(peer, Why::Far);
                }
                Incoming::Linked(received)
            }
        }
    }

    /// Notes what is to be logged.
    pub(super) fn note(&mut self, news: News) {
        self.news.push(news);
    }

    pub(super) fn note_drop(&mut self, peer: Peer, why: Why) {
        self.news.push(News::Dropped(peer, why));
    }

    /// Whether a frame is of a linked incarnation, to us, and has not come before.
    pub(super) fn is_new(&self, head: &Header) -> bool {
        let ours = head.job == self.limits.job && head.to_incarnation == self.incarnation;
        let line = self.lines.get(&Peer { role: head.role, rank: head.rank });
        let link = line.map(|line| &line.link).filter(|_| ours);
        link.is_some_and(|link| {
            link.incarnation() == head.incarnation && link.is_new(head.sequence, &self.limits)
        })
    }

    /// What came was no frame.
    pub(super) fn note_bad(&mut self) {
        self.traffic.bad += 1;
    }

    /// What has gone over the links, and what is on its way.
    pub(super) fn traffic(&self) -> Traffic {
        let backlogs = self.lines.values().map(|line| line.link.backlog());
        let (queued, in_flight) = backlogs.fold((0, 0), |sum, it| (sum.0 + it.0, sum.1 + it.1));
        Traffic { queued, in_flight, ..self.traffic }
    }

    /// The moment of the last event.
    pub(super) fn last_now(&self) -> Time {
        self.last_now
    }

    /// Notices a pause of this process, which would make every peer look silent.
    pub(super) fn notice_pause(&mut self, now: Time) {
        let gap = now.saturating_sub(self.last_now);
        // Without a link no event was due.
        if gap > self.limits.pause() && !self.lines.is_empty() {
            self.lines.values_mut().for_each(|line| line.link.excuse(gap));
            self.any_heard += gap;
            self.paused = Some(now);
        }
        self.last_now = now;
    }

    /// The peers that were silent for too long; each is named again after another such time.
    pub(super) fn silent(&mut self, now: Time) -> Vec<Peer> {
        let mut silent = Vec::new();
        for (peer, line) in &mut self.lines {
            if now >= line.link.silent_at(&self.limits) {
                line.link.be_patient(now);
                silent.push(*peer);
            }
        }
        silent
    }

    /// Starts the silence timeout of every peer again.
    pub(super) fn be_patient(&mut self, now: Time) {
        self.lines.values_mut().for_each(|line| line.link.be_patient(now));
    }

    /// When the last frame of any linked peer arrived.
    pub(super) fn any_heard(&self) -> Time {
        self.any_heard
    }

    /// Whether frames of peers arrive, and this process did not pause lately. Then a connection that
    /// ends is the end of its peer; otherwise the engine may have closed it because of the silence.
    pub(super) fn is_attentive(&self, now: Time) -> bool {
        let paused = self.paused.is_some_and(|at| now < at + self.limits.peer_timeout);
        !paused && now <= self.any_heard + self.limits.pause()
    }

    /// All frames that are to be sent now.
    pub(super) fn send(&mut self, now: Time) -> Vec<Frame<D>> {
        let (me, incarnation, epoch) = (self.me, self.incarnation, self.epoch);
        for (peer, line) in &mut self.lines {
            let Line { address, link, .. } = line;
            let to_incarnation = link.incarnation();
            let traffic = &mut self.traffic;
            link.send(now, &self.limits, |mut message, backlog| {
                if let Some(rounds) = self.traced {
                    passages(&message, rounds, (me, *peer), now, true, &mut self.news);
                }
                traffic.messages_out += 1;
                traffic.bytes_out += HEADER as u64 + message.body.len();
                message.head.to_incarnation = to_incarnation;
                stamp(&mut message.head, me, incarnation, epoch, self.limits.job);
                let backlog = Some(backlog);
                self.frames.push(Frame { to: address.clone(), message, backlog });
            });
            self.traffic.resent += std::mem::take(&mut link.resent);
        }
        take_all(&mut self.frames)
    }

    pub(super) fn wake_at(&self) -> Time {
        let wake =
            |line: &Line<D>| line.link.wake_at(&self.limits).min(line.link.silent_at(&self.limits));
        self.lines.values().map(wake).min().unwrap_or(Time::MAX)
    }
}

/// Reports the values of a message between this process and another one, if their round is traced.
fn passages<D: Data>(
    message: &Message<D>,
    (first, last): (u64, u64),
    (me, other): (Peer, Peer),
    at: Time,
    is_sent: bool,
    news: &mut Vec<News>,
) {
    let (worker, server) = if me.role == Role::Worker { (me, other) } else { (other, me) };
    let (worker, server) = (worker.rank, server.rank);
    for Message { head, .. } in message.parts() {
        let is_value = head.kind == Kind::Value;
        if (is_value || head.kind == Kind::Push) && (first..=last).contains(&head.round) {
            let Header { key, slice, round, request, .. } = *head;
            let passage =
                Passage { is_value, is_sent, key, slice, round, worker, server, request, at };
            news.push(News::Passed(passage));
        }
    }
}

fn stamp(head: &mut Header, me: Peer, incarnation: u64, epoch: u32, job: u64) {
    head.role = me.role;
    head.rank = me.rank;
    head.incarnation = incarnation;
    head.epoch = epoch;
    head.job = job;
}
