//! The plan of one call: its pairs checked, grouped by key, and put in processing order. Also
//! called: validation and planning.

#[cfg(feature = "cuda")]
pub(crate) mod devices;
pub(crate) mod rows;

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::ops::Range;
use std::sync::Arc;

#[cfg(feature = "cuda")]
pub(crate) use devices::DeviceAccess;
pub(crate) use rows::{RowLists, RowPairs, RowsOf, refuse_rows};

use super::table::{KeyHasher, KeyTable, LockedTable, Slot};
use super::ticket::OperationLabel;
use crate::deadline::LazyDeadline;
#[cfg(feature = "cuda")]
use crate::device::{CallMarks, CallQueues};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::key::{Key, KeyNames};
use crate::local::call::DataCall;
use crate::search;
use crate::tensor::{
    CallTensors, DType, Lent, Memory, OverlapTensor, Overlaps, Place, Position, RawTensors, Stop,
    Tensor, TensorMut, TensorSpec, TimeLimit,
};

/// The tensors of a call.
#[derive(Clone, Copy)]
pub(crate) enum Tensors<'a> {
    Values(&'a [Tensor<'a>]),
    Outs(&'a [TensorMut<'a>]),
    /// Of the C interface; checked one by one, when they are asked for.
    Raw(RawTensors<'a>),
}

impl<'a> Tensors<'a> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Tensors::Values(tensors) => tensors.len(),
            Tensors::Outs(tensors) => tensors.len(),
            Tensors::Raw(tensors) => tensors.len(),
        }
    }

    pub(crate) fn get(&self, index: usize) -> Result<Tensor<'a>> {
        match self {
            Tensors::Values(tensors) => Ok(tensors[index]),
            Tensors::Outs(tensors) => Ok(*tensors[index].as_tensor()),
            Tensors::Raw(tensors) => tensors.get(index),
        }
    }
}

/// The (key, tensor) pairs of a call. There are as many tensors as keys.
#[derive(Clone, Copy)]
pub(crate) struct Pairs<'a> {
    pub(crate) keys: &'a [Key],
    pub(crate) tensors: Tensors<'a>,
}

impl<'a> Pairs<'a> {
    pub(crate) const NONE: Pairs<'static> = Pairs { keys: &[], tensors: Tensors::Values(&[]) };

    /// Key, dtype and number of elements of all tensors that are valid.
    pub(crate) fn sizes(&self) -> impl Iterator<Item = (Key, DType, usize)> {
        (0..self.keys.len()).filter_map(|index| {
            let tensor = self.tensors.get(index).ok()?;
            Some((self.keys[index], tensor.dtype(), tensor.count()))
        })
    }

    /// Bytes of all tensors that are valid.
    pub(crate) fn bytes(&self) -> usize {
        self.sizes().map(|(_, dtype, count)| count * dtype.size()).sum()
    }

    /// The data of a tensor if a quick check finds a plain array of a dtype and shape; None if it
    /// needs a full check.
    #[inline]
    pub(crate) fn fits(&self, index: usize, spec: &TensorSpec) -> Option<*mut u8> {
        match self.tensors {
            Tensors::Values(tensors) => tensors[index].fits(spec),
            Tensors::Outs(tensors) => tensors[index].as_tensor().fits(spec),
            Tensors::Raw(tensors) => tensors.fits(index, spec),
        }
    }

    /// A tensor of the list that fits its key, lent to the operation.
    fn lend(
        &self,
        index: usize,
        scene: &CallContext<'_>,
        slot: &Slot,
        part: TensorUse,
    ) -> Result<Lent> {
        let tensor = self.tensor(index, scene, part)?;
        check(scene, slot, &tensor, part, &slot.shape)?;
        Ok(Lent::new(&tensor))
    }

    /// A tensor of the list; errors name the call, the key and the tensor's part in it.
    pub(crate) fn tensor(
        &self,
        index: usize,
        scene: &CallContext<'_>,
        part: TensorUse,
    ) -> Result<Tensor<'a>> {
        let tensor = self.tensors.get(index).and_then(|tensor| {
            if scene.takes_devices() { Ok(tensor) } else { tensor.in_host_memory() }
        });
        tensor.map_err(|error| scene.refuse(self.keys[index], part, &error))
    }
}

/// The part of a tensor in a call.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum TensorUse {
    Value,
    Out,
    /// Which rows a value or an out has.
    Ids,
}

impl TensorUse {
    fn name(self) -> &'static str {
        match self {
            TensorUse::Value => "value",
            TensorUse::Out => "out",
            TensorUse::Ids => "tensor of row ids",
        }
    }
}

