//! Checkpoints of a store: which tensors and texts a file holds. Also called: snapshots.
//!
//! A file has the keys in processing order. The tensors of a key are its value, its optimizer
//! state, its master, and its codec residuals. After all keys come the tensors with one number for
//! each key.

mod load;
mod naming;
mod save;
mod values;

use std::path::Path;
use std::sync::Arc;

pub(crate) use naming::KeyNamer;

use super::merger::{KeyRules, Merger};
use super::table::Slot;
use crate::checkpoint::{FileHeader, KeyName, part_name};
use crate::codec::Codec;
use crate::error::{Error, Result, fail};
use crate::key::Key;
use crate::optim::{KeptArrays, Optimizer};
use crate::tensor::DType;

/// Texts of the header.
const VERSION: &str = "kvstore.version";
const OPTIMIZER: &str = "kvstore.optimizer";
const OPTIONS: &str = "kvstore.options";
const CODEC: &str = "kvstore.codec";
const CODEC_OPTIONS: &str = "kvstore.codec_options";
/// The number of workers with residuals, if not one.
const WORKERS: &str = "kvstore.workers";
/// Begins the names of texts of single keys, of multipliers and of rules: `kvstore.lr_mult:NAME`.
const PREFIX: &str = "kvstore.";
/// The rule of a single key with its options: `kvstore.rule:NAME`; assignment is `none`.
const RULE: &str = "rule";

/// Begins the parts that are arrays of state: `state.0`.
const STATE: &str = "state.";
/// The part that is the unrounded value.
const MASTER: &str = "master";
/// Begins the parts that are codec residuals: `residual.2.1` of worker 2 and the second value.
const RESIDUAL: &str = "residual.";

/// Tensors with one number for each key: pushes under the optimizer, and what its rule carries.
const NUMBERS: [(&str, DType); 2] = [("#updates", DType::I64), ("#carried", DType::F64)];
/// Tensors with one number for each key and worker: pushes under the codec.
const ROUNDS: (&str, DType) = ("#rounds", DType::I64);

/// How pushes merge, as far as files record it.
struct FileRules {
    optimizer: Option<Arc<Optimizer>>,
    /// Rules of single keys.
    keys: KeyRules,
    codec: Option<Arc<Codec>>,
    /// With more than one, each of them has a residual of the sum of its values.
    workers: usize,
}

impl FileRules {
    /// The optimizer of a key.
    fn optimizer_of(&self, key: Key) -> Option<&Arc<Optimizer>> {
        self.keys.get(key).map_or(self.optimizer.as_ref(), Merger::optimizer)
    }

    /// Whether keys may have state.
    fn optimizes(&self) -> bool {
        self.optimizer.is_some() || self.keys.iter().any(|(_, it)| it.optimizer().is_some())
    }

    /// The part of a codec's residual, by its place among those of its key.
    fn residual(&self, at: usize) -> String {
        let (worker, value) = if self.workers > 1 { (at, 0) } else { (0, at) };
        format!("{RESIDUAL}{worker}.{value}")
    }
}

/// The state of a key beside its value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct KeyParts {
    /// The optimizer's state, if the key has been pushed under it.
    kept: Option<KeptArrays>,
    /// Values, or workers, with a residual.
    residuals: usize,
}

/// Adds the tensors of a key to a header.
fn add_key(
    header: &mut FileHeader,
    name: KeyName<'_>,
    slot: &Slot,
    rules: &FileRules,
    parts: KeyParts,
) {
    header.add(name.to_string(), slot.dtype, &slot.shape);
    if let (Some(optimizer), Some(kept)) = (rules.optimizer_of(slot.key), parts.kept) {
        let full = slot.dtype.full();
        let shape = optimizer.state_shape(&slot.shape, slot.rows());
        for at in 0..kept.states {
            header.add(part_name(&format!("{STATE}{at}"), name), full, &shape);
        }
        if kept.has_master && slot.dtype.is_half() {
            header.add(part_name(MASTER, name), full, &slot.shape);
        }
    }
    if rules.codec.is_some() && slot.dtype.is_float() {
        for at in 0..parts.residuals {
            header.add(part_name(&rules.residual(at), name), DType::F32, &slot.shape);
        }
    }
}

/// Adds the tensors with one number for each of so many keys.
fn add_numbers(header: &mut FileHeader, rules: &FileRules, keys: usize) {
    let mut shape = vec![keys.cast_signed() as i64];
    if rules.optimizes() {
        NUMBERS.iter().for_each(|(name, dtype)| header.add((*name).to_owned(), *dtype, &shape));
    }
    if rules.codec.is_some() {
        shape.extend((rules.workers > 1).then_some(rules.workers.cast_signed() as i64));
        header.add(ROUNDS.0.to_owned(), ROUNDS.1, &shape);
    }
}

/// Refuses processors whose memory is not in the byte order of files.
pub(super) fn check_byte_order(call: &str) -> Result<()> {
    if cfg!(target_endian = "little") {
        return Ok(());
    }
    Err(fail!(Unsupported, "{call}: files are little-endian, this processor is not"))
}

/// Names the file in an error.
fn at_file(call: &str, path: &Path) -> impl Fn(Error) -> Error {
    move |error| error.at(format_args!("{call}: \"{}\"", path.display()))
}
