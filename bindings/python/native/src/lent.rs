//! The arrays of a call in the one or two lists that the library takes, with what keeps their memory.
#![allow(unsafe_code, reason = "pointers to memory that is kept beside them")]

use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::with_exposed_provenance;

use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError};
use pyo3::ffi;
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList};

use crate::dlpack::{self, Described, MAJOR, Owned, Table};
use crate::kinds::{Kind, Way};
use crate::library::{Dtype, Tensor};
use crate::numpy;
use crate::python::{invalid, rare};
use crate::store::Handle;
use crate::streams::{CUDA, Named, Streams};
use crate::watched::Watched;

/// Maximum number of arrays of a call whose lists are used again, and of such lists per thread.
const REUSED_ARRAYS: usize = 1 << 15;
const REUSED_LISTS: usize = 4;
/// Types of devices whose memory the host reads, in DLPack's numbers.
const CPU: i32 = 1;
const CUDA_HOST: i32 = 3;
/// DLPack's code of complex numbers.
const COMPLEX: u8 = 5;
/// The `stream` of `__dlpack__` with which a producer orders nothing.
const NO_WAIT: i64 = -1;
const NULL: *mut ffi::PyObject = std::ptr::null_mut();

/// What the library does with an array.
#[derive(Clone, Copy, PartialEq)]
pub enum Role {
    Value,
    Out,
    /// An out of a `pushpull()` without outs.
    ValueAndOut,
}

/// How long an array is lent.
#[derive(Clone, Copy, PartialEq)]
pub enum Life {
    /// For one call, which holds a reference to the array.
    Call,
    /// Until a ticket is done: the array may get other memory before.
    Ticket,
    /// For calls that look before whether the array is at its place.
    Bound,
}

#[derive(Default)]
struct Parts {
    /// Where the second list begins in `keys` and `tensors`, for a call with two.
    second: Option<usize>,
    keys: Vec<u64>,
    tensors: Vec<Tensor>,
    /// Strides of numpy's arrays, and which tensors they belong to, with the place of the first.
    strides: Vec<i64>,
    strided: Vec<(usize, usize)>,
    /// References that keep memory valid.
    kept: Vec<Py<PyAny>>,
    owned: Vec<Owned>,
    /// Outs whose changes PyTorch counts, kept as well.
    tracked: Vec<Py<PyAny>>,
    /// MXNet has done all that it was asked for before this call.
    is_mxnet_idle: bool,
    /// The arrays themselves, of a bound list.
    arrays: Vec<(Py<PyAny>, Kind)>,
    streams: Streams,
}

thread_local! {
    /// Empty parts whose memory is used again: calls allocate nothing for each array.
    #[expect(clippy::vec_box, reason = "a call would move the parts themselves ten times")]
    static POOL: RefCell<Vec<Box<Parts>>> = const { RefCell::new(Vec::new()) };
}

impl Parts {
    fn clear(&mut self, py: Python<'_>) {
        self.second = None;
        self.is_mxnet_idle = false;
        self.keys.clear();
        self.tensors.clear();
        self.strides.clear();
        self.strided.clear();
        self.owned.clear();
        self.streams.clear();
        // Not clear(): each reference would ask whether the thread holds the GIL.
        let arrays = self.arrays.drain(..).map(|(array, _)| array);
        for each in self.kept.drain(..).chain(self.tracked.drain(..)).chain(arrays) {
            each.drop_ref(py);
        }
    }
}

/// Arrays of one call with their keys. Dropped with the GIL held.
pub struct Lent(ManuallyDrop<Box<Parts>>);

// SAFETY: the pointers in the tensors lead to memory that `kept`, `owned` and `tracked` keep, which may
// move between threads.
unsafe impl Send for Lent {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Lent {}

impl Drop for Lent {
    fn drop(&mut self) {
        // SAFETY: nothing uses the parts afterwards, and the GIL is held.
        let (mut parts, py) =
            unsafe { (ManuallyDrop::take(&mut self.0), Python::assume_attached()) };
        // May run code of Python, which may lend arrays: the pool is not borrowed yet.
        parts.clear(py);
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if parts.tensors.capacity() <= REUSED_ARRAYS && pool.len() < REUSED_LISTS {
                pool.push(parts);
            }
        });
    }
}