/// Slots of keys that are not in the table yet.
pub(crate) type NewSlots = HashMap<Key, Arc<Slot>, BuildHasherDefault<KeyHasher>>;

/// The context of a call for error texts, and the place of its keys.
pub(crate) struct CallContext<'a> {
    pub(crate) call: &'static str,
    pub(crate) names: &'a KeyNames,
    pub(crate) table: &'a KeyTable,
    /// Keys that the call itself is about to add.
    pub(crate) coming: Option<&'a NewSlots>,
    /// How long the call may take, if it has a limit.
    pub(crate) patience: Option<&'a LazyDeadline>,
    /// Devices, if the call may use tensors in their memory.
    #[cfg(feature = "cuda")]
    pub(crate) devices: Option<&'a DeviceAccess>,
}

impl<'a> CallContext<'a> {
    /// A copy of the context, with a time limit.
    pub(crate) fn within(self, patience: &'a LazyDeadline) -> Self {
        Self { patience: Some(patience), ..self }
    }
}

impl CallContext<'_> {
    /// Whether tensors may be in the memory of devices.
    #[cfg(feature = "cuda")]
    fn takes_devices(&self) -> bool {
        self.devices.is_some()
    }

    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, reason = "the other build reads it")]
    fn takes_devices(&self) -> bool {
        false
    }

    /// Names the call, the key and a tensor's part in the call in an error about the tensor.
    pub(crate) fn refuse(&self, key: Key, part: TensorUse, error: &Error) -> Error {
        let (call, key) = (self.call, self.names.label(key));
        Error::new(error.kind(), format!("{call}: {key}: the {} {}", part.name(), error.message()))
    }

    fn find<'a>(&'a self, held: &'a LockedTable<'_>, key: Key) -> Result<&'a Arc<Slot>> {
        let coming = || {
            search::step();
            self.coming?.get(&key)
        };
        let slot = held.get(key).map(|entry| &entry.slot).or_else(coming);
        slot.ok_or_else(|| self.unknown(key))
    }

    pub(crate) fn unknown(&self, key: Key) -> Error {
        let (call, label) = (self.call, self.names.label(key));
        fail!(KeyNotFound, "{call}: {label} is not there; initialise it first")
    }
}

/// One key of a call.
pub(crate) struct KeyGroup {
    pub(crate) slot: Arc<Slot>,
    pub(crate) values: Range<usize>,
    pub(crate) outs: Range<usize>,
}

/// An out, and whether a later out of the call overwrites it anyway.
pub(crate) struct PlannedOut {
    pub(crate) lent: Lent,
    pub(crate) shadowed: bool,
}

/// A call that has passed all checks. Kept to reuse its memory.
#[derive(Default)]
pub(crate) struct Plan {
    pub(crate) groups: Vec<KeyGroup>,
    /// Bytes of the values, the outs and the stored values of all groups.
    touched: usize,
    pub(crate) values: Vec<Lent>,
    pub(crate) outs: Vec<PlannedOut>,
    /// Of a call on rows.
    pub(crate) rows: RowLists,
    /// What the sums of its values are divided by.
    pub(crate) divisor: Option<f64>,
    value_order: Vec<(u64, usize)>,
    out_order: Vec<(u64, usize)>,
    overlaps: Overlaps,
    shadowed: Vec<usize>,
    /// Where its work is queued: one for each device that has a tensor or a key.
    #[cfg(feature = "cuda")]
    pub(crate) queues: CallQueues,
    /// Behind the work of an operation with a ticket, once it has been queued.
    #[cfg(feature = "cuda")]
    pub(crate) marks: CallMarks,
}

impl Plan {
    pub(crate) fn clear(&mut self) {
        self.groups.clear();
        self.touched = 0;
        self.values.clear();
        self.outs.clear();
        self.rows.clear();
        self.shadowed.clear();
        self.overlaps.clear();
        self.divisor = None;
        #[cfg(feature = "cuda")]
        {
            self.queues.clear();
            self.marks.clear();
        }
    }

    /// Calls `visit` with each key of the call.
    pub(crate) fn keys(&self, visit: &mut dyn FnMut(u64)) {
        self.groups.iter().for_each(|group| visit(group.slot.key.id()));
    }

    /// Bytes of all values, outs and stored values of a call with several keys; 0 with one key, whose
    /// step counts them.
    pub(crate) fn touched(&self) -> usize {
        if self.groups.len() > 1 { self.touched } else { 0 }
    }

