//! The passes of a rule over a key on a device: they become jobs.

use super::jobs::{JobList, RuleArrays};
use super::name::KernelName;
use crate::error::Result;
use crate::kernel::{Meter, Rule, Squares};
use crate::optim::{Passes, RowRule};
use crate::tensor::DType;

/// A push of one key under an element-wise rule.
pub(crate) struct DevicePasses<'a> {
    pub(crate) list: &'a mut JobList,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
    pub(crate) arrays: RuleArrays,
    /// Whether the value is the master of an f16 or bf16 one, which is then among the outs.
    pub(crate) is_master: bool,
    pub(crate) inputs: &'a [u64],
    pub(crate) outs: &'a [u64],
    /// Of adding the job.
    pub(crate) result: Result<()>,
}

impl Passes for DevicePasses<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        let constants = self.list.constants().len();
        rule.constants(self.list.constants());
        let kernel = KernelName::rule(rule.name(), self.dtype, self.is_master);
        let (arrays, inputs, outs) = (self.arrays, self.inputs, self.outs);
        self.result = self.list.merge(kernel, self.count, constants, arrays, inputs, outs);
    }

    fn measure(&mut self, _: &dyn Meter) -> Squares {
        unreachable!("rules that measure whole keys are refused for keys on a device")
    }

    fn has_rows(&self) -> bool {
        false
    }

    fn merge_rows(&mut self, _: &dyn RowRule) {
        unreachable!("rules of rows are refused for keys on a device")
    }
}