impl Lent {
    pub fn new() -> Self {
        Self(ManuallyDrop::new(POOL.with_borrow_mut(Vec::pop).unwrap_or_default()))
    }

    /// What is added from here on is the second list.
    pub fn begin_second(&mut self) {
        self.0.second = Some(self.0.keys.len());
    }

    /// The keys, the tensors and their number of both lists, as C functions take them.
    pub fn lists(&self) -> [(*const u64, *const Tensor, usize); 2] {
        let second = self.0.second.unwrap_or(self.0.keys.len());
        let (keys, other_keys) = self.0.keys.split_at(second);
        let (tensors, others) = self.0.tensors.split_at(second);
        [
            (keys.as_ptr(), tensors.as_ptr(), second),
            (other_keys.as_ptr(), others.as_ptr(), other_keys.len()),
        ]
    }

    /// Adds an array under the library's number of its key.
    pub fn add(
        &mut self,
        key: u64,
        array: Bound<'_, PyAny>,
        kind: Kind,
        role: Role,
        life: Life,
    ) -> PyResult<()> {
        if life == Life::Bound {
            if matches!(kind.way, Way::Other) {
                let text =
                    "a bound value is an array: make one of the numbers, and change it later";
                return Err(invalid(array.py(), text.to_owned()));
            }
            self.0.arrays.push((array.clone().unbind(), kind));
        }
        match kind.way {
            Way::Numpy => self.add_numpy(&array, role),
            Way::Table(_) | Way::Capsule | Way::Mxnet => self.add_dlpack(array, kind, role, life),
            Way::CudaInterface => self.add_cuda_interface(array, role),
            Way::Other => self.add_other(&array, role),
        }?;
        self.0.keys.push(key);
        Ok(())
    }

    fn add_numpy(&mut self, array: &Bound<'_, PyAny>, role: Role) -> PyResult<()> {
        let start = self.0.strides.len();
        let described = numpy::describe(array, &mut self.0.strides)?;
        if role != Role::Value && !described.is_writeable {
            return Err(invalid(array.py(), "an out is a read-only numpy array".to_owned()));
        }
        if self.0.strides.len() > start {
            let index = self.0.tensors.len();
            self.0.strided.push((index, start));
        }
        self.0.tensors.push(described.tensor);
        self.0.kept.push(described.capsule.unbind());
        Ok(())
    }

    fn add_dlpack(
        &mut self,
        array: Bound<'_, PyAny>,
        kind: Kind,
        role: Role,
        life: Life,
    ) -> PyResult<()> {
        let described = match kind.way {
            Way::Table(table) if kind.is_torch() => self.borrow(table, &array, life),
            _ => None,
        };
        let described = described.unwrap_or_else(|| self.own(&array, kind, role));
        let described = described.or_else(|error| {
            let py = array.py();
            rare(intern!(py, "refuse_sparse"), (&array,))?;
            let by_exporter = error.is_instance_of::<PyRuntimeError>(py)
                || error.is_instance_of::<PyBufferError>(py);
            if kind.is_torch() && by_exporter {
                return self.own_bytes(&array, kind, role, error);
            }
            Err(error)
        })?;
        if role != Role::Value && (described.is_read_only || kind.is_immutable) {
            return Err(read_only(&array)?);
        }
        if kind.is_torch() {
            refuse_lazy(&array, &described.tensor)?;
        }
        if described.tensor.device_type == CUDA && !matches!(kind.way, Way::Capsule) {
            let device = described.tensor.device_id;
            let known = known_stream(array.py(), kind, device)?;
            self.0.streams.join(array.py(), device, known)?;
        }
        self.0.tensors.push(described.tensor);
        let is_tracked = kind.is_torch() && role != Role::Value;
        let kept = if is_tracked { &mut self.0.tracked } else { &mut self.0.kept };
        kept.push(array.unbind());
        Ok(())
    }

