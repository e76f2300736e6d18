//! Readable views of a job: the texts of `kvstore status` and `kvstore top`. Also called:
//! rendering.

pub(crate) mod cells;
pub(crate) mod digests;
pub(crate) mod table;
pub(crate) mod transports;
pub(crate) mod units;
pub(crate) mod waits;
