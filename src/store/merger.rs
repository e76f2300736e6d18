//! How the pushes of a store merge.

use std::sync::Arc;

use super::updater::Updater;
use crate::optim::Optimizer;

/// What makes a stored value of a sum.
#[derive(Clone)]
pub(crate) enum Merger {
    /// The sum replaces the value.
    Assign,
    /// A function of the user's.
    Updater(Arc<Updater>),
    /// A rule of ours.
    Optimizer(Arc<Optimizer>),
}
