//! The plan of a call on some rows of its keys.

use std::ops::Range;
use std::sync::Arc;

use smallvec::SmallVec;

use super::{
    CallContext, KeyGroup, Pairs, Plan, PlannedOut, TensorUse, check, refuse_adding, refuse_sum,
    sort,
};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::key::KeyNames;
use crate::local::table::Slot;
use crate::tensor::{DType, Lent, OverlapTensor, Position, Tensor, text_of};

/// The keys of a call on rows, which rows, and their tensors. The three lists are equally long.
#[derive(Clone, Copy)]
pub(crate) struct RowPairs<'a> {
    pub(crate) ids: Pairs<'a>,
    pub(crate) rows: Pairs<'a>,
}

/// Which rows the tensors of a call have, in the order of the plan's values or outs.
#[derive(Default)]
pub(crate) struct RowLists {
    ids: Vec<usize>,
    lists: Vec<RowList>,
}

struct RowList {
    ids: Range<usize>,
    /// The extents of the ids, then those of a row.
    shape: SmallVec<[i64; 4]>,
}

/// A tensor of rows, and which rows they are.
#[derive(Clone, Copy)]
pub(crate) struct RowsOf<'a> {
    pub(crate) lent: &'a Lent,
    pub(crate) shape: &'a [i64],
    pub(crate) ids: &'a [usize],
}

impl RowLists {
    pub(super) fn clear(&mut self) {
        self.ids.clear();
        self.lists.clear();
    }

    /// The shape of a tensor; None if the call is not on rows.
    pub(super) fn shape(&self, index: usize) -> Option<&[i64]> {
        self.lists.get(index).map(|list| &*list.shape)
    }

    /// A tensor of the plan with its rows.
    pub(crate) fn of<'a>(&'a self, index: usize, lent: &'a Lent) -> RowsOf<'a> {
        let list = &self.lists[index];
        RowsOf { lent, shape: &list.shape, ids: &self.ids[list.ids.clone()] }
    }

    /// Adds the ids of a tensor once all of them are rows of the key, copied: their owner may
    /// change them.
    fn add(&mut self, scene: &CallContext<'_>, slot: &Slot, ids: &Tensor<'_>) -> Result<()> {
        let refuse = |kind: ErrorKind, why: String| {
            let (call, key) = (scene.call, scene.names.label(slot.key));
            Error::new(kind, format!("{call}: {key}: {why}"))
        };
        if ids.dtype() != DType::I64 {
            let why = format!("the row ids are {ids:?}; they must be int64");
            return Err(refuse(ErrorKind::DtypeMismatch, why));
        }
        let Some((&extent, row)) = slot.shape.split_first() else {
            let why = format!("stored is {}, a scalar, which has no rows", slot.text());
            return Err(refuse(ErrorKind::ShapeMismatch, why));
        };
        let first = self.ids.len();
        let mut beyond = None;
        ids.for_each_i64(|id| match usize::try_from(id) {
            Ok(row) if id < extent => self.ids.push(row),
            _ => beyond = beyond.or(Some(id)),
        });
        if let Some(id) = beyond {
            let why = match extent {
                0 => format!("row id {id}: stored is {}, without rows", slot.text()),
                _ => format!(
                    "row id {id} is out of range: stored is {}, with rows 0 to {}",
                    slot.text(),
                    extent - 1
                ),
            };
            return Err(refuse(ErrorKind::InvalidArgument, why));
        }
        let shape = ids.shape().iter().chain(row).copied().collect();
        self.lists.push(RowList { ids: first..self.ids.len(), shape });
        Ok(())
    }
}

impl Plan {
    /// Checks and groups a call on rows. On an error the plan is of no use until cleared.
    pub(crate) fn build_rows(
        &mut self,
        scene: &CallContext<'_>,
        pairs: &RowPairs<'_>,
        part: TensorUse,
    ) -> Result<()> {
        let held = scene.table.hold();
        let keys = pairs.rows.keys;
        let mut order = std::mem::take(&mut self.value_order);
        let result = sort(scene, &held, keys, &mut order).and_then(|()| {
            order.chunk_by(|a, b| a.0 == b.0).try_for_each(|same| {
                let slot = Arc::clone(scene.find(&held, keys[same[0].1])?);
                if let Some(device) = slot.device() {
                    return Err(refuse_rows(scene.call, scene.names, &slot, device));
                }
                let (first_value, first_out) = (self.values.len(), self.outs.len());
                for &(_, index) in same {
                    self.add_rows(scene, &slot, pairs, index, part)?;
                }
                refuse_sum(scene, &slot, self.values.len() - first_value)?;
                self.refuse_repeated(scene, &slot, first_value..self.values.len())?;
                let (values, outs) = (first_value..self.values.len(), first_out..self.outs.len());
                self.groups.push(KeyGroup { slot, values, outs });
                Ok(())
            })
        });
        self.value_order = order;
        drop(held);
        result?;
        self.check_overlaps(scene)
    }

    /// Refuses a row that a value of an opaque dtype has twice.
    fn refuse_repeated(
        &self,
        scene: &CallContext<'_>,
        slot: &Slot,
        values: Range<usize>,
    ) -> Result<()> {
        if !slot.dtype.is_opaque() {
            return Ok(());
        }
        for index in values {
            let mut ids = self.rows.ids[self.rows.lists[index].ids.clone()].to_vec();
            ids.sort_unstable();
            if let Some(twice) = ids.windows(2).find(|pair| pair[0] == pair[1]) {
                let row = twice[0];
                let why = format!("and row {row} is twice in the call; push each row once");
                return Err(refuse_adding(scene.call, scene.names, slot, &why));
            }
        }
        Ok(())
    }

    fn add_rows(
        &mut self,
        scene: &CallContext<'_>,
        slot: &Slot,
        pairs: &RowPairs<'_>,
        index: usize,
        part: TensorUse,
    ) -> Result<()> {
        let ids = pairs.ids.tensor(index, scene, TensorUse::Ids)?;
        self.rows.add(scene, slot, &ids)?;
        let place = self.rows.lists.len() - 1;
        let shape = &*self.rows.lists[place].shape;
        let rows = pairs.rows.tensor(index, scene, part)?;
        check(scene, slot, &rows, part, shape).map_err(|error| match error.kind() {
            ErrorKind::ShapeMismatch => fail!(
                ShapeMismatch,
                "{}; with the row ids {ids:?} it must be {}",
                error.message(),
                text_of(rows.dtype(), shape)
            ),
            _ => error,
        })?;
        let lent = Lent::new(&rows);
        if part == TensorUse::Out {
            let at = Position { group: self.groups.len(), index: place };
            self.overlaps.add_out(&OverlapTensor { lent: &lent, shape, at });
            self.outs.push(PlannedOut { lent, shadowed: false });
        } else {
            self.values.push(lent);
        }
        Ok(())
    }
}

/// The error of a call on rows of a key on a device.
pub(crate) fn refuse_rows(call: &str, names: &KeyNames, slot: &Slot, device: u16) -> Error {
    let key = names.label(slot.key);
    fail!(
        Unsupported,
        "{call}: {key} is in the memory of GPU {device}, where rows are not served yet; pull it \
         whole (tensor.cpu()), or use a store of the type local"
    )
}
