//! Passes the handshake to rustls record by record, so that rustls reads no record behind it.

use rustls::client::{ClientConnectionData, UnbufferedClientConnection};
use rustls::kernel::KernelConnection;
use rustls::server::{ServerConnectionData, UnbufferedServerConnection};
use rustls::unbuffered::{ConnectionState, EncodeError, EncodeTlsData, UnbufferedStatus};
use rustls::{CommonState, ExtractedSecrets};

use super::error::TlsError;
use super::record::HEAD_LEN;

/// Maximum length of a record behind its header in rustls, which is that of TLS 1.2.
const MAX_PAYLOAD: usize = (1 << 14) + 2048;
/// The types of records, from `change_cipher_spec` to `application_data`.
const RECORD_TYPES: std::ops::RangeInclusive<u8> = 20..=23;

/// A connection of rustls: its two types have no trait in common.
pub(super) trait HandshakeSide: Sized {
    type Data;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data>;

    fn common(&self) -> &CommonState;

    fn into_kernel(self)
    -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error>;
}

impl HandshakeSide for UnbufferedClientConnection {
    type Data = ClientConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_kernel(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }
}

impl HandshakeSide for UnbufferedServerConnection {
    type Data = ServerConnectionData;

    fn process<'c, 'i>(&'c mut self, bytes: &'i mut [u8]) -> UnbufferedStatus<'c, 'i, Self::Data> {
        self.process_tls_records(bytes)
    }

    fn common(&self) -> &CommonState {
        self
    }

    fn into_kernel(
        self,
    ) -> Result<(ExtractedSecrets, KernelConnection<Self::Data>), rustls::Error> {
        self.dangerous_into_kernel_connection()
    }
}

/// A handshake in progress.
pub(super) struct TlsHandshake<S> {
    pub(super) side: S,
    /// Length of the received records that rustls has read and not consumed: the front of a message that
    /// spans records, which rustls reads in place.
    read: usize,
}

/// Result of one call of rustls.
enum Progress {
    Again,
    NeedsMore,
    Over,
    Failed(TlsError),
}

impl<S: HandshakeSide> TlsHandshake<S> {
    pub(super) fn new(side: S) -> Self {
        Self { side, read: 0 }
    }

    /// Consumes whole records at the front of `received`, and appends records to send to `out`. Returns
    /// whether the handshake is over; then `received` begins with the first record after it.
    pub(super) fn receive(
        &mut self,
        received: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<bool, TlsError> {
        loop {
            match self.process(received, out) {
                Progress::Again => {}
                Progress::Over => return Ok(true),
                Progress::NeedsMore => match next_record(received, self.read) {
                    Some(end) => self.read = end,
                    None => return Ok(false),
                },
                Progress::Failed(error) => {
                    self.alert(out);
                    return Err(error);
                }
            }
        }
    }

    /// Appends the alert that rustls has queued for its error, if any. After an error it must get no input:
    /// a second error panics.
    fn alert(&mut self, out: &mut Vec<u8>) {
        while self.side.common().wants_write() {
            match self.side.process(&mut []).state {
                Ok(ConnectionState::EncodeTlsData(data)) => drop(encode(data, out)),
                _ => return,
            }
        }
    }

    fn process(&mut self, received: &mut Vec<u8>, out: &mut Vec<u8>) -> Progress {
        let status = self.side.process(&mut received[..self.read]);
        let discard = status.discard;
        let progress = match status.state {
            Err(error) => Progress::Failed(error.into()),
            Ok(ConnectionState::EncodeTlsData(data)) => encode(data, out),
            Ok(ConnectionState::TransmitTlsData(data)) => {
                data.done();
                Progress::Again
            }
            Ok(ConnectionState::BlockedHandshake) => Progress::NeedsMore,
            Ok(ConnectionState::WriteTraffic(_)) => Progress::Over,
            // `close_notify`; application data before the end is an error of rustls.
            Ok(_) => Progress::Failed(TlsError::Closed),
        };
        received.drain(..discard);
        self.read -= discard;
        match progress {
            // rustls may let a listener send before the handshake is over; this library does not.
            Progress::Over if self.side.common().is_handshaking() => Progress::NeedsMore,
            progress => progress,
        }
    }
}

fn encode<D>(mut data: EncodeTlsData<'_, D>, out: &mut Vec<u8>) -> Progress {
    let begin = out.len();
    match data.encode(&mut []) {
        Err(EncodeError::InsufficientSize(size)) => out.resize(begin + size.required_size, 0),
        Ok(_) => return Progress::Again,
        Err(error) => return Progress::Failed(rustls::Error::General(error.to_string()).into()),
    }
    match data.encode(&mut out[begin..]) {
        Ok(len) => {
            out.truncate(begin + len);
            Progress::Again
        }
        Err(error) => Progress::Failed(rustls::Error::General(error.to_string()).into()),
    }
}

/// End of the record that begins at `begin`; None if it is not whole. Bytes that are no record pass whole
/// to rustls, for its error.
fn next_record(received: &[u8], begin: usize) -> Option<usize> {
    let rest = &received[begin..];
    let [kind, _, _, high, low] = rest.first_chunk::<HEAD_LEN>()?;
    let len = usize::from(*high) << 8 | usize::from(*low);
    if !RECORD_TYPES.contains(kind) || len > MAX_PAYLOAD {
        return Some(received.len());
    }
    (rest.len() >= HEAD_LEN + len).then_some(begin + HEAD_LEN + len)
}
