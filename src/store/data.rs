//! Data calls of a store: initialisation, pushes, pulls and removal of keys.

use super::{CallClass, DataCall, Store};
use crate::error::{Result, fail};
use crate::key::Key;
use crate::local::plan::{Pairs, RowPairs, Tensors};
use crate::spans;
use crate::tensor::{Tensor, TensorMut};

impl Store {
    /// Stores the first value of a key; the value is copied.
    ///
    /// # Errors
    /// `KeyExists`, `OutOfMemory`.
    pub fn init<'a>(&self, key: impl Into<Key>, value: impl Into<Tensor<'a>>) -> Result<()> {
        self.init_list(&[key.into()], &[value.into()])
    }

    /// Stores the first values of several keys, of all or of none.
    ///
    /// # Errors
    /// As [`Store::init`]; `InvalidArgument` if the lists differ in length.
    pub fn init_list(&self, keys: &[Key], values: &[Tensor<'_>]) -> Result<()> {
        self.init_pairs(&pair("init", keys, values)?)
    }

    pub(crate) fn init_pairs(&self, values: &Pairs<'_>) -> Result<()> {
        let _span = self.span("init", values, &Pairs::NONE);
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.init(values),
            None => local.init(values),
        })
    }

    /// Merges one value into a key.
    ///
    /// # Errors
    /// `KeyNotFound`, `ShapeMismatch`, `DtypeMismatch`, `Unsupported` for opaque values that would be
    /// added: nothing has been applied. `Callback`.
    pub fn push<'a>(&self, key: impl Into<Key>, value: impl Into<Tensor<'a>>) -> Result<()> {
        self.push_list(&[key.into()], &[value.into()])
    }

    /// Adds up the values of each key, left to right, and merges each sum into its key.
    ///
    /// # Errors
    /// As [`Store::push`]. After `Callback`, keys before the one in the message are applied.
    pub fn push_list(&self, keys: &[Key], values: &[Tensor<'_>]) -> Result<()> {
        self.call(DataCall::Push, &pair("push", keys, values)?, &Pairs::NONE)
    }

    /// Copies a stored value out.
    ///
    /// # Errors
    /// `KeyNotFound`, `ShapeMismatch`, `DtypeMismatch`, `Overlap`: nothing has been written.
    pub fn pull<'a>(&self, key: impl Into<Key>, out: impl Into<TensorMut<'a>>) -> Result<()> {
        self.pull_list(&[key.into()], &mut [out.into()])
    }

    /// Copies stored values out; equal keys fill several outs.
    ///
    /// # Errors
    /// As [`Store::pull`].
    pub fn pull_list(&self, keys: &[Key], outs: &mut [TensorMut<'_>]) -> Result<()> {
        self.call(DataCall::Pull, &Pairs::NONE, &pair_outs("pull", keys, outs)?)
    }

    /// Pushes, then pulls, in one operation.
    ///
    /// # Errors
    /// As [`Store::push_list`] and [`Store::pull_list`].
    pub fn pushpull_list(
        &self,
        keys: &[Key],
        values: &[Tensor<'_>],
        out_keys: &[Key],
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        self.call_both(DataCall::PushPull, (keys, values), (out_keys, outs))
    }

    /// Initialises, then pulls.
    ///
    /// # Errors
    /// As [`Store::init_list`] and [`Store::pull_list`].
    pub fn broadcast_list(
        &self,
        keys: &[Key],
        values: &[Tensor<'_>],
        out_keys: &[Key],
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        self.call_both(DataCall::Broadcast, (keys, values), (out_keys, outs))
    }

    /// Runs a call that has values and outs.
    fn call_both(
        &self,
        call: DataCall,
        (keys, values): (&[Key], &[Tensor<'_>]),
        (out_keys, outs): (&[Key], &mut [TensorMut<'_>]),
    ) -> Result<()> {
        let name = call.name();
        self.call(call, &pair(name, keys, values)?, &pair_outs(name, out_keys, outs)?)
    }

    /// Merges values into some rows of a key: row `ids[i]` of the first axis gets `rows[i]`.
    ///
    /// `ids` are i64 of any shape; `rows` has the shape of `ids`, then that of a row. A row that is
    /// named several times gets the sum, in order. Without updater or optimizer exactly these rows
    /// are replaced; an updater gets the sum as a dense array, and so does an optimizer, unless its
    /// option `lazy_update` is set.
    ///
    /// # Errors
    /// As [`Store::push`]; `InvalidArgument` for an id that is not a row of the key.
    pub fn push_rows<'a>(
        &self,
        key: impl Into<Key>,
        ids: impl Into<Tensor<'a>>,
        rows: impl Into<Tensor<'a>>,
    ) -> Result<()> {
        self.push_rows_list(&[key.into()], &[ids.into()], &[rows.into()])
    }

    /// Merges values into rows of several keys; equal keys are summed per row, left to right.
    ///
    /// # Errors
    /// As [`Store::push_rows`].
    pub fn push_rows_list(
        &self,
        keys: &[Key],
        ids: &[Tensor<'_>],
        rows: &[Tensor<'_>],
    ) -> Result<()> {
        let (ids, rows) = (pair("push_rows", keys, ids)?, pair("push_rows", keys, rows)?);
        self.call_rows(DataCall::PushRows, &RowPairs { ids, rows })
    }

    /// Copies rows of a stored value out: `out[i]` gets row `ids[i]`. The shape of `out` is that of
    /// `ids`, then that of a row.
    ///
    /// # Errors
    /// As [`Store::pull`]; `InvalidArgument` for an id that is not a row of the key.
    pub fn pull_rows<'a>(
        &self,
        key: impl Into<Key>,
        ids: impl Into<Tensor<'a>>,
        out: impl Into<TensorMut<'a>>,
    ) -> Result<()> {
        self.pull_rows_list(&[key.into()], &[ids.into()], &mut [out.into()])
    }

    /// Copies rows of several stored values out; equal keys fill several outs.
    ///
    /// # Errors
    /// As [`Store::pull_rows`].
    pub fn pull_rows_list(
        &self,
        keys: &[Key],
        ids: &[Tensor<'_>],
        outs: &mut [TensorMut<'_>],
    ) -> Result<()> {
        let (ids, rows) = (pair("pull_rows", keys, ids)?, pair_outs("pull_rows", keys, outs)?);
        self.call_rows(DataCall::PullRows, &RowPairs { ids, rows })
    }

    /// Removes keys and frees their values.
    ///
    /// # Errors
    /// `KeyNotFound`, `Timeout`: nothing has been removed.
    pub fn remove(&self, keys: &[Key]) -> Result<()> {
        let _span = spans::enter!("remove", keys = keys.len());
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.remove(keys),
            None => local.remove(keys),
        })
    }

    pub(super) fn span(&self, call: &str, values: &Pairs<'_>, outs: &Pairs<'_>) -> spans::Entered {
        let keys = if values.keys.is_empty() { outs.keys } else { values.keys };
        spans::call(call, &self.local.keys.names, keys, || values.bytes() + outs.bytes())
    }

    /// Runs a data call on the caller's thread.
    pub(crate) fn call(&self, call: DataCall, values: &Pairs<'_>, outs: &Pairs<'_>) -> Result<()> {
        let _span = self.span(call.name(), values, outs);
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.run(call, values, outs),
            None => local.run(call, values, outs),
        })
    }

    /// Queues a data call; gives its ticket.
    pub(crate) fn submit(
        &self,
        call: DataCall,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        let span = self.span(call.name(), values, outs);
        // A broadcast initialises keys, which waits for the other workers.
        let gate = if call == DataCall::Broadcast { CallClass::Work } else { CallClass::Now };
        let ticket = self.enter(gate, |local| match &self.remote {
            Some(remote) => remote.submit(call, values, outs, priority),
            None => local.submit(call, values, outs, priority),
        });
        spans::note_ticket(&span, &ticket);
        ticket
    }

    /// Runs a call on rows on the caller's thread.
    pub(crate) fn call_rows(&self, call: DataCall, pairs: &RowPairs<'_>) -> Result<()> {
        let _span = self.span(call.name(), &pairs.rows, &Pairs::NONE);
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.run_rows(call, pairs),
            None => local.run_rows(call, pairs),
        })
    }

    /// Queues a call on rows; gives its ticket.
    pub(crate) fn submit_rows(
        &self,
        call: DataCall,
        pairs: &RowPairs<'_>,
        priority: i32,
    ) -> Result<u64> {
        let span = self.span(call.name(), &pairs.rows, &Pairs::NONE);
        let ticket = self.enter(CallClass::Now, |local| match &self.remote {
            Some(remote) => remote.submit_rows(call, pairs, priority),
            None => local.submit_rows(call, pairs, priority),
        });
        spans::note_ticket(&span, &ticket);
        ticket
    }
}

/// The values of a call in Rust.
pub(crate) fn pair<'a>(call: &str, keys: &'a [Key], values: &'a [Tensor<'a>]) -> Result<Pairs<'a>> {
    same_length(call, keys.len(), values.len())?;
    Ok(Pairs { keys, tensors: Tensors::Values(values) })
}

/// The outs of a call in Rust.
pub(crate) fn pair_outs<'a>(
    call: &str,
    keys: &'a [Key],
    outs: &'a [TensorMut<'a>],
) -> Result<Pairs<'a>> {
    same_length(call, keys.len(), outs.len())?;
    Ok(Pairs { keys, tensors: Tensors::Outs(outs) })
}

fn same_length(call: &str, keys: usize, tensors: usize) -> Result<()> {
    if keys == tensors {
        return Ok(());
    }
    Err(fail!(InvalidArgument, "{call}: {keys} keys and {tensors} tensors; each key needs one"))
}
