//! A job as people see it: the texts of `kvstore status` and `kvstore top`.

pub(crate) mod cells;
pub(crate) mod table;
pub(crate) mod units;
pub(crate) mod waits;
