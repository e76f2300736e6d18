//! Queries of a pull on the wire, and the codec number of a push of rows.

/// Codec number on the wire of a push of rows.
pub(crate) const ROWS: u16 = 2;

/// First byte of a query: rows, the whole state, the residual that a worker deposited, or the value even if
/// the last round was not merged; digests of the value and of the state; who took part in the last round.
pub(crate) const WANT_ROWS: u8 = 1;
pub(crate) const WANT_STATE: u8 = 2;
pub(crate) const WANT_UNSENT: u8 = 3;
pub(crate) const WANT_VALUE: u8 = 4;
pub(crate) const WANT_DIGEST: u8 = 5;
pub(crate) const WANT_ROUND: u8 = 6;