    /// Adds a key's share, and its bytes while the slot is at hand.
    fn add(&mut self, slot: Arc<Slot>, values: Range<usize>, outs: Range<usize>) {
        self.touched += (values.len() + outs.len() + 1) * slot.bytes();
        self.groups.push(KeyGroup { slot, values, outs });
    }

    pub(crate) fn label(&self, call: DataCall) -> OperationLabel {
        let first_key = self.groups.first().map_or(0, |group| group.slot.key.id());
        OperationLabel { call: call.name(), first_key, keys: self.groups.len() }
    }

    /// Adds a key whose values and outs are plain arrays of its dtype and shape, and whose outs
    /// overlap nothing.
    pub(crate) fn add_plain(&mut self, slot: &Arc<Slot>, values: &[Place], outs: &[Place]) {
        let (first_value, first_out) = (self.values.len(), self.outs.len());
        for data in values {
            self.values.push(Lent::plain(data.start(), slot.dtype));
        }
        for data in outs {
            let lent = Lent::plain(data.start(), slot.dtype);
            self.outs.push(PlannedOut { lent, shadowed: false });
        }
        let (values, outs) = (first_value..self.values.len(), first_out..self.outs.len());
        self.add(Arc::clone(slot), values, outs);
    }

    /// Checks and groups the pairs of a call. On an error the plan is of no use until cleared.
    pub(crate) fn build(
        &mut self,
        scene: &CallContext<'_>,
        values: &Pairs<'_>,
        outs: &Pairs<'_>,
    ) -> Result<()> {
        let held = scene.table.hold();
        sort(scene, &held, values.keys, &mut self.value_order)?;
        sort(scene, &held, outs.keys, &mut self.out_order)?;
        self.values.reserve(values.keys.len());
        self.outs.reserve(outs.keys.len());
        self.groups.reserve(values.keys.len().max(outs.keys.len()));
        let (mut value_at, mut out_at, mut on_device) = (0, 0, false);
        loop {
            let next_value = self.value_order.get(value_at);
            let next_out = self.out_order.get(out_at);
            let (order, key) = match (next_value, next_out) {
                (Some(&(order, i)), Some(&(out_order, _))) if order <= out_order => {
                    (order, values.keys[i])
                }
                (_, Some(&(order, i))) => (order, outs.keys[i]),
                (Some(&(order, i)), None) => (order, values.keys[i]),
                (None, None) => break,
            };
            let slot = Arc::clone(scene.find(&held, key)?);
            on_device |= slot.device().is_some();
            let first_value = self.values.len();
            while let Some(&(_, i)) = self.value_order.get(value_at).filter(|it| it.0 == order) {
                let lent = values.lend(i, scene, &slot, TensorUse::Value)?;
                on_device |= lent.memory() != Memory::Host;
                self.values.push(lent);
                value_at += 1;
            }
            refuse_sum(scene, &slot, self.values.len() - first_value)?;
            let first_out = self.outs.len();
            while let Some(&(_, i)) = self.out_order.get(out_at).filter(|it| it.0 == order) {
                let lent = outs.lend(i, scene, &slot, TensorUse::Out)?;
                on_device |= lent.memory() != Memory::Host;
                let at = Position { group: self.groups.len(), index: self.outs.len() };
                self.overlaps.add_out(&OverlapTensor { lent: &lent, shape: &slot.shape, at });
                self.outs.push(PlannedOut { lent, shadowed: false });
                out_at += 1;
            }
            let (values, outs) = (first_value..self.values.len(), first_out..self.outs.len());
            self.add(slot, values, outs);
        }
        // Comparing may take long; keys are added and removed meanwhile.
        drop(held);
        self.check_overlaps(scene)?;
        if on_device { self.find_queues(scene) } else { Ok(()) }
    }

    /// No build without devices has a tensor on one.
    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the other build finds one")]
    fn find_queues(&mut self, _: &CallContext<'_>) -> Result<()> {
        Ok(())
    }

    /// Refuses outs that overlap each other or a value, and marks outs that later ones overwrite.
    fn check_overlaps(&mut self, scene: &CallContext<'_>) -> Result<()> {
        if self.outs.is_empty() || (self.values.is_empty() && self.overlaps.outs_are_apart()) {
            return Ok(());
        }
        let Self { groups, outs, values, rows, overlaps, shadowed, .. } = self;
        let tensors = Planned { groups, outs, values, rows };
        let positions = groups
            .iter()
            .enumerate()
            .flat_map(|(group, it)| it.values.clone().map(move |index| Position { group, index }));
        let mut watch = TimeLimit::new(scene.patience);
        let found = overlaps.find(&tensors, positions, shadowed, &mut watch);
        found.map_err(|stop| tensors.refuse(scene, &stop))?;
        for &index in &self.shadowed {
            self.outs[index].shadowed = true;
        }
        Ok(())
    }
}

