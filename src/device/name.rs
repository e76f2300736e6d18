//! Names of kernels.

use std::fmt;

use crate::tensor::DType;

/// The name of a kernel: a formula or copy, and a type of elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct KernelName {
    formula: &'static str,
    mode: &'static str,
    is_master: bool,
}

impl fmt::Display for KernelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let master = if self.is_master { "_master" } else { "" };
        write!(f, "{}_{}{master}", self.formula, self.mode)
    }
}

impl KernelName {
    /// The kernel that adds arrays of a dtype up, part by part.
    pub(crate) fn sum(dtype: DType) -> Self {
        Self::rule("assign", dtype, false)
    }

    /// The kernel of a formula; of f16 or bf16 possibly with a master.
    pub(crate) fn rule(formula: &'static str, dtype: DType, is_master: bool) -> Self {
        Self { formula, mode: mode(dtype), is_master }
    }

    /// The kernel that copies between strides, from a dtype to an equal one, part by part, or between
    /// floats.
    pub(crate) fn copy(from: DType, to: DType) -> Self {
        if from == to {
            let mode = ["8", "16", "32", "64"][size_class(from)];
            return Self { formula: "copy", mode, is_master: false };
        }
        let formula = match from {
            DType::F16 => "copy_f16",
            DType::BF16 => "copy_bf16",
            DType::F32 => "copy_f32",
            _ => "copy_f64",
        };
        Self { formula, mode: mode(to), is_master: false }
    }
}

/// A dtype in the names of kernels. Signed and unsigned integers wrap to the same bits; opaque values,
/// which are only copied, are integers of the size of their parts.
fn mode(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::F32 => "f32",
        DType::F64 => "f64",
        DType::BF16 => "bf16",
        other => ["i8", "i16", "i32", "i64"][size_class(other)],
    }
}

/// The logarithm of the size of a part.
fn size_class(dtype: DType) -> usize {
    (dtype.size() / dtype.parts()).ilog2() as usize
}
