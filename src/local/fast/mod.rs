//! Calls on plain tensors that need no plan: checked, and carried out at once. Also called: the fast path.

pub(crate) mod bound;
pub(crate) mod bound_calls;
pub(crate) mod check;
pub(crate) mod keys;
pub(crate) mod shared;
pub(crate) mod short;
