//! How the pushes of a store merge: by assignment, an updater or an optimizer.

use std::sync::Arc;

use super::updater::Updater;
use crate::codec::Codec;
use crate::optim::Optimizer;
use crate::tensor::DType;

/// How the values of a push merge.
#[derive(Clone)]
pub(crate) struct Handling {
    /// The codec of each value, applied before they are added up.
    pub(crate) codec: Option<Arc<Codec>>,
    pub(crate) merger: Merger,
}

impl Handling {
    pub(crate) const PLAIN: Self = Self { codec: None, merger: Merger::Assign };

    /// Whether a merge is only assignment of the sum.
    pub(crate) fn is_plain(&self) -> bool {
        self.codec.is_none() && matches!(self.merger, Merger::Assign)
    }

    /// Refuses keys whose elements the codec cannot take or the optimizer cannot change.
    pub(crate) fn check(&self, dtype: DType) -> Result<(), String> {
        if let Merger::Optimizer(optimizer) = &self.merger {
            optimizer.check(dtype)?;
        }
        self.codec.as_ref().map_or(Ok(()), |codec| codec.check(dtype))
    }

    /// The optimizer, if values reach it uncompressed.
    pub(crate) fn rule(&self) -> Option<&Optimizer> {
        match self {
            Self { codec: None, merger: Merger::Optimizer(optimizer) } => Some(optimizer),
            _ => None,
        }
    }

    /// The codec of the values of a key. Integers are never compressed.
    pub(crate) fn codec_of(&self, dtype: DType) -> Option<&Codec> {
        self.codec.as_deref().filter(|_| dtype.is_float())
    }
}

/// How a sum becomes a stored value.
#[derive(Clone)]
pub(crate) enum Merger {
    /// The sum replaces the value.
    Assign,
    /// A function of the user's.
    Updater(Arc<Updater>),
    /// One of the library's rules.
    Optimizer(Arc<Optimizer>),
}

impl Merger {
    /// Whether it is a rule whose result for a part of a key differs.
    #[cfg(feature = "dist")]
    pub(crate) fn measures_whole_keys(&self) -> bool {
        matches!(self, Self::Optimizer(optimizer) if !optimizer.is_elementwise())
    }
}
