//! What a pull asks of a slice instead of its value, and the codec number of a push of rows.

/// The number on the wire of a push of rows.
pub(crate) const ROWS: u16 = 2;

/// What is wanted of a slice instead of its value: rows, everything that is kept for it, what a worker
/// has laid down, or the value though the last round was not merged.
pub(crate) const WANT_ROWS: u8 = 1;
pub(crate) const WANT_STATE: u8 = 2;
pub(crate) const WANT_UNSENT: u8 = 3;
pub(crate) const WANT_VALUE: u8 = 4;
