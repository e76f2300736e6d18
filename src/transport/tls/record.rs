//! Record protection of TLS 1.3 (RFC 8446, section 5): seals and opens records under one traffic key.

use ring::aead::{AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305};
use ring::aead::{LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use rustls::{AlertDescription, ConnectionTrafficSecrets, ContentType};

use super::error::TlsError;

/// Length of the header of a record: type, version, length of the rest.
pub(super) const HEAD_LEN: usize = 5;
/// Maximum length of the content of a record.
pub(super) const MAX_CONTENT: usize = 1 << 14;
/// Length of a record beside its content: header, type of the content, tag.
pub(super) const OVERHEAD: usize = HEAD_LEN + 1 + TAG_LEN;
/// Length of the tag, in all three ciphers.
const TAG_LEN: usize = 16;
/// Maximum length of a sealed record behind its header.
const MAX_SEALED: usize = MAX_CONTENT + 256;
/// Maximum length of a whole record: a buffer for received bytes must hold one.
pub(in crate::transport) const MAX_RECORD: usize = HEAD_LEN + MAX_SEALED;
/// The version in the header of each record, that of TLS 1.2. Receivers ignore it.
const VERSION: [u8; 2] = [3, 3];

/// A traffic key with the number of its next record. There is one key for each direction.
pub(super) struct RecordKey {
    key: LessSafeKey,
    iv: [u8; NONCE_LEN],
    sequence: u64,
}

/// The type and the content of an opened record.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct OpenedRecord<'a> {
    pub(super) kind: ContentType,
    pub(super) content: &'a [u8],
}

impl RecordKey {
    /// `sequence` is the number of the next record.
    pub(super) fn new(secrets: &ConnectionTrafficSecrets, sequence: u64) -> Result<Self, TlsError> {
        let (algorithm, key, iv) = match secrets {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (&AES_128_GCM, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (&AES_256_GCM, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (&CHACHA20_POLY1305, key, iv),
            _ => return Err(TlsError::Misuse("the handshake chose an unknown cipher")),
        };
        Self::of(algorithm, key.as_ref(), iv.as_ref(), sequence)
    }

    pub(super) fn of(
        algorithm: &'static Algorithm,
        key: &[u8],
        iv: &[u8],
        sequence: u64,
    ) -> Result<Self, TlsError> {
        let key = UnboundKey::new(algorithm, key)
            .map_err(|_| TlsError::Misuse("the traffic key has another length than its cipher"))?;
        let iv = iv.try_into().map_err(|_| TlsError::Misuse("the traffic key has no nonce"))?;
        Ok(Self { key: LessSafeKey::new(key), iv, sequence })
    }

    /// Number of the next record, and so the count of records that this key has protected.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The nonce of the next record.
    fn nonce(&mut self) -> Result<Nonce, TlsError> {
        let nonce = self.nonce_of(self.sequence);
        let next = self.sequence.checked_add(1);
        self.sequence = next.ok_or(TlsError::Misuse("the numbers of records are used up"))?;
        Ok(nonce)
    }

    /// The nonce of a record (section 5.3): its number makes it unique for the key.
    #[allow(clippy::big_endian_bytes, reason = "the byte order of TLS")]
    fn nonce_of(&self, number: u64) -> Nonce {
        let mut nonce = self.iv;
        for (byte, digit) in nonce[NONCE_LEN - 8..].iter_mut().zip(number.to_be_bytes()) {
            *byte ^= digit;
        }
        Nonce::assume_unique_for_key(nonce)
    }

    /// Appends a record to `out`; `fill` appends its content, of `len` bytes and at most `MAX_CONTENT`.
    pub(super) fn seal(
        &mut self,
        kind: ContentType,
        len: usize,
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), TlsError> {
        let begin = out.len();
        out.extend_from_slice(&[0; HEAD_LEN]);
        fill(out);
        debug_assert_eq!(out.len(), begin + HEAD_LEN + len);
        out.extend_from_slice(&[0; OVERHEAD - HEAD_LEN]);
        self.seal_in_place(kind, &mut out[begin..])
    }

    /// Seals a whole record in its place: content of at most `MAX_CONTENT` bytes lies behind the place of the
    /// header, and in front of those of type and tag.
    pub(super) fn seal_in_place(
        &mut self,
        kind: ContentType,
        record: &mut [u8],
    ) -> Result<(), TlsError> {
        let nonce = self.nonce()?;
        self.seal_with(nonce, kind, record)
    }

    /// The same, for a record whose number no other record has.
    pub(super) fn seal_numbered(
        &self,
        number: u64,
        kind: ContentType,
        record: &mut [u8],
    ) -> Result<(), TlsError> {
        self.seal_with(self.nonce_of(number), kind, record)
    }

    fn seal_with(
        &self,
        nonce: Nonce,
        kind: ContentType,
        record: &mut [u8],
    ) -> Result<(), TlsError> {
        const CUT: TlsError =
            TlsError::Misuse("a record without room for its tag was to be sealed");
        let (front, sealed) = record.split_first_chunk_mut::<HEAD_LEN>().ok_or(CUT)?;
        *front = head(sealed.len())?;
        let (inner, place) = sealed.split_last_chunk_mut::<TAG_LEN>().ok_or(CUT)?;
        *inner.last_mut().ok_or(CUT)? = kind.into();
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, Aad::from(*front), inner)
            .map_err(|_| TlsError::Misuse("a record cannot be sealed"))?;
        place.copy_from_slice(tag.as_ref());
        Ok(())
    }

    /// Opens one whole record, as `record_len` measures it, in its place.
    #[cfg(test)]
    pub(super) fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<OpenedRecord<'a>, TlsError> {
        self.open_within(record, 0)
    }

