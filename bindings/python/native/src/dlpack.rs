//! DLPack: capsules of `__dlpack__`, and the table of C functions that a type may offer instead.
//!
//! <https://dmlc.github.io/dlpack/latest/c_api.html>
#![allow(unsafe_code, reason = "structures of C that other packages fill")]

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi::{PyCapsule_GetPointer, PyCapsule_IsValid, PyCapsule_New, PyObject};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::library::{Dtype, Tensor};
use crate::python::invalid;
use crate::streams::CUDA;

/// The version that this crate reads; minor versions only add.
pub const MAJOR: u32 = 1;
const FLAG_READ_ONLY: u64 = 1;
/// Names of capsules whose tensor was not consumed.
const LEGACY_NAME: &CStr = c"dltensor";
const VERSIONED_NAME: &CStr = c"dltensor_versioned";

#[repr(C)]
struct Version {
    major: u32,
    minor: u32,
}

/// A `DLManagedTensorVersioned`.
#[repr(C)]
pub struct Managed {
    version: Version,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Managed)>,
    flags: u64,
    tensor: Tensor,
}

/// A tensor of a producer as the library takes it, and whether it must not be written to.
pub struct Described {
    pub tensor: Tensor,
    pub is_read_only: bool,
}

impl Managed {
    fn describe(&self, py: Python<'_>) -> PyResult<Described> {
        match self.version.major {
            MAJOR => {}
            major => {
                let text =
                    format!("DLPack {major} is not known: this package reads DLPack {MAJOR}");
                return Err(invalid(py, text));
            }
        }
        let is_read_only = self.flags & FLAG_READ_ONLY != 0;
        Ok(Described { tensor: self.tensor, is_read_only })
    }
}

/// A managed tensor without a capsule; its deleter runs when it is dropped.
pub struct Owned(NonNull<Managed>);

// SAFETY: a consumer may call a deleter on any thread.
unsafe impl Send for Owned {}
// SAFETY: nothing is changed through a shared reference.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the producer gave it away, and nothing else deletes it.
        unsafe {
            if let Some(deleter) = self.0.as_ref().deleter {
                deleter(self.0.as_ptr());
            }
        }
    }
}

/// A `DLPackExchangeAPI`: what a type offers as `__dlpack_c_exchange_api__`.
#[repr(C)]
pub struct Table {
    version: Version,
    older: *const Table,
    allocate: *const c_void,
    managed_from_object: unsafe extern "C" fn(*mut PyObject, *mut *mut Managed) -> c_int,
    object_from_managed: *const c_void,
    tensor_from_object: Option<unsafe extern "C" fn(*mut PyObject, *mut Tensor) -> c_int>,
    current_stream: Option<unsafe extern "C" fn(c_int, c_int, *mut *mut c_void) -> c_int>,
}

// SAFETY: tables are constants of their packages.
unsafe impl Sync for Table {}

const TABLE_NAME: &CStr = c"dlpack_exchange_api";

impl Table {
    /// The table in a capsule, if one of its versions is readable.
    pub fn find(capsule: &Bound<'_, PyAny>) -> Option<&'static Self> {
        let pointer = capsule.cast::<PyCapsule>().ok()?.pointer_checked(Some(TABLE_NAME)).ok()?;
        let mut table = pointer.cast::<Self>().as_ptr().cast_const();
        // SAFETY: DLPack has tables live as long as the process, chained from new to old. All
        // versions begin with the version and the pointer to an older one.
        while let Some(found) = unsafe { table.as_ref() } {
            if found.version.major == MAJOR {
                return Some(found);
            }
            table = found.older;
        }
        None
    }

    /// The stream of a CUDA device on which the package queues the work of this thread.
    pub fn current_stream(&self, py: Python<'_>, device: i32) -> Option<PyResult<u64>> {
        let function = self.current_stream?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: a function of the table, and a place for the stream.
        let status = unsafe { function(CUDA, device, &raw mut stream) };
        Some(if status == 0 { Ok(stream.addr() as u64) } else { Err(PyErr::fetch(py)) })
    }

    /// Describes an array of the table's type for as long as it is neither dropped nor changed.
    pub fn borrow(&self, array: &Bound<'_, PyAny>) -> Option<PyResult<Described>> {
        let function = self.tensor_from_object?;
        let mut tensor = MaybeUninit::uninit();
        // SAFETY: the array is of the type that offers the table.
        let status = unsafe { function(array.as_ptr(), tensor.as_mut_ptr()) };
        if status != 0 {
            return Some(Err(PyErr::fetch(array.py())));
        }
        // SAFETY: the function has succeeded. A read-only array has no flag here: only types that
        // have none of these are borrowed.
        Some(Ok(Described { tensor: unsafe { tensor.assume_init() }, is_read_only: false }))
    }

    /// Describes an array and keeps its memory, whatever becomes of the array.
    pub fn own(&self, array: &Bound<'_, PyAny>) -> PyResult<(Described, Owned)> {
        let mut managed = std::ptr::null_mut();
        // SAFETY: the array is of the type that offers the table, and there is a place for the result.
        let status = unsafe { (self.managed_from_object)(array.as_ptr(), &raw mut managed) };
        let owned = NonNull::new(managed).filter(|_| status == 0).map(Owned);
        let owned = owned.ok_or_else(|| PyErr::fetch(array.py()))?;
        // SAFETY: the function has succeeded.
        let described = unsafe { owned.0.as_ref() }.describe(array.py())?;
        Ok((described, owned))
    }
}

/// Reads a capsule of `__dlpack__`, which frees its tensor by itself as long as it is not consumed.
pub fn read(capsule: &Bound<'_, PyAny>, array: &Bound<'_, PyAny>) -> PyResult<Described> {
    let pointer = |name: &CStr| capsule.cast::<PyCapsule>().ok()?.pointer_checked(Some(name)).ok();
    if let Some(tensor) = pointer(LEGACY_NAME) {
        // SAFETY: a capsule of this name has a DLManagedTensor, which begins with its tensor.
        let tensor = unsafe { tensor.cast::<Tensor>().read() };
        return Ok(Described { tensor, is_read_only: false });
    }
    if let Some(managed) = pointer(VERSIONED_NAME) {
        // SAFETY: a capsule of this name has a DLManagedTensorVersioned. In all versions it begins
        // with the version, which `describe` reads first.
        return unsafe { managed.cast::<Managed>().as_ref() }.describe(array.py());
    }
    let kind = array.get_type().name()?;
    Err(PyTypeError::new_err(format!("__dlpack__ of {kind} returned no DLPack capsule")))
}

/// A `DLManagedTensor`, the form before DLPack 1.0.
#[repr(C)]
struct Legacy {
    tensor: Tensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Legacy)>,
}