    /// Describes a tensor of PyTorch, whose table may lend it.
    fn borrow(
        &mut self,
        table: &Table,
        array: &Bound<'_, PyAny>,
        life: Life,
    ) -> Option<PyResult<Described>> {
        if life != Life::Ticket {
            return table.borrow(array);
        }
        // `array.data = other` takes memory away also from a managed tensor, not from a detached one.
        let detached = match array.call_method0(intern!(array.py(), "detach")) {
            Ok(detached) => detached,
            Err(error) => return Some(Err(error)),
        };
        let described = table.borrow(&detached);
        self.0.kept.push(detached.unbind());
        described
    }

    /// Describes an array together with its memory, which is kept.
    fn own(&mut self, array: &Bound<'_, PyAny>, kind: Kind, role: Role) -> PyResult<Described> {
        let py = array.py();
        if let Way::Table(table) = kind.way {
            let (described, owned) = table.own(array)?;
            let Tensor { device_type, device_id, .. } = described.tensor;
            // A table's functions order no streams: that is for `__dlpack__`, with a stream.
            if device_type != CUDA || known_stream(py, kind, device_id)?.is_some() {
                self.0.owned.push(owned);
                return Ok(described);
            }
        }
        if !matches!(kind.way, Way::Mxnet) {
            return self.export(array, kind);
        }
        if kind.may_be_sparse {
            rare(intern!(py, "refuse_sparse"), (array,))?;
        }
        let capsule =
            array.call_method0(if role == Role::Value || self.wait_for_mxnet(array)? {
                intern!(py, "to_dlpack_for_read")
            } else {
                intern!(py, "to_dlpack_for_write")
            })?;
        let described = dlpack::read(&capsule, array)?;
        self.0.kept.push(capsule.unbind());
        Ok(described)
    }

