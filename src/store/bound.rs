//! Bound lists of a store: keys with values and outs that the same calls use again and again.

use std::fmt;

use super::data::pair_outs;
use super::{CallClass, DataCall, Store};
use crate::error::Result;
use crate::key::Key;
use crate::local::fast::bound_calls::{BoundPairs, BoundPlan};
use crate::local::plan::{Pairs, Tensors};
use crate::tensor::{Element, TensorMut};

/// Keys with their values and outs, checked once by [`Store::bind`]: each later push, pull or pushpull
/// costs little beside the bytes.
///
/// It borrows the tensors; between calls they are read and written through it. The bits are those of
/// the list calls of [`Store`], and so are the errors. A key that is removed, or initialised again with
/// another dtype or shape, is an error of the next call, which changes nothing.
///
/// ```
/// # fn main() -> kvstore::Result<()> {
/// use kvstore::{Config, Key, Store};
/// let store = Store::open("local", &Config::new())?;
/// store.init(7u64, &[0.0f32; 2])?;
/// let (mut gradient, mut weight) = ([1.0f32, 2.0], [0.0f32; 2]);
/// let keys = [Key::from(7u64)];
/// let mut bound =
///     store.bind(&keys, vec![(&mut gradient).into()], &keys, vec![(&mut weight).into()])?;
/// for step in 0..3 {
///     bound.value_mut::<f32>(0).unwrap()[0] = step as f32;
///     bound.pushpull()?;
///     assert_eq!(bound.out::<f32>(0).unwrap(), [step as f32, 2.0]);
/// }
/// # Ok(())
/// # }
/// ```
pub struct BoundList<'a> {
    store: &'a Store,
    /// Of the values, and of the outs.
    keys: [Vec<Key>; 2],
    values: Vec<TensorMut<'a>>,
    outs: Vec<TensorMut<'a>>,
    plan: BoundPlan,
}

impl Store {
    /// Checks keys with their values, and keys with their outs, once, for calls that repeat. Equal keys
    /// are summed, and fill several outs. Without values the list is for pulls only, without outs for
    /// pushes only.
    ///
    /// # Errors
    /// As [`Store::pushpull_list`].
    pub fn bind<'a>(
        &'a self,
        keys: &[Key],
        values: Vec<TensorMut<'a>>,
        out_keys: &[Key],
        outs: Vec<TensorMut<'a>>,
    ) -> Result<BoundList<'a>> {
        let pairs = BoundPairs {
            values: pair_outs("bind", keys, &values)?,
            outs: pair_outs("bind", out_keys, &outs)?,
        };
        let plan = self.bind_pairs(&pairs)?;
        let keys = [keys.to_vec(), out_keys.to_vec()];
        Ok(BoundList { store: self, keys, values, outs, plan })
    }

    /// Checks bound lists, and plans their calls.
    pub(crate) fn bind_pairs(&self, pairs: &BoundPairs<'_>) -> Result<BoundPlan> {
        let BoundPairs { values, outs } = pairs;
        let _span = self.span("bind", values, outs);
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.bind(values, outs).map(|()| BoundPlan::of_job()),
            None => local.bind(pairs),
        })
    }

    /// Runs a call of bound lists on the caller's thread.
    pub(crate) fn call_bound(
        &self,
        call: DataCall,
        plan: &BoundPlan,
        pairs: &BoundPairs<'_>,
    ) -> Result<()> {
        let (values, outs) = pairs.of(call)?;
        let _span = self.span(call.name(), &values, &outs);
        self.enter(CallClass::Work, |local| {
            local.run_bound(call, plan, pairs, || match &self.remote {
                Some(remote) => remote.run(call, &values, &outs),
                None => local.run(call, &values, &outs),
            })
        })
    }
}

impl BoundList<'_> {
    /// Adds up the values of each key and merges the sums, as [`Store::push_list`].
    ///
    /// # Errors
    /// As there; `InvalidArgument` without values.
    pub fn push(&mut self) -> Result<()> {
        self.call(DataCall::Push)
    }

    /// Copies the stored values to the outs, as [`Store::pull_list`].
    ///
    /// # Errors
    /// As there; `InvalidArgument` without outs.
    pub fn pull(&mut self) -> Result<()> {
        self.call(DataCall::Pull)
    }

    /// Pushes, then pulls, in one operation, as [`Store::pushpull_list`].
    ///
    /// # Errors
    /// As there; `InvalidArgument` without values or outs.
    pub fn pushpull(&mut self) -> Result<()> {
        self.call(DataCall::PushPull)
    }

    /// Elements of a value in row-major order, to change them before the next push, if they are of this
    /// type without gaps.
    #[must_use]
    pub fn value_mut<T: Element>(&mut self, index: usize) -> Option<&mut [T]> {
        self.values.get_mut(index)?.as_mut_slice()
    }

    /// Elements of an out in row-major order, if they are of this type without gaps.
    #[must_use]
    pub fn out<T: Element>(&self, index: usize) -> Option<&[T]> {
        self.outs.get(index)?.as_slice()
    }

    fn call(&mut self, call: DataCall) -> Result<()> {
        let Self { store, keys: [keys, out_keys], values, outs, plan } = self;
        let pairs = |keys, tensors| Pairs { keys, tensors: Tensors::Outs(tensors) };
        let pairs = BoundPairs { values: pairs(keys, values), outs: pairs(out_keys, outs) };
        store.call_bound(call, plan, &pairs)
    }
}

impl fmt::Debug for BoundList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (values, outs) = (self.values.len(), self.outs.len());
        f.debug_struct("BoundList").field("values", &values).field("outs", &outs).finish()
    }
}