    /// Opens the whole record that begins at `at` and ends with `place`, and moves its content to the front of
    /// `place`.
    pub(super) fn open_within<'a>(
        &mut self,
        place: &'a mut [u8],
        at: usize,
    ) -> Result<OpenedRecord<'a>, TlsError> {
        let nonce = self.nonce()?;
        self.open_with(nonce, place, at)
    }

    /// The same, for a record of any number.
    pub(super) fn open_numbered<'a>(
        &self,
        number: u64,
        place: &'a mut [u8],
        at: usize,
    ) -> Result<OpenedRecord<'a>, TlsError> {
        self.open_with(self.nonce_of(number), place, at)
    }

    fn open_with<'a>(
        &self,
        nonce: Nonce,
        place: &'a mut [u8],
        at: usize,
    ) -> Result<OpenedRecord<'a>, TlsError> {
        use AlertDescription::{BadRecordMac, RecordOverflow, UnexpectedMessage};

        let head = *place
            .get(at..)
            .and_then(|record| record.first_chunk::<HEAD_LEN>())
            .ok_or(TlsError::Misuse("a record without its header was to be opened"))?;
        let inner = self
            .key
            .open_within(nonce, Aad::from(head), place, at + HEAD_LEN..)
            .map_err(|_| TlsError::Violation(BadRecordMac, "a record with a wrong tag"))?;
        if inner.len() > MAX_CONTENT + 1 {
            return Err(TlsError::Violation(RecordOverflow, "a record that is too long"));
        }
        // The type of the content is the last byte that is not zero; zeros behind it are padding.
        let end = inner.iter().rposition(|byte| *byte != 0);
        let end = end.ok_or(TlsError::Violation(UnexpectedMessage, "a record of padding alone"))?;
        Ok(OpenedRecord { kind: inner[end].into(), content: &inner[..end] })
    }
}

#[allow(clippy::big_endian_bytes, reason = "the byte order of TLS")]
fn head(len: usize) -> Result<[u8; HEAD_LEN], TlsError> {
    let len = u16::try_from(len).ok().filter(|len| usize::from(*len) <= MAX_SEALED);
    let [high, low] =
        len.ok_or(TlsError::Misuse("a record that is too long was to be sent"))?.to_be_bytes();
    Ok([ContentType::ApplicationData.into(), VERSION[0], VERSION[1], high, low])
}

/// Length of the record at the front of received bytes; None until the whole record has arrived. After
/// the handshake all records are sealed: other types are an error, and so are lengths above the maximum.
pub(super) fn record_len(received: &[u8]) -> Result<Option<usize>, TlsError> {
    use AlertDescription::{RecordOverflow, UnexpectedMessage};

    let Some([kind, _, _, high, low]) = received.first_chunk::<HEAD_LEN>() else {
        return Ok(None);
    };
    if ContentType::from(*kind) != ContentType::ApplicationData {
        return Err(TlsError::Violation(UnexpectedMessage, "a record that is not sealed"));
    }
    let len = usize::from(*high) << 8 | usize::from(*low);
    if len > MAX_SEALED {
        return Err(TlsError::Violation(RecordOverflow, "a record that is too long"));
    }
    Ok((received.len() >= HEAD_LEN + len).then_some(HEAD_LEN + len))
}