/// The tensors of a plan that is being made.
struct Planned<'a> {
    groups: &'a [KeyGroup],
    outs: &'a [PlannedOut],
    values: &'a [Lent],
    rows: &'a RowLists,
}

impl<'a> Planned<'a> {
    fn party(&self, lent: &'a Lent, at: Position) -> OverlapTensor<'a> {
        let shape = self.rows.shape(at.index).unwrap_or(&self.groups[at.group].slot.shape);
        OverlapTensor { lent, shape, at }
    }

    fn refuse(&self, scene: &CallContext<'_>, stop: &Stop) -> Error {
        let call = scene.call;
        let key = |at: &Position| scene.names.label(self.groups[at.group].slot.key);
        match stop {
            Stop::Outs(out, other) => {
                let (out, other) = (key(out), key(other));
                fail!(Overlap, "{call}: an out of {out} overlaps an out of {other} in part")
            }
            Stop::Value { out, value } => {
                let (out, value) = (key(out), key(value));
                let hint = "only an out that is exactly a value of its own key is allowed";
                fail!(Overlap, "{call}: an out of {out} overlaps a value of {value}; {hint}")
            }
            Stop::Late => {
                let (outs, values) = (self.outs.len(), self.values.len());
                fail!(
                    Timeout,
                    "{call}: {outs} outs and {values} values interleave, and comparing them took the \
                     call's whole time; nothing has been applied"
                )
            }
        }
    }
}

impl<'a> CallTensors<'a> for Planned<'a> {
    fn out(&self, at: Position) -> OverlapTensor<'a> {
        self.party(&self.outs[at.index].lent, at)
    }

    fn value(&self, at: Position) -> OverlapTensor<'a> {
        self.party(&self.values[at.index], at)
    }
}

/// Fills `order` with (place in processing order, index) of each key, ascending.
fn sort(
    scene: &CallContext<'_>,
    held: &LockedTable<'_>,
    keys: &[Key],
    order: &mut Vec<(u64, usize)>,
) -> Result<()> {
    order.clear();
    order.reserve(keys.len());
    for (index, &key) in keys.iter().enumerate() {
        let place = if key.is_name() { scene.find(held, key)?.order } else { key.id() };
        order.push((place, index));
    }
    if !order.is_sorted() {
        order.sort_unstable();
    }
    Ok(())
}

/// Refuses several values of a key whose dtype is opaque: the only value replaces the stored one.
fn refuse_sum(scene: &CallContext<'_>, slot: &Slot, values: usize) -> Result<()> {
    if values < 2 || !slot.dtype.is_opaque() {
        return Ok(());
    }
    Err(refuse_adding(
        scene.call,
        scene.names,
        slot,
        &format!("and the call has {values} of it; push one, which replaces the stored value"),
    ))
}

/// The error of a call that would add values of an opaque dtype up.
pub(crate) fn refuse_adding(call: &str, names: &KeyNames, slot: &Slot, why: &str) -> Error {
    let (key, dtype) = (names.label(slot.key), slot.dtype.name());
    fail!(Unsupported, "{call}: {key} is {}: values of {dtype} are not added, {why}", slot.text())
}

/// Refuses a tensor that does not have the shape or fit its key, and an out that would overwrite
/// itself.
fn check(
    scene: &CallContext<'_>,
    slot: &Slot,
    tensor: &Tensor<'_>,
    part: TensorUse,
    shape: &[i64],
) -> Result<()> {
    let (dtype, what) = (tensor.dtype(), part.name());
    let place = || format!("{}: {}", scene.call, scene.names.label(slot.key));
    let kind = if tensor.shape() != shape {
        ErrorKind::ShapeMismatch
    } else if dtype != slot.dtype && !(dtype.is_float() && slot.dtype.is_float()) {
        ErrorKind::DtypeMismatch
    } else if part == TensorUse::Out && tensor.overlaps_itself() {
        let place = place();
        return Err(fail!(
            Overlap,
            "{place}: the out {tensor:?} has strides that make it overlap itself"
        ));
    } else {
        return Ok(());
    };
    Err(Error::new(kind, format!("{}: {what} is {tensor:?}, stored is {}", place(), slot.text())))
}
