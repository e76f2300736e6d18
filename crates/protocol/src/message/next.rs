//! What a build with the feature `wire-next` adds to the protocol: a field in every message, a kind of message, a
//! name in the terms, a feature. It stands for a later release in tests; docs/internals/wire.md keeps these
//! numbers for it.

/// Number of the field that each message has.
pub(crate) const FIELD: u8 = 255;
/// Value of that field.
pub(crate) const VALUE: u64 = 0x6e65_7874;
/// Code of the kind of the messages that streams have in addition.
pub(crate) const KIND: u8 = 63;
/// Name and value that workers add to the terms.
pub(crate) const TERM: (&str, &str) = ("next", "1");
/// Bit of the mask of features.
pub(crate) const FEATURE: u64 = 1 << 63;