    /// Describes the bytes of a tensor whose dtype its release of PyTorch does not export. Others are
    /// refused with PyTorch's `error`.
    fn own_bytes(
        &mut self,
        array: &Bound<'_, PyAny>,
        kind: Kind,
        role: Role,
        error: PyErr,
    ) -> PyResult<Described> {
        let py = array.py();
        if array.call_method0(intern!(py, "is_conj"))?.is_truthy()? {
            return Err(lazy(py, "conjugated", "resolve_conj"));
        }
        let (bytes, (code, bits)): (Bound<'_, PyAny>, (u8, u8)) =
            rare(intern!(py, "bytes_of"), (array, error))?.extract()?;
        let mut described = self.own(&bytes, kind, role)?;
        described.tensor.dtype = Dtype { code, bits, lanes: 1 };
        Ok(described)
    }

    /// Waits until MXNet has done all that it was asked for; false if the array is not MXNet's. One such
    /// wait for all outs of a call takes far less time than one for each, which passes its threads.
    fn wait_for_mxnet(&mut self, array: &Bound<'_, PyAny>) -> PyResult<bool> {
        if !self.0.is_mxnet_idle {
            let waited = rare(intern!(array.py(), "wait_for_mxnet"), (array,))?;
            self.0.is_mxnet_idle = waited.extract()?;
        }
        Ok(self.0.is_mxnet_idle)
    }

    /// Describes an array by its `__dlpack__`, which gets the stream of the call.
    fn export(&mut self, array: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Described> {
        let py = array.py();
        let device = device_of(array, kind)?;
        let stream = match device {
            None => None,
            Some((CUDA, id)) => {
                let known = known_stream(py, kind, id)?;
                let stream = self.0.streams.join(py, id, known)?;
                // A framework whose current stream is that of the call has nothing to wait for.
                Some(if known.is_some() { NO_WAIT } else { stream.cast_signed() })
            }
            Some(_) => Some(NO_WAIT),
        };
        let capsule = capsule_of(array, stream)?;
        let described = dlpack::read(&capsule, array)?;
        let Tensor { device_type, device_id, .. } = described.tensor;
        if device_type == CUDA && device != Some((CUDA, device_id)) {
            let text = format!("its capsule is of GPU {device_id}, __dlpack_device__() is not");
            return Err(invalid(py, text));
        }
        self.0.kept.push(capsule.unbind());
        Ok(described)
    }

    fn add_cuda_interface(&mut self, array: Bound<'_, PyAny>, role: Role) -> PyResult<()> {
        let py = array.py();
        let (address, memory, is_read_only, known): (usize, Py<PyAny>, bool, Option<u64>) =
            rare(intern!(py, "cuda_interface_of"), (&array,))?.extract()?;
        if role != Role::Value && is_read_only {
            return Err(read_only(&array)?);
        }
        // SAFETY: the address of a tensor that `memory` keeps, with its shape and strides.
        let tensor = unsafe { with_exposed_provenance::<Tensor>(address).read() };
        self.0.streams.join(py, tensor.device_id, known)?;
        self.0.tensors.push(tensor);
        self.0.kept.extend([memory, array.unbind()]);
        Ok(())
    }

    fn add_other(&mut self, array: &Bound<'_, PyAny>, role: Role) -> PyResult<()> {
        let py = array.py();
        if role == Role::Value {
            return self.add_numpy(&rare(intern!(py, "as_array"), (array,))?, role);
        }
        rare(intern!(py, "refuse_out"), (array, role == Role::ValueAndOut)).map(drop)
    }

    /// Points tensors to their strides: the list is complete, and moves no more.
    pub fn finish(&mut self) {
        let parts = &mut **self.0;
        for &(index, start) in &parts.strided {
            parts.tensors[index].strides = parts.strides[start..].as_ptr();
        }
    }

    /// Whether an array is in the memory of a CUDA device.
    #[inline]
    pub fn uses_devices(&self) -> bool {
        !self.0.streams.is_empty()
    }

    /// Names the key of the array that was added last, if it brought a stream.
    #[inline]
    pub fn label_stream(&mut self, label: impl FnOnce() -> PyResult<String>) -> PyResult<()> {
        if self.uses_devices() { self.0.streams.label(label) } else { Ok(()) }
    }

    /// Names the streams of the arrays for this thread, until the result is dropped.
    pub fn name_streams(&self, py: Python<'_>) -> PyResult<Named> {
        self.0.streams.name(py)
    }

    /// Whether a package of arrays on a GPU queues its work on a stream that is not known.
    pub fn is_unordered(&self) -> bool {
        self.0.streams.unordered().next().is_some()
    }

    /// The first array, with its key, on each GPU with arrays of such a package.
    pub fn unordered(&self) -> impl Iterator<Item = (u64, &Tensor)> {
        let pairs = || self.0.keys.iter().copied().zip(&self.0.tensors);
        let is_on =
            |device, tensor: &Tensor| (tensor.device_type, tensor.device_id) == (CUDA, device);
        let first = move |device| pairs().find(|(_, tensor)| is_on(device, tensor));
        self.0.streams.unordered().filter_map(first)
    }

    /// Keeps the arrays as long as the store.
    pub fn keep_until_free(&self, handle: &Bound<'_, Handle>) -> PyResult<()> {
        let py = handle.py();
        let kept = self.0.kept.iter().chain(&self.0.tracked).map(|each| each.bind(py));
        let list = PyList::new(py, kept.collect::<Vec<_>>())?;
        handle.call_method1(intern!(py, "keep_until_free"), (list,)).map(drop)
    }

    /// Notes the places of the arrays of a bound list, of its values and of its outs.
    pub fn watch(&self, py: Python<'_>) -> PyResult<[Vec<Watched>; 2]> {
        let Parts { keys, tensors, arrays, second, .. } = &**self.0;
        let all = keys.iter().zip(arrays).zip(tensors);
        let all =
            all.map(|((&key, (array, kind)), it)| Watched::new(key, array.bind(py), *kind, it));
        let mut values = all.collect::<PyResult<Vec<_>>>()?;
        let outs = values.split_off(second.unwrap_or(keys.len()));
        Ok([values, outs])
    }

    /// Outs whose changes PyTorch counts.
    pub fn tracked<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, self.0.tracked.iter().map(|each| each.bind(py)))
    }

    /// See [`note_written`].
    pub fn note_written(&self, py: Python<'_>) -> PyResult<()> {
        if self.0.tracked.is_empty() { Ok(()) } else { note_written(&self.tracked(py)?) }
    }

    pub fn traverse(&self, visit: &PyVisit<'_>) -> Result<(), PyTraverseError> {
        self.0.kept.iter().chain(&self.0.tracked).try_for_each(|each| visit.call(each))
    }
}

