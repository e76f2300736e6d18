//! How the pushes of a store merge: by assignment, an updater or an optimizer.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::Arc;

use super::transaction::share::TransactionShare;
use super::updater::Updater;
use crate::codec::Codec;
use crate::error::{Result as CallResult, fail};
use crate::key::Key;
use crate::optim::Optimizer;
use crate::tensor::DType;

/// How the values of a push merge.
#[derive(Clone)]
pub(crate) struct Handling {
    /// The codec of each value, applied before they are added up.
    pub(crate) codec: Option<Arc<Codec>>,
    /// For all keys without a rule of their own.
    pub(crate) merger: Merger,
    pub(crate) rules: KeyRules,
    pub(crate) clipping: Option<Clipping>,
    /// The transaction of a local store's pushes.
    pub(crate) transaction: Option<TransactionShare>,
    /// Number of the setting: in a local store of the changes before it, in a job the version of the servers.
    pub(crate) version: u64,
    /// Weight of the pushes of a call, by which their sums are divided. None in the setting of a store.
    pub(crate) divisor: Option<f64>,
}

impl Handling {
    pub(crate) const PLAIN: Self = Self {
        codec: None,
        merger: Merger::Assign,
        rules: KeyRules(None),
        clipping: None,
        transaction: None,
        version: 0,
        divisor: None,
    };

    /// How the values of a key merge.
    #[inline]
    pub(crate) fn merger_of(&self, key: Key) -> &Merger {
        self.rules.get(key).unwrap_or(&self.merger)
    }

    /// What the gradients of a key are multiplied by before they are measured; None if its pushes are no
    /// gradients: they replace the value, or are no floats.
    pub(crate) fn rescale_of(&self, key: Key, dtype: DType) -> Option<f64> {
        match self.merger_of(key) {
            Merger::Assign => None,
            Merger::Updater(_) => dtype.is_float().then_some(1.0),
            Merger::Optimizer(optimizer) => Some(optimizer.rescale()),
        }
    }

    /// Whether keys may be merged by code of the user's.
    pub(crate) fn has_updater(&self) -> bool {
        matches!(self.merger, Merger::Updater(_))
    }

    /// Whether a rule needs whole keys.
    #[cfg(feature = "dist")]
    pub(crate) fn measures_whole_keys(&self) -> bool {
        self.merger.measures_whole_keys()
            || self.rules.iter().any(|(_, merger)| merger.measures_whole_keys())
    }

    /// Refuses a key whose elements the codec cannot take or its optimizer cannot change.
    pub(crate) fn check(&self, key: Key, dtype: DType) -> Result<(), String> {
        if let Merger::Optimizer(optimizer) = self.merger_of(key) {
            optimizer.check(dtype)?;
        }
        self.codec.as_ref().map_or(Ok(()), |codec| codec.check(dtype))
    }

    /// The merge of short calls, unless they need more than one pass, or keys differ in it.
    pub(crate) fn short(&self) -> Option<ShortMerge> {
        match &self.merger {
            _ if self.codec.is_some() || !self.rules.is_empty() => None,
            _ if self.transaction.is_some() => None,
            Merger::Assign => Some(ShortMerge::Assign),
            _ if self.clipping.is_some() => None,
            Merger::Optimizer(rule) if rule.is_elementwise() => {
                Some(ShortMerge::Rule(Arc::clone(rule)))
            }
            _ => None,
        }
    }

