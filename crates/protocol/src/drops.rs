//! Reasons for which frames and messages of peers have no effect (also: drops, protocol violations).

use super::message::MessageKind;
use super::message::kinds::NoContent;

/// Reason for which a frame or a message of a peer has no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Frame of another job.
    OtherJob,
    /// Sender is an earlier incarnation of the linked peer.
    Earlier,
    /// Receiver is an earlier incarnation of this process.
    Former,
    /// Sender has no stream to this process.
    Stranger,
    /// Hello with the incarnation of another process.
    Foreign,
    /// Content that no process of this protocol sends: a sentence says why.
    Invalid(&'static str),
    /// Kind of a later release.
    UnknownKind,
    /// Kind that this role does not take of the sender's role.
    Misdirected,
    /// Answer to a request that was never made.
    Unasked,
    /// Key or slice is not that of the request, or the length is not that of the slice.
    Misfit,
    /// Sequence beyond the send window of the peer.
    Far,
    /// Pull of a round that will never close; answered with a failure at once.
    Unanswerable,
    /// Frame or push that has arrived before.
    Duplicate,
    /// No room in the reorder buffer, or backpressure: the sender retransmits the frame.
    NoRoom,
    /// Acknowledgement of a sequence that was never sent in this stream.
    Unsent,
    /// More queries than are answered in a time; their senders repeat them.
    TooMany,
    /// Request, key, generation or slice that is not here any more.
    Late,
    /// State that this process knows, or that a newer one has replaced.
    Outdated,
}

impl From<NoContent> for DropReason {
    fn from(why: NoContent) -> Self {
        match why {
            NoContent::Invalid(why) => Self::Invalid(why),
            NoContent::UnknownKind => Self::UnknownKind,
        }
    }
}

impl DropReason {
    /// Reason as a part of a sentence.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            Self::OtherJob => "of another job",
            Self::Earlier => "of a process that had its rank before",
            Self::Former => "that was meant for a process before this one",
            Self::Stranger => "without a stream to its sender",
            Self::Foreign => "that introduces its sender as another process",
            Self::Invalid(why) => why,
            Self::UnknownKind => "of a kind that this release does not know",
            Self::Misdirected => "of a kind that is not for this process",
            Self::Unasked => "that answers no request of this process",
            Self::Misfit => "that does not fit the request or the key that it names",
            Self::Far => "far ahead of the messages that have arrived",
            Self::Unanswerable => "that can never be answered",
            Self::Duplicate => "that has arrived before",
            Self::NoRoom => "for which there is no room yet",
            Self::Unsent => "that acknowledges what was never sent",
            Self::TooMany => "beyond those that are answered in a time",
            Self::Late => "whose request has ended, or whose key is not here",
            Self::Outdated => "whose content is known, or replaced",
        }
    }

    /// What this process did with a message of this kind, for its log.
    #[must_use]
    pub fn effect(self, kind: MessageKind) -> String {
        match self {
            Self::Unanswerable => format!("refused a pull {}", self.text()),
            Self::Invalid(why) => format!("dropped a frame {kind:?}: {why}"),
            _ => format!("dropped a frame {kind:?} {}", self.text()),
        }
    }

    /// Whether such drops are normal: members join and leave, frames arrive twice, calls end before their
    /// answers arrive, and members of later releases send more kinds.
    #[must_use]
    pub fn is_harmless(self) -> bool {
        matches!(
            self,
            Self::Earlier
                | Self::Former
                | Self::Stranger
                | Self::Duplicate
                | Self::NoRoom
                | Self::Unsent
                | Self::TooMany
                | Self::Late
                | Self::Outdated
                | Self::UnknownKind
        )
    }
}

/// Number of frames and messages of a kind that had no effect, for one reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DropCount {
    /// Their kind.
    pub kind: MessageKind,
    /// Why they had no effect.
    pub reason: DropReason,
    /// Their number since the start of the process.
    pub count: u64,
}

/// Result of a message of a peer, or the reason for which it has no effect.
pub(crate) type Handled = Result<(), DropReason>;