/// A managed tensor of either form with the extents and strides that it points to. The form comes
/// first: a consumer has the address of both.
#[repr(C)]
struct Exported<Form> {
    form: Form,
    extents: Vec<i64>,
    strides: Vec<i64>,
}

impl<Form> Exported<Form> {
    /// Moves a description to the heap; `tensor` finds the tensor in its form.
    fn place(form: Form, extents: Vec<i64>, tensor: fn(&mut Form) -> &mut Tensor) -> *mut Form {
        let mut strides = vec![1; extents.len()];
        for axis in (1..extents.len()).rev() {
            strides[axis - 1] = strides[axis] * extents[axis];
        }
        let mut exported = Box::new(Self { form, extents, strides });
        let (extents, strides) = (exported.extents.as_ptr(), exported.strides.as_ptr());
        let tensor = tensor(&mut exported.form);
        (tensor.shape, tensor.strides) = (extents, strides);
        Box::into_raw(exported).cast()
    }
}

/// The deleter of a managed tensor from [`Exported::place`].
unsafe extern "C" fn delete<Form>(form: *mut Form) {
    // SAFETY: `place` made it by `Box::into_raw`, and its one owner calls the deleter once.
    drop(unsafe { Box::from_raw(form.cast::<Exported<Form>>()) });
}

/// The destructor of a capsule: deletes the tensor unless a consumer took it and renamed the capsule.
unsafe extern "C" fn end_capsule<Form>(capsule: *mut PyObject) {
    for name in [LEGACY_NAME, VERSIONED_NAME] {
        // SAFETY: a capsule of `export`, whose pointer is a `Form`. A valid name sets no error.
        unsafe {
            if PyCapsule_IsValid(capsule, name.as_ptr()) != 0 {
                delete::<Form>(PyCapsule_GetPointer(capsule, name.as_ptr()).cast());
            }
        }
    }
}

/// A DLPack capsule of a row-major tensor, of DLPack 1 or of the form before it, which has no flag for
/// read-only tensors. It has its own copy of the shape; the elements stay the library's.
#[pyfunction]
pub fn export(
    py: Python<'_>,
    place: (usize, i32, i32, u32),
    extents: Vec<i64>,
    is_read_only: bool,
    is_versioned: bool,
) -> PyResult<Py<PyAny>> {
    let (data, device_type, device_id, dtype) = place;
    let [code, bits, lanes @ ..] = dtype.to_le_bytes();
    let tensor = Tensor {
        data: std::ptr::with_exposed_provenance_mut(data),
        device_type,
        device_id,
        ndim: i32::try_from(extents.len())?,
        dtype: Dtype { code, bits, lanes: u16::from_le_bytes(lanes) },
        shape: std::ptr::null(),
        strides: std::ptr::null(),
        byte_offset: 0,
    };
    let context = std::ptr::null_mut();
    if is_versioned {
        let version = Version { major: MAJOR, minor: 0 };
        let flags = if is_read_only { FLAG_READ_ONLY } else { 0 };
        let form = Managed { version, context, deleter: Some(delete), flags, tensor };
        capsule(py, Exported::place(form, extents, |form| &mut form.tensor), VERSIONED_NAME)
    } else {
        let form = Legacy { tensor, context, deleter: Some(delete) };
        capsule(py, Exported::place(form, extents, |form| &mut form.tensor), LEGACY_NAME)
    }
}

/// A capsule that owns a managed tensor as long as it has this name.
fn capsule<Form>(py: Python<'_>, form: *mut Form, name: &'static CStr) -> PyResult<Py<PyAny>> {
    // SAFETY: the name lives as long as the process, and the destructor knows the pointer's type.
    // The result is a new reference, or NULL with an error.
    let made = unsafe {
        let made = PyCapsule_New(form.cast(), name.as_ptr(), Some(end_capsule::<Form>));
        Bound::from_owned_ptr_or_err(py, made)
    };
    if made.is_err() {
        // SAFETY: no capsule took the tensor.
        unsafe { delete(form) };
    }
    Ok(made?.unbind())
}
