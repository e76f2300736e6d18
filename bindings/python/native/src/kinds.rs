//! How the arrays of a type are described, found once per type.

use std::sync::{Mutex, PoisonError};

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString, PyType};

use crate::dlpack::Table;

/// Maximum number of types that are remembered, each with a reference to the type. Programs use a few.
const REMEMBERED: usize = 16;
/// Arrays of these packages never change, but their DLPack capsules do not say so.
const IMMUTABLE_PACKAGES: [&str; 4] = ["jax", "jaxlib", "pyarrow", "tensorflow"];

#[derive(Clone, Copy)]
pub enum Way {
    /// numpy's array, or a subclass of it.
    Numpy,
    /// DLPack's table of C functions.
    Table(&'static Table),
    /// `__dlpack__`
    Capsule,
    /// `to_dlpack_for_read` and `to_dlpack_for_write`
    Mxnet,
    /// `__cuda_array_interface__`
    CudaInterface,
    /// No array: numpy may be able to make one of it.
    Other,
}

/// Packages whose current stream `kvstore/_arrays.py` knows.
#[derive(Clone, Copy, PartialEq)]
pub enum Framework {
    Torch,
    Cupy,
    Other,
}

impl Framework {
    pub fn name(self) -> Option<&'static str> {
        match self {
            Self::Torch => Some("torch"),
            Self::Cupy => Some("cupy"),
            Self::Other => None,
        }
    }
}

#[derive(Clone, Copy)]
pub struct Kind {
    pub way: Way,
    pub framework: Framework,
    pub is_immutable: bool,
    /// Whether `__dlpack_device__` is there.
    pub tells_device: bool,
    /// Whether its arrays may be sparse. MXNet has types of their own for these.
    pub may_be_sparse: bool,
}

/// Types by address. Locked without running code of Python, so never twice by a thread.
static KINDS: Mutex<Vec<(Py<PyType>, Kind)>> = Mutex::new(Vec::new());

/// Kinds of the arrays of one call, which are mostly of one type: `KINDS` is asked once for a run of
/// them. The reference keeps the address of the type from being used again.
#[derive(Default)]
pub struct Kinds<'py>(Option<(Bound<'py, PyType>, Kind)>);

impl<'py> Kinds<'py> {
    #[inline]
    pub fn of(&mut self, array: &Bound<'py, PyAny>) -> PyResult<Kind> {
        match &self.0 {
            Some((last, kind)) if last.as_type_ptr() == array.get_type_ptr() => Ok(*kind),
            _ => self.find(array),
        }
    }

    fn find(&mut self, array: &Bound<'py, PyAny>) -> PyResult<Kind> {
        let kind = array.get_type();
        let found = Kind::of(array, &kind)?;
        if !matches!(found.way, Way::Other) {
            self.0 = Some((kind, found));
        }
        Ok(found)
    }
}

impl Kind {
    /// PyTorch's tensors have a counter of changes, and are never read-only.
    #[inline]
    pub fn is_torch(&self) -> bool {
        self.framework == Framework::Torch
    }

    fn of(array: &Bound<'_, PyAny>, kind: &Bound<'_, PyType>) -> PyResult<Self> {
        let mut known = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = known.iter().find(|(each, _)| each.is(kind)) {
            return Ok(*found);
        }
        drop(known);
        let found = Self::find(array, kind)?;
        // Instances may have attributes of their own: what is no array is looked at each time.
        if !matches!(found.way, Way::Other) {
            known = KINDS.lock().unwrap_or_else(PoisonError::into_inner);
            let oldest = (known.len() >= REMEMBERED).then(|| known.remove(0));
            known.push((kind.clone().unbind(), found));
            drop(known);
            drop(oldest);
        }
        Ok(found)
    }

    fn find(array: &Bound<'_, PyAny>, kind: &Bound<'_, PyType>) -> PyResult<Self> {
        let py = array.py();
        let has = |name: &Bound<'_, PyString>| array.hasattr(name);
        let way = if is_of(kind, "numpy", intern!(py, "ndarray"))? {
            Way::Numpy
        } else if let Some(table) = kind
            .getattr_opt(intern!(py, "__dlpack_c_exchange_api__"))?
            .as_ref()
            .and_then(Table::find)
        {
            Way::Table(table)
        } else if has(intern!(py, "__dlpack__"))? {
            Way::Capsule
        } else if has(intern!(py, "to_dlpack_for_read"))? {
            Way::Mxnet
        } else if has(intern!(py, "__cuda_array_interface__"))? {
            Way::CudaInterface
        } else {
            Way::Other
        };
        let module = kind.getattr(intern!(py, "__module__"))?.to_string();
        let package = module.split('.').next().unwrap_or_default();
        let is_immutable = IMMUTABLE_PACKAGES.contains(&package);
        let may_be_sparse = package != "mxnet" || module.contains("sparse");
        let framework = if is_of(kind, "torch", intern!(py, "Tensor"))? {
            Framework::Torch
        } else if is_of(kind, "cupy", intern!(py, "ndarray"))? {
            Framework::Cupy
        } else {
            Framework::Other
        };
        let tells_device = has(intern!(py, "__dlpack_device__"))?;
        Ok(Self { way, framework, is_immutable, tells_device, may_be_sparse })
    }
}

/// Whether a type is a class of a module, or derived from it. A class of a module that is not loaded
/// has no instances.
fn is_of(kind: &Bound<'_, PyType>, module: &str, class: &Bound<'_, PyString>) -> PyResult<bool> {
    let modules = kind.py().import("sys")?.getattr("modules")?;
    let Some(module) = modules.cast::<PyDict>()?.get_item(module)? else { return Ok(false) };
    match module.getattr_opt(class)? {
        Some(class) => match class.cast::<PyType>() {
            Ok(class) => kind.is_subclass(class),
            Err(_) => Ok(false),
        },
        None => Ok(false),
    }
}
