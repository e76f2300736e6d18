//! How the pushes of a store merge: by assignment, an updater or an optimizer.

use std::fmt::Write;
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
    /// Number of the setting: in a local store of the changes before it, in a job the version of the servers.
    pub(crate) version: u64,
}

impl Handling {
    pub(crate) const PLAIN: Self = Self { codec: None, merger: Merger::Assign, version: 0 };

    /// Refuses keys whose elements the codec cannot take or the optimizer cannot change.
    pub(crate) fn check(&self, dtype: DType) -> Result<(), String> {
        if let Merger::Optimizer(optimizer) = &self.merger {
            optimizer.check(dtype)?;
        }
        self.codec.as_ref().map_or(Ok(()), |codec| codec.check(dtype))
    }

    /// The merge of short calls, unless they need more than one pass.
    pub(crate) fn short(&self) -> Option<ShortMerge> {
        match &self.merger {
            _ if self.codec.is_some() => None,
            Merger::Assign => Some(ShortMerge::Assign),
            Merger::Optimizer(rule) if rule.is_elementwise() => {
                Some(ShortMerge::Rule(Arc::clone(rule)))
            }
            _ => None,
        }
    }

    /// The rule with its options, and the codec with its.
    pub(crate) fn describe(&self) -> (String, String) {
        let mut rule = match &self.merger {
            Merger::Assign => "assign".to_owned(),
            Merger::Updater(_) => "updater".to_owned(),
            Merger::Optimizer(rule) => format!("{} {}", rule.name(), rule.options_text()),
        };
        if let Merger::Optimizer(optimizer) = &self.merger {
            for (key, option, value) in optimizer.multipliers() {
                let _ = write!(rule, " {option}[{}]={value}", key.id());
            }
        }
        let codec = self.codec.as_ref();
        let codec = codec.map(|it| format!("{} {}", it.name(), it.params()));
        (rule.trim_end().to_owned(), codec.unwrap_or_else(|| "none".into()).trim_end().to_owned())
    }

    /// The codec of the values of a key. Integers are never compressed.
    pub(crate) fn codec_of(&self, dtype: DType) -> Option<&Codec> {
        self.codec.as_deref().filter(|_| dtype.is_float())
    }
}

/// How values merge in one pass over each key. Each part of the table has a copy, so that a short
/// call finds it beside its key.
#[derive(Clone)]
pub(crate) enum ShortMerge {
    Assign,
    /// By a rule that goes element by element.
    Rule(Arc<Optimizer>),
}

impl ShortMerge {
    /// How many arrays of a key a pass reads or writes beside the values and the outs; those that it
    /// reads and writes count twice.
    pub(crate) fn kept(&self) -> usize {
        match self {
            Self::Assign => 1,
            Self::Rule(optimizer) => 2 * (1 + optimizer.most_arrays()),
        }
    }

    pub(crate) fn into_handling(self) -> Handling {
        let merger = match self {
            Self::Assign => Merger::Assign,
            Self::Rule(optimizer) => Merger::Optimizer(optimizer),
        };
        Handling { merger, ..Handling::PLAIN }
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
