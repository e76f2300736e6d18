//! What the workers change about merging, as it travels to the servers.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::codec::Codec;
use crate::error::{Result, fail};
use crate::key::Key;
use crate::optim::Optimizer;
use crate::store::merger::{Handling, Merger};

/// One change. Numbers travel by their bits, so that nothing is rounded.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Change {
    Optimizer { name: String, params: String },
    Hyperparameter { name: String, bits: u64 },
    KeyHyperparameter { key: u64, name: String, bits: u64 },
    Compression { name: String, params: String },
}

impl Change {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).unwrap_or_default()
    }

    pub(super) fn decode(fields: &[u8]) -> Result<Self> {
        serde_json::from_slice(fields)
            .map_err(|error| fail!(InvalidArgument, "a setting that nobody can read: {error}"))
    }

    /// What happens to pushes after this change.
    pub(super) fn apply(&self, before: &Handling) -> Result<Handling> {
        let mut after = before.clone();
        match self {
            Self::Optimizer { name, params } => {
                after.merger = Merger::Optimizer(Arc::new(Optimizer::new(name, params)?));
            }
            Self::Hyperparameter { name, bits } => {
                let optimizer = optimizer(before)?.with(name, f64::from_bits(*bits))?;
                after.merger = Merger::Optimizer(Arc::new(optimizer));
            }
            Self::KeyHyperparameter { key, name, bits } => {
                let (key, value) = (Key::from(*key), f64::from_bits(*bits));
                let optimizer = optimizer(before)?.with_key(key, name, value)?;
                after.merger = Merger::Optimizer(Arc::new(optimizer));
            }
            Self::Compression { name, params } => {
                after.codec = Codec::new(name, params)?.map(Arc::new);
            }
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
