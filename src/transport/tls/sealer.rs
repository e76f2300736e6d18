//! The sending half of a connection: splits bytes into records, seals them, and updates its key.

use std::io::IoSlice;
use std::sync::Arc;

use rustls::{AlertDescription, ContentType, HandshakeType};

use super::error::TlsError;
use super::image::{contents, records_mut};
use super::record::{MAX_CONTENT, OVERHEAD, RecordKey};
use super::traffic_keys::TrafficKeys;

/// The severities of alerts; receivers ignore them (section 6).
const WARNING: u8 = 1;
const FATAL: u8 = 2;

const CLOSED: TlsError = TlsError::Misuse("this process has closed the connection");

/// Seals the records that this process sends. Used by one thread at a time.
pub(in crate::transport) struct Sealer {
    key: RecordKey,
    keys: Arc<TrafficKeys>,
    /// Maximum number of records under one key.
    limit: u64,
    is_closed: bool,
}

/// The field `request_update` of a key update.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerUpdate {
    NotRequested = 0,
    #[cfg_attr(not(test), allow(dead_code, reason = "each side counts the records of its own key"))]
    Requested = 1,
}

impl Sealer {
    pub(super) fn new(key: RecordKey, keys: Arc<TrafficKeys>, limit: u64) -> Self {
        Self { key, keys, limit, is_closed: false }
    }

    /// Sets the maximum number of records under one key, including its update.
    #[cfg(test)]
    pub(super) fn limit_records(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Appends the records of the concatenated slices to `out`: the only copy is into `out`, and records
    /// are sealed there in place.
    pub(in crate::transport) fn seal(
        &mut self,
        slices: &[IoSlice<'_>],
        out: &mut Vec<u8>,
    ) -> Result<(), TlsError> {
        let mut left: usize = slices.iter().map(|slice| slice.len()).sum();
        out.reserve(left + left.div_ceil(MAX_CONTENT) * OVERHEAD);
        let mut slices = slices.iter().map(|slice| &**slice);
        let mut slice: &[u8] = &[];
        while left > 0 {
            self.update_if_due(out)?;
            let len = left.min(MAX_CONTENT);
            self.record(ContentType::ApplicationData, len, out, |out| {
                let mut room = len;
                while room > 0 {
                    if slice.is_empty() {
                        slice = slices.next().unwrap_or_default();
                        continue;
                    }
                    let (part, rest) = slice.split_at(slice.len().min(room));
                    out.extend_from_slice(part);
                    (slice, room) = (rest, room - part.len());
                }
            })?;
            left -= len;
        }
        Ok(())
    }

    /// Seals the first `len` bytes of the content of an image where they lie, and appends a key update that is to
    /// be sent before them to `before`. False if all records are there instead: their number exceeds the limit of
    /// a key.
    pub(in crate::transport) fn seal_image(
        &mut self,
        image: &mut [u8],
        len: usize,
        before: &mut Vec<u8>,
    ) -> Result<bool, TlsError> {
        if self.is_closed {
            return Err(CLOSED);
        }
        let count = len.div_ceil(MAX_CONTENT) as u64;
        // One record of the limit is the update.
        let exceeds = |sealer: &Self| sealer.key.sequence() + count >= sealer.limit;
        if self.keys.take_request() || exceeds(self) {
            self.update(PeerUpdate::NotRequested, before)?;
        }
        if exceeds(self) {
            let slices: Vec<_> = contents(image, len).map(IoSlice::new).collect();
            self.seal(&slices, before)?;
            return Ok(false);
        }
        for record in records_mut(image, len) {
            self.key.seal_in_place(ContentType::ApplicationData, record)?;
        }
        Ok(true)
    }

    /// Appends a `close_notify`. Later calls of `seal` fail.
    pub(in crate::transport) fn close(&mut self, out: &mut Vec<u8>) {
        self.last(WARNING, AlertDescription::CloseNotify, out);
    }

    /// Appends the alert for an error of the opener, if the peer must receive one. Later calls of `seal`
    /// fail.
    pub(in crate::transport) fn alert(&mut self, error: &TlsError, out: &mut Vec<u8>) {
        match error.alert() {
            Some(alert) => self.last(FATAL, alert, out),
            None => self.is_closed = true,
        }
    }

    fn last(&mut self, severity: u8, alert: AlertDescription, out: &mut Vec<u8>) {
        // Fails if the connection is closed: there is no second alert.
        let bytes = [severity, alert.into()];
        let _ = self.record(ContentType::Alert, bytes.len(), out, |out| out.extend(bytes));
        self.is_closed = true;
    }

    fn update_if_due(&mut self, out: &mut Vec<u8>) -> Result<(), TlsError> {
        // The update itself is the last record under the key.
        let is_due = self.key.sequence() >= self.limit.saturating_sub(1);
        if self.keys.take_request() || is_due {
            self.update(PeerUpdate::NotRequested, out)?;
        }
        Ok(())
    }

    /// Appends a key update; later records are sealed with the next key.
    pub(super) fn update(&mut self, peer: PeerUpdate, out: &mut Vec<u8>) -> Result<(), TlsError> {
        let message = [HandshakeType::KeyUpdate.into(), 0, 0, 1, peer as u8];
        self.record(ContentType::Handshake, message.len(), out, |out| out.extend(message))?;
        self.key = self.keys.next_to_send()?;
        Ok(())
    }

    /// Appends a record of any content.
    pub(super) fn record(
        &mut self,
        kind: ContentType,
        len: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TlsError> {
        if self.is_closed {
            return Err(CLOSED);
        }
        self.key.seal(kind, len, out, fill)
    }
}
