//! Options of `kvstore bench`: the cases to measure.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use anyhow::{Result, bail, ensure};
use clap::Args;
use kvstore::DType;

use super::case::{BenchCase, BenchCases, BenchOp, BenchOptimizer, name};
use super::values::{BenchValues, new_values};

#[derive(Debug, Args)]
pub(crate) struct BenchWork {
    /// Bytes of the value of one key, with K, M or G
    #[arg(long, value_name = "BYTES,...", value_delimiter = ',', value_parser = bytes)]
    #[arg(default_value = "4K,256K,4M,64M")]
    sizes: Vec<usize>,

    /// How many keys one call has
    #[arg(long, value_name = "COUNT,...", value_delimiter = ',', value_parser = count)]
    #[arg(default_value = "1,100,1000")]
    keys: Vec<NonZeroUsize>,

    /// What to measure
    #[arg(long, value_name = "CALL,...", value_delimiter = ',', value_enum)]
    #[arg(default_value = "push,pull,pushpull")]
    ops: Vec<BenchOp>,

    /// How pushes merge: they replace the value, or an optimizer changes it
    #[arg(long, value_enum, default_value_t = BenchOptimizer::None)]
    pub(crate) optimizer: BenchOptimizer,

    /// The type of the elements, such as float16
    #[arg(long, value_name = "TYPE", value_parser = dtype, default_value = "float32")]
    pub(crate) dtype: DType,

    /// Leave out cases with more bytes than this in one call
    #[arg(long, value_name = "BYTES", value_parser = bytes, default_value = "256M")]
    most: usize,

    /// About how long to measure each case
    #[arg(long, value_name = "SECONDS", value_parser = seconds, default_value = "1")]
    pub(crate) seconds: f64,

    /// Measure each case exactly so often, however long that takes
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds")]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=10_000))]
    pub(crate) rounds: Option<u16>,

    /// Draw the throughput over the size into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,

    /// Print one object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl BenchWork {
    pub(crate) fn check(&self) -> Result<()> {
        let (element, dtype) = (self.dtype.size(), self.dtype.name());
        if let Some(size) = self.sizes.iter().find(|size| **size % element != 0) {
            bail!(
                "a value of {size} bytes is no whole number of {dtype}; use a multiple of {element}"
            );
        }
        // The 16-bit result of many steps has no closed form to compare with.
        ensure!(
            self.optimizer == BenchOptimizer::None || matches!(self.dtype, DType::F32 | DType::F64),
            "the results of --optimizer {} are checked in float32 and float64 only, not in {dtype}",
            name(&self.optimizer)
        );
        ensure!(
            !self.cases().measured.is_empty(),
            "every case has more than {} in one call; say --most, or use fewer keys or smaller \
             sizes",
            size_name(self.most)
        );
        Ok(())
    }

    pub(crate) fn cases(&self) -> BenchCases {
        let mut cases = BenchCases { measured: Vec::new(), left_out: Vec::new() };
        for keys in self.keys.iter().map(|keys| keys.get()) {
            for &size in &self.sizes {
                if keys.checked_mul(size).is_none_or(|bytes| bytes > self.most) {
                    cases.left_out.push((keys, size));
                    continue;
                }
                let case = |op: &BenchOp| BenchCase { op: *op, keys, size };
                cases.measured.extend(self.ops.iter().map(case));
            }
        }
        cases
    }

    /// The arrays of a case.
    pub(crate) fn values(&self, case: &BenchCase) -> Box<dyn BenchValues> {
        new_values(self.dtype, case.keys, case.size / self.dtype.size())
    }

    /// The options that must be equal on all workers, as a text.
    pub(crate) fn text(&self) -> String {
        let Self { sizes, keys, ops, optimizer, dtype, most, seconds, rounds, .. } = self;
        format!(
            "{} {sizes:?} {keys:?} {ops:?} {optimizer:?} {dtype:?} {most} {seconds} {rounds:?}",
            kvstore::VERSION
        )
    }
}

/// Bytes as the command line takes them, such as `4K`.
pub(crate) fn size_name(bytes: usize) -> String {
    for (shift, unit) in [(30, "G"), (20, "M"), (10, "K")] {
        if bytes != 0 && bytes.trailing_zeros() >= shift {
            return format!("{}{unit}", bytes >> shift);
        }
    }
    bytes.to_string()
}

fn bytes(text: &str) -> Result<usize, String> {
    const FORM: &str = "must be bytes such as 512, 4K, 64M or 1G";
    let (digits, shift) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 10),
        Some((at, 'm' | 'M')) => (&text[..at], 20),
        Some((at, 'g' | 'G')) => (&text[..at], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| FORM.to_owned())?;
    let bytes = number.checked_mul(1 << shift).filter(|bytes| *bytes > 0);
    bytes.ok_or_else(|| FORM.to_owned())
}

fn count(text: &str) -> Result<NonZeroUsize, String> {
    text.parse().map_err(|_| "must be a number of keys from 1 on".to_owned())
}

fn seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.001..=600.0).contains(seconds));
    seconds.ok_or_else(|| "must be seconds from 0.001 to 600".to_owned())
}

fn dtype(text: &str) -> Result<DType, String> {
    let summed = || DType::ALL.iter().filter(|dtype| !dtype.is_opaque());
    let named = summed().find(|dtype| dtype.name() == text);
    named.copied().ok_or_else(|| {
        let names: Vec<&str> = summed().map(|dtype| dtype.name()).collect();
        format!("must be one of {}", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::{bytes, size_name};

    #[test]
    fn sizes_are_read_as_they_are_written() {
        for (text, count) in [("512", 512), ("4K", 4096), ("6M", 6 << 20), ("1G", 1 << 30)] {
            assert_eq!((bytes(text), &*size_name(count)), (Ok(count), text));
        }
        for text in ["", "K", "-1", "0", "4KB", "1.5M", "99999999999999G"] {
            assert!(bytes(text).is_err(), "{text}");
        }
    }
}
