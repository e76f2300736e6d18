//! TLS 1.3 without sockets, clocks and threads: bytes in, bytes out. Also called: sans-IO, record layer.
//!
//! rustls does the handshake (`handshake`) and keeps the traffic secrets (`traffic_keys`). After the
//! handshake, `ring` seals and opens records between the buffers of the transport (`record`): one half is
//! for the threads that send (`sealer`), one for the thread that reads (`opener`); they share a lock only
//! during key updates. Sections in comments are those of RFC 8446.
//!
//! Without certificates, a greeting that a token has proven may give the keys (`token_keys`).
//!
//! Messages of a transport that keeps no order are records too, with explicit numbers (`message_keys`).
//!
//! No session is resumed, and no early data is sent: listeners send no tickets, callers drop them.

mod connection;
mod error;
#[cfg(any(fuzzing, test))]
mod fuzz;
mod handshake;
mod image;
mod message_keys;
mod opener;
mod record;
mod sealer;
mod secret;
#[cfg(test)]
mod tests;
mod token_keys;
mod traffic_keys;

pub(in crate::transport) use connection::TlsConnection;
pub(in crate::transport) use error::TlsError;
#[cfg(any(fuzzing, test))]
pub(crate) use fuzz::records;
pub(in crate::transport) use image::{content_mut, records_len, write_content};
pub(in crate::transport) use message_keys::{MESSAGE_SECRET, MessageOpener, MessageSealer};
#[cfg(test)]
use opener::Opened;
pub(in crate::transport) use opener::Opener;
pub(in crate::transport) use record::MAX_RECORD;
pub(in crate::transport) use sealer::Sealer;
pub(in crate::transport) use token_keys::{KeyShare, PublicShare, RecordHalves, SHARE};