/// Tells PyTorch that outs have changed: `backward()` then refuses what it saved of them.
pub fn note_written(outs: &Bound<'_, PyList>) -> PyResult<()> {
    static COUNT: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let py = outs.py();
    if outs.is_empty() {
        return Ok(());
    }
    let find = || rare(intern!(py, "counter_of_changes"), ()).map(Bound::unbind);
    let count = COUNT.get_or_try_init(py, find)?;
    // Without the tuple of call1().
    // SAFETY: the callable, its argument and the end of the arguments; a new reference or null.
    unsafe {
        let none = ffi::PyObject_CallFunctionObjArgs(count.as_ptr(), outs.as_ptr(), NULL);
        Bound::from_owned_ptr_or_err(py, none).map(drop)
    }
}

/// The refusal of an out.
fn read_only(array: &Bound<'_, PyAny>) -> PyResult<PyErr> {
    let text = format!("an out is a read-only {}", array.get_type().name()?);
    Ok(invalid(array.py(), text))
}

/// Refuses a tensor of PyTorch whose elements are conjugated or negated when they are read: its table describes
/// the memory. The parts of a conjugated tensor are negated, and these views skip elements.
fn refuse_lazy(array: &Bound<'_, PyAny>, tensor: &Tensor) -> PyResult<()> {
    let py = array.py();
    let is = |name| array.call_method0(name)?.is_truthy();
    let (how, remedy) = if tensor.dtype.code == COMPLEX && is(intern!(py, "is_conj"))? {
        ("conjugated", "resolve_conj")
    // SAFETY: PyTorch has described extents and strides.
    } else if !unsafe { tensor.is_row_major_array() } && is(intern!(py, "is_neg"))? {
        ("negated", "resolve_neg")
    } else {
        return Ok(());
    };
    Err(lazy(py, how, remedy))
}

/// A view of PyTorch whose memory has other numbers than it shows.
fn lazy(py: Python<'_>, how: &str, remedy: &str) -> PyErr {
    let text =
        format!("a tensor whose elements are {how} when they are read: pass tensor.{remedy}()");
    invalid(py, text)
}

/// The stream of a device that is current for this thread in an array's package, if it is known.
fn known_stream(py: Python<'_>, kind: Kind, device: i32) -> PyResult<Option<u64>> {
    if let Way::Table(table) = kind.way
        && let Some(stream) = table.current_stream(py, device)
    {
        return stream.map(Some);
    }
    match kind.framework.name() {
        Some(name) => rare(intern!(py, "current_stream"), (name, device))?.extract(),
        None => Ok(None),
    }
}

/// The device of an array, in DLPack's numbers; none where an export needs no stream.
fn device_of(array: &Bound<'_, PyAny>, kind: Kind) -> PyResult<Option<(i32, i32)>> {
    let py = array.py();
    if kind.is_torch() && !array.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
        return Ok(None);
    }
    if !kind.tells_device {
        return Ok(None);
    }
    let device: (i32, i32) = array.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
    Ok(Some(device).filter(|(kind, _)| ![CPU, CUDA_HOST].contains(kind)))
}

/// The capsule of an array's `__dlpack__`.
fn capsule_of<'py>(array: &Bound<'py, PyAny>, stream: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
    let py = array.py();
    let detached = match array.getattr_opt(intern!(py, "requires_grad"))? {
        // PyTorch exports no tensor that takes part in a gradient.
        Some(flag) if flag.is_truthy()? => Some(array.call_method0(intern!(py, "detach"))?),
        _ => None,
    };
    let export = detached.as_ref().unwrap_or(array).getattr(intern!(py, "__dlpack__"))?;
    let arguments = PyDict::new(py);
    if let Some(stream) = stream {
        arguments.set_item(intern!(py, "stream"), stream)?;
    }
    arguments.set_item(intern!(py, "max_version"), (MAJOR, 0))?;
    export.call((), Some(&arguments)).or_else(|error| {
        // A producer older than DLPack 1.0.
        if !error.is_instance_of::<PyTypeError>(py) {
            return Err(error);
        }
        arguments.del_item(intern!(py, "max_version"))?;
        export.call((), Some(&arguments))
    })
}