    /// The rule with its options, and the codec with its.
    pub(crate) fn describe(&self) -> (String, String) {
        let mut rule = self.merger.text();
        if let Merger::Optimizer(optimizer) = &self.merger {
            for (key, option, value) in optimizer.multipliers() {
                let _ = write!(rule, " {option}[{}]={value}", key.id());
            }
        }
        for (key, merger) in self.rules.iter() {
            let _ = write!(rule, " rule[{}]={}", key.id(), merger.text().replace(' ', ":"));
        }
        if let Some(Clipping { max_norm, .. }) = self.clipping {
            let _ = write!(rule, " max_norm={max_norm}");
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

/// Clipping by the norm of the gradients of a call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Clipping {
    /// Above 0; infinite to measure alone.
    pub(crate) max_norm: f64,
    pub(crate) non_finite: NonFinite,
}

/// Added to a norm that gradients are divided by, as in PyTorch.
const EPS: f64 = 1e-6;

impl Clipping {
    /// None for the norm 0, which ends clipping.
    pub(crate) fn new(max_norm: f64, non_finite: NonFinite) -> Option<Self> {
        (max_norm > 0.0).then_some(Self { max_norm, non_finite })
    }

    /// What gradients of this norm are multiplied by.
    pub(crate) fn factor(self, norm: f64) -> f64 {
        (self.max_norm / (norm + EPS)).min(1.0)
    }
}

/// What becomes of a push whose gradients have a norm that is not finite.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NonFinite {
    /// It succeeds, changes nothing and is counted.
    #[default]
    Skip,
    /// It fails and changes nothing.
    Fail,
}

/// The names for single keys that are no rules: assignment, and the merger of the store.
const ASSIGN: &str = "none";
const OF_STORE: &str = "store";

/// The merger of a name for single keys; None is that of the store.
pub(crate) fn rule_of_keys(name: &str, params: &str) -> CallResult<Option<Merger>> {
    let lower = name.to_ascii_lowercase();
    let merger = match &*lower {
        ASSIGN => Some(Merger::Assign),
        OF_STORE => None,
        _ => return Ok(Some(Merger::Optimizer(Arc::new(Optimizer::new(name, params)?)))),
    };
    if params.is_empty() {
        return Ok(merger);
    }
    Err(fail!(Option, "{lower} takes no options, and {params:?} are given"))
}

/// Rules of single keys: assignment or optimizers, in place of the store's merger.
#[derive(Clone, Default)]
pub(crate) struct KeyRules(Option<Arc<HashMap<Key, Merger>>>);

impl KeyRules {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    #[inline]
    pub(crate) fn get(&self, key: Key) -> Option<&Merger> {
        self.0.as_ref()?.get(&key)
    }

    /// The rules of all keys that have one, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &Merger)> {
        let mut rules: Vec<_> = self.0.iter().flat_map(|rules| rules.iter()).collect();
        rules.sort_unstable_by_key(|(key, _)| **key);
        rules.into_iter().map(|(key, merger)| (*key, merger))
    }

    /// These rules with that of some keys replaced; with None they merge as the store's keys do.
    pub(crate) fn with(&self, keys: &[Key], merger: Option<&Merger>) -> Self {
        let mut rules = self.0.as_deref().cloned().unwrap_or_default();
        for key in keys {
            match merger {
                Some(merger) => _ = rules.insert(*key, merger.clone()),
                None => _ = rules.remove(key),
            }
        }
        Self::from(rules)
    }

    /// These rules with that of a key changed. None if the key has no rule of its own.
    pub(crate) fn changed(
        &self,
        key: Key,
        change: impl FnOnce(&Optimizer) -> CallResult<Optimizer>,
    ) -> Option<CallResult<Self>> {
        let optimizer = match self.get(key)? {
            Merger::Optimizer(optimizer) => change(optimizer),
            _ => Err(fail!(InvalidArgument, "the key has no optimizer; set one for it first")),
        };
        let merger = optimizer.map(|optimizer| Merger::Optimizer(Arc::new(optimizer)));
        Some(merger.map(|merger| self.with(&[key], Some(&merger))))
    }
}

impl From<HashMap<Key, Merger>> for KeyRules {
    fn from(rules: HashMap<Key, Merger>) -> Self {
        Self((!rules.is_empty()).then(|| Arc::new(rules)))
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
    /// Its rule with its options.
    fn text(&self) -> String {
        match self {
            Self::Assign => "assign".to_owned(),
            Self::Updater(_) => "updater".to_owned(),
            Self::Optimizer(rule) => format!("{} {}", rule.name(), rule.options_text()),
        }
    }

    /// Its rule as files name it, for [`rule_of_keys`].
    pub(crate) fn saved_text(&self) -> String {
        self.optimizer().map_or(ASSIGN.to_owned(), |_| self.text().trim_end().to_owned())
    }

    /// The rule of the library, if it is one.
    pub(crate) fn optimizer(&self) -> Option<&Arc<Optimizer>> {
        match self {
            Self::Optimizer(optimizer) => Some(optimizer),
            Self::Assign | Self::Updater(_) => None,
        }
    }

    /// Whether it is a rule whose result for a part of a key differs.
    #[cfg(feature = "dist")]
    pub(crate) fn measures_whole_keys(&self) -> bool {
        matches!(self, Self::Optimizer(optimizer) if !optimizer.is_elementwise())
    }
}
