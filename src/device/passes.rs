//! The passes of a rule over a key on a device: they become jobs.

use super::jobs::{JobList, JobWork, KeyArrays, RuleArrays};
use super::name::KernelName;
use super::norms::NormLayout;
use crate::error::Result;
use crate::kernel::Rule;
use crate::optim::{KeyRule, Passes, RowRule};
use crate::tensor::DType;

/// A push of one key under a rule.
pub(crate) struct DevicePasses<'a> {
    pub(crate) list: &'a mut JobList,
    pub(crate) key: KeyArrays<'a>,
    /// Of a rule that needs norms: of which rows, and memory for them (see [`NormLayout::bytes`]).
    pub(crate) norms: Option<(NormLayout, u64)>,
    /// Of adding the jobs.
    pub(crate) result: Result<()>,
}

impl DevicePasses<'_> {
    /// Adds the merge by a rule, with the length of a row if its kernel has one; returns where its
    /// constants begin.
    fn add_merge(&mut self, rule: &dyn Rule, arrays: RuleArrays, extents: &[u64]) -> Result<usize> {
        let KeyArrays { dtype, count, is_master, inputs, outs, .. } = self.key;
        let constants = self.list.constants().len();
        rule.constants(self.list.constants());
        let kernel = KernelName::rule(rule.name(), dtype, is_master);
        let work = JobWork { arrays, inputs, outs, extents, constants };
        self.list.merge(kernel, count, &work)?;
        Ok(constants)
    }

    /// Adds the norms of a key, the number that follows, and the merge with that number.
    fn add_key(&mut self, key: &dyn KeyRule, (layout, memory): (NormLayout, u64)) -> Result<()> {
        layout.add(self.list, key.meter(), &self.key, memory)?;
        let mut merged = Ok(0);
        key.merge(NONE, &mut |rule| merged = self.add_merge(rule, self.key.arrays, &[]));
        let first = merged?;
        let numbers = &self.list.constants()[first..];
        let at = numbers.iter().position(|it| it.to_bits() == NONE.to_bits());
        let constant = first + at.expect("the number is one of the constants of its rule");
        let constants = self.list.constants().len();
        key.norm().constants(self.list.constants());
        let inputs = &layout.of_rows_at(memory);
        let work = JobWork { inputs, constants, ..JobWork::default() };
        let kernel = KernelName::rule(key.norm().name(), DType::F64, false);
        self.list.key_number(kernel, layout.rows, constant, work)
    }

    /// Adds the norms of rows, the numbers that follow, and the merge with these numbers.
    fn add_rows(&mut self, rows: &dyn RowRule, (layout, memory): (NormLayout, u64)) -> Result<()> {
        let KeyArrays { dtype, arrays, .. } = self.key;
        // A measure has no states here: the state is the row's.
        let measured = KeyArrays {
            arrays: RuleArrays { value: arrays.value, ..RuleArrays::default() },
            ..self.key
        };
        layout.add(self.list, rows.meter(), &measured, memory)?;
        let [sums, numbers] = layout.of_rows_at(memory);
        let constants = self.list.constants().len();
        #[allow(clippy::cast_precision_loss, reason = "far beyond what a row can have")]
        self.list.constants().push(layout.length as f64);
        rows.norm().constants(self.list.constants());
        let (inputs, outs) = (&[sums], &[numbers]);
        let work = JobWork { arrays, inputs, outs, extents: &[], constants };
        let kernel = KernelName::rule(rows.norm().name(), dtype.full(), false);
        self.list.row_numbers(kernel, layout.rows, &work)?;
        let mut states = arrays.states;
        states[0] = numbers;
        let arrays = RuleArrays { states, ..arrays };
        self.add_merge(rows.rule(), arrays, &layout.extent()).map(drop)
    }
}

/// What the passes of rules with norms rely on.
const NORMS: &str = "a rule that measures has memory for norms";

/// Takes the place of a number that a kernel will write: no rule has such a NaN among its constants.
const NONE: f64 = f64::from_bits(0x7FF8_6E6F_6E65_0000);

impl Passes for DevicePasses<'_> {
    fn merge(&mut self, rule: &dyn Rule) {
        self.result = self.add_merge(rule, self.key.arrays, &[]).map(drop);
    }

    fn merge_key(&mut self, key: &dyn KeyRule) {
        let norms = self.norms.expect(NORMS);
        self.result = self.add_key(key, norms);
    }

    fn has_rows(&self) -> bool {
        self.norms.is_some_and(|(layout, _)| layout.is_of_rows())
    }

    fn merge_rows(&mut self, rows: &dyn RowRule) {
        let norms = self.norms.expect(NORMS);
        self.result = self.add_rows(rows, norms);
    }
}
