//! The receiving half of a connection: opens records, and handles alerts and key updates in them.

use std::sync::Arc;

use rustls::AlertDescription::{self, DecodeError, IllegalParameter, UnexpectedMessage};
use rustls::{ContentType, HandshakeType};

use super::error::TlsError;
use super::record::{OpenedRecord, RecordKey, record_len};
use super::traffic_keys::TrafficKeys;

/// Maximum number of consecutive records without application data. A peer could otherwise keep this
/// process busy with key updates and empty records that no reader of data notices.
const MAX_IDLE_RECORDS: u32 = 64;
/// Maximum length of a handshake message, which may span records. rustls has the same maximum.
const MAX_MESSAGE: usize = 0xffff;
/// Length of the header of a handshake message: type, length of the rest.
const MESSAGE_HEAD: usize = 4;

/// Opens the records of the peer. Used by one thread at a time.
pub(in crate::transport) struct Opener {
    key: RecordKey,
    keys: Arc<TrafficKeys>,
    is_caller: bool,
    /// A handshake message that has arrived in part.
    message: Vec<u8>,
    /// Count of records since the last one with application data.
    idle_records: u32,
    is_closed: bool,
    failed: Option<TlsError>,
}

/// Result of [`Opener::open`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::transport) struct Opened {
    /// Length of the opened records, which the caller removes.
    pub(in crate::transport) consumed: usize,
    /// Whether the peer has sent `close_notify`.
    pub(in crate::transport) is_closed: bool,
}

impl Opener {
    pub(super) fn new(key: RecordKey, keys: Arc<TrafficKeys>, is_caller: bool) -> Self {
        Self {
            key,
            keys,
            is_caller,
            message: Vec::new(),
            idle_records: 0,
            is_closed: false,
            failed: None,
        }
    }

    /// Opens the whole records at the front of `sealed` in their place, and appends their application
    /// data to `plain`. After an error, `plain` has the data of the records before the bad one. Each
    /// later call returns the same error, and [`super::Sealer::alert`] has the reply to the peer.
    pub(in crate::transport) fn open(
        &mut self,
        sealed: &mut [u8],
        plain: &mut Vec<u8>,
    ) -> Result<Opened, TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let result = self.open_all(sealed, plain);
        self.failed = result.as_ref().err().cloned();
        result
    }

    fn open_all(&mut self, sealed: &mut [u8], plain: &mut Vec<u8>) -> Result<Opened, TlsError> {
        let mut consumed = 0;
        while !self.is_closed {
            let rest = &mut sealed[consumed..];
            let Some(len) = record_len(rest)? else {
                return Ok(Opened { consumed, is_closed: false });
            };
            let data = self.one(&mut rest[..len], 0)?;
            plain.extend_from_slice(&rest[..data]);
            consumed += len;
        }
        // Bytes behind `close_notify` are ignored (section 6.1).
        Ok(Opened { consumed: sealed.len(), is_closed: true })
    }

    /// Like [`Self::open`], without a copy: the whole records from `sealed` on are opened, and their data moves
    /// down to `data`, the end of earlier data. Both advance. True behind `close_notify`.
    pub(in crate::transport) fn open_in_place(
        &mut self,
        bytes: &mut [u8],
        data: &mut usize,
        sealed: &mut usize,
    ) -> Result<bool, TlsError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !self.is_closed {
            let opened = record_len(&bytes[*sealed..]).and_then(|len| {
                let Some(len) = len else { return Ok(None) };
                let place = &mut bytes[*data..*sealed + len];
                self.one(place, *sealed - *data).map(|data| Some((data, len)))
            });
            match opened {
                Ok(None) => return Ok(false),
                Ok(Some((more, len))) => (*data, *sealed) = (*data + more, *sealed + len),
                Err(error) => {
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
        *sealed = bytes.len();
        Ok(true)
    }

    /// Opens the record from `at` to the end of `place`; the length of its data, which moves to the front of
    /// `place`.
    fn one(&mut self, place: &mut [u8], at: usize) -> Result<usize, TlsError> {
        let OpenedRecord { kind, content } = self.key.open_within(place, at)?;
        if kind == ContentType::ApplicationData && !content.is_empty() {
            self.idle_records = 0;
        } else {
            self.idle_records += 1;
            if self.idle_records > MAX_IDLE_RECORDS {
                return Err(violation("too many records without data"));
            }
        }
        if kind != ContentType::Handshake && !self.message.is_empty() {
            return Err(violation("another record within a handshake message"));
        }
        match kind {
            ContentType::ApplicationData => return Ok(content.len()),
            ContentType::Alert => self.is_closed = is_end(content)?,
            ContentType::Handshake if content.is_empty() => {
                return Err(violation("an empty record of the handshake"));
            }
            ContentType::Handshake => {
                self.message.extend_from_slice(content);
                while self.handshake_message()? {}
            }
            _ => return Err(violation("a record of an unknown type")),
        }
        Ok(0)
    }

    /// Handles the first message of those that have arrived; false if it is not whole.
    fn handshake_message(&mut self) -> Result<bool, TlsError> {
        let [kind, a, b, c, rest @ ..] = &*self.message else { return Ok(false) };
        let len = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        match HandshakeType::from(*kind) {
            HandshakeType::KeyUpdate if len != 1 => {
                return Err(TlsError::Violation(DecodeError, "a key update of a wrong length"));
            }
            HandshakeType::KeyUpdate => match rest {
                [] => return Ok(false),
                [request @ (0 | 1)] => {
                    if *request == 1 {
                        self.keys.request_update();
                    }
                    self.key = self.keys.next_to_receive()?;
                }
                [0 | 1, ..] => return Err(violation("a message under the key before its update")),
                _ => {
                    return Err(TlsError::Violation(IllegalParameter, "an unknown key update"));
                }
            },
            // Callers keep no sessions: the ticket is dropped.
            HandshakeType::NewSessionTicket if self.is_caller => {
                if len > MAX_MESSAGE {
                    return Err(TlsError::Violation(DecodeError, "a message that is too long"));
                }
                if rest.len() < len {
                    return Ok(false);
                }
            }
            _ => return Err(violation("a message of the handshake after its end")),
        }
        self.message.drain(..MESSAGE_HEAD + len);
        Ok(true)
    }
}

fn violation(text: &'static str) -> TlsError {
    TlsError::Violation(UnexpectedMessage, text)
}

/// Whether an alert is `close_notify`. All others but `user_canceled` are errors (section 6).
fn is_end(alert: &[u8]) -> Result<bool, TlsError> {
    let [_, alert] = alert else {
        return Err(TlsError::Violation(DecodeError, "an alert of a wrong length"));
    };
    match AlertDescription::from(*alert) {
        AlertDescription::CloseNotify => Ok(true),
        AlertDescription::UserCanceled => Ok(false),
        alert => Err(TlsError::Alert(alert)),
    }
}
