//! Merge settings (also called: hyperparameters), as workers send them to the servers.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::merger::{Clipping, Handling, KeyRules, Merger, NonFinite, rule_of_keys};
use crate::optim::Optimizer;

/// One change of the settings. Floats are sent as their bits, so that no value is rounded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Change {
    Optimizer {
        name: String,
        params: String,
    },
    /// The rule of single keys.
    KeyOptimizer {
        keys: Vec<u64>,
        name: String,
        params: String,
    },
    Hyperparameter {
        name: String,
        bits: u64,
    },
    KeyHyperparameter {
        key: u64,
        name: String,
        bits: u64,
    },
    Compression {
        name: String,
        params: String,
    },
    /// Clipping by the norm of the gradients of a call, or its end.
    Clipping {
        max_norm: u64,
        fails: bool,
    },
    /// All rules of a checkpoint.
    Rules(SavedRules),
}

/// Merge rules of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SavedRules {
    optimizer: Option<(String, String)>,
    /// Key, option and the bits of its value.
    multipliers: Vec<(u64, String, u64)>,
    codec: Option<(String, String)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    keys: Vec<SavedKeyRule>,
}

/// Rule of one key in a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct SavedKeyRule {
    key: u64,
    /// None assigns.
    optimizer: Option<(String, String)>,
    /// Multiplier and the bits of its value.
    multipliers: Vec<(String, u64)>,
}

impl SavedKeyRule {
    fn of((key, merger): (Key, &Merger)) -> Self {
        let optimizer = merger.optimizer();
        let multipliers = optimizer.map(|it| it.multipliers()).unwrap_or_default();
        let own = multipliers.into_iter().filter(|(other, ..)| *other == key);
        Self {
            key: key.id(),
            optimizer: optimizer.map(|it| (it.name().to_owned(), it.options_text())),
            multipliers: own.map(|(_, name, value)| (name.to_owned(), value.to_bits())).collect(),
        }
    }

    fn merger(&self) -> Result<(Key, Merger)> {
        let key = Key::from(self.key);
        let Some((name, options)) = &self.optimizer else { return Ok((key, Merger::Assign)) };
        let mut optimizer = Optimizer::new(name, options)?;
        for (name, bits) in &self.multipliers {
            optimizer.set_key(key, name, f64::from_bits(*bits))?;
        }
        Ok((key, Merger::Optimizer(Arc::new(optimizer))))
    }
}

impl SavedRules {
    pub(crate) fn of(handling: &Handling) -> Self {
        let optimizer = optimizer(handling).ok();
        let multiplier =
            |(key, name, value): (Key, &str, f64)| (key.id(), name.to_owned(), value.to_bits());
        Self {
            optimizer: optimizer.map(|it| (it.name().to_owned(), it.options_text())),
            multipliers: optimizer
                .map(|it| it.multipliers().into_iter().map(multiplier).collect())
                .unwrap_or_default(),
            codec: handling.codec.as_ref().map(|it| (it.name().to_owned(), it.params())),
            keys: handling.rules.iter().map(SavedKeyRule::of).collect(),
        }
    }

    fn apply(&self, handling: &mut Handling) -> Result<()> {
        if let Some((name, options)) = &self.optimizer {
            let mut optimizer = Optimizer::new(name, options)?;
            for (key, name, bits) in &self.multipliers {
                optimizer.set_key(Key::from(*key), name, f64::from_bits(*bits))?;
            }
            handling.merger = Merger::Optimizer(Arc::new(optimizer));
        }
        let rules = self.keys.iter().map(SavedKeyRule::merger);
        handling.rules = KeyRules::from(rules.collect::<Result<HashMap<_, _>>>()?);
        if let Some((name, params)) = &self.codec {
            handling.codec = Codec::new(name, params)?.map(Arc::new);
        }
        Ok(())
    }
}

impl Change {
    pub(crate) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(crate) fn decode(fields: &[u8]) -> Result<Self> {
        serde_json::from_slice(fields)
            .map_err(|error| fail!(InvalidArgument, "an unreadable setting: {error}"))
    }

    /// Whether the rule needs uncut keys.
    pub(crate) fn measures_whole_keys(&self) -> bool {
        let (Self::Optimizer { name, params } | Self::KeyOptimizer { name, params, .. }) = self
        else {
            return false;
        };
        Optimizer::new(name, params).is_ok_and(|rule| !rule.is_elementwise())
    }

    /// Settings of pushes after this change.
    pub(crate) fn apply(&self, before: &Handling) -> Result<Handling> {
        let mut after = before.clone();
        match self {
            Self::Optimizer { name, params } => {
                after.merger = Merger::Optimizer(Arc::new(Optimizer::new(name, params)?));
            }
            Self::KeyOptimizer { keys, name, params } => {
                let keys: Vec<Key> = keys.iter().copied().map(Key::from).collect();
                after.rules = before.rules.with(&keys, rule_of_keys(name, params)?.as_ref());
            }
            Self::Hyperparameter { name, bits } => {
                let optimizer = optimizer(before)?.with(name, f64::from_bits(*bits))?;
                after.merger = Merger::Optimizer(Arc::new(optimizer));
            }
            Self::KeyHyperparameter { key, name, bits } => {
                let (key, value) = (Key::from(*key), f64::from_bits(*bits));
                let own = before.rules.changed(key, |rule| rule.with_own(key, name, value));
                if let Some(rules) = own {
                    return Ok(Handling { rules: rules?, ..after });
                }
                let optimizer = optimizer(before)?.with_key(key, name, value)?;
                after.merger = Merger::Optimizer(Arc::new(optimizer));
            }
            Self::Compression { name, params } => {
                after.codec = Codec::new(name, params)?.map(Arc::new);
            }
            Self::Clipping { max_norm, fails } => {
                let non_finite = if *fails { NonFinite::Fail } else { NonFinite::Skip };
                after.clipping = Clipping::new(f64::from_bits(*max_norm), non_finite);
            }
            Self::Rules(rules) => rules.apply(&mut after)?,
        }
        Ok(after)
    }
}

fn optimizer(handling: &Handling) -> Result<&Optimizer> {
    match &handling.merger {
        Merger::Optimizer(optimizer) => Ok(optimizer),
        _ => Err(fail!(InvalidArgument, "no optimizer is set; set one first")),
    }
}
