//! Mappings in place of keys and arrays: `init(model.state_dict())`, `pull(out=arrays)`.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyInt, PyList, PyMapping, PyRange, PyString, PyTuple};

use crate::python::invalid;

type Argument<'a, 'py> = Option<&'a Bound<'py, PyAny>>;

/// A key, and one or two lists of arrays, as the caller passed them.
pub type Arguments<'a, 'py> = (Argument<'a, 'py>, Argument<'a, 'py>, Argument<'a, 'py>);

/// The arguments of a data call: a key or a list of keys, and what belongs to it.
pub struct Lists<'py> {
    pub key: Bound<'py, PyAny>,
    pub arrays: Bound<'py, PyAny>,
    pub second: Option<Bound<'py, PyAny>>,
}

/// The arguments of a call as lists. A mapping stands for its keys and, in their place, its values: it is the
/// only argument of its kind, and what belongs to the second list is a mapping too. `None` for arguments
/// that are not there; only a pull may leave out the key.
pub fn lists<'py>(call: &str, (key, arrays, second): Arguments<'_, 'py>) -> PyResult<Lists<'py>> {
    let no_key = key.is_none_or(PyAnyMethods::is_none);
    let takes_outs = matches!(call, "pull" | "bind");
    if let Some(out) = arrays.filter(|out| no_key && takes_outs && is_mapping(out)) {
        return of_mappings(call, out, None);
    }
    if let Some(key) = key.filter(|key| is_mapping(key)) {
        if call.ends_with("rows") {
            let text = format!("{call}: a mapping says nothing of row ids; pass a list of keys");
            return Err(PyTypeError::new_err(text));
        }
        if arrays.is_some_and(|arrays| !arrays.is_none()) {
            let text = format!("{call}: a mapping has its arrays; pass no others in their place");
            return Err(PyTypeError::new_err(text));
        }
        return of_mappings(call, key, second);
    }
    let missing = |name: &str| {
        PyTypeError::new_err(format!("{call}() missing 1 required positional argument: '{name}'"))
    };
    let key = key.ok_or_else(|| missing("key"))?.clone();
    let name = if call == "pull" { "out" } else { "value" };
    let arrays = arrays.ok_or_else(|| missing(name))?.clone();
    Ok(Lists { key, arrays, second: second.cloned() })
}

fn of_mappings<'py>(
    call: &str,
    first: &Bound<'py, PyAny>,
    second: Argument<'_, 'py>,
) -> PyResult<Lists<'py>> {
    let first = first.cast::<PyMapping>()?;
    let (keys, arrays) = (first.keys()?, first.values()?);
    let second = second.map(|second| look_up(call, &keys, second)).transpose()?;
    Ok(Lists { key: keys.into_any(), arrays: arrays.into_any(), second })
}

/// The arrays of a mapping for these keys.
fn look_up<'py>(
    call: &str,
    keys: &Bound<'py, PyList>,
    mapping: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    let py = keys.py();
    if !is_mapping(mapping) {
        let kind = mapping.get_type().name()?;
        let text = format!("{call}: out must be a mapping as value is, not {kind}");
        return Err(PyTypeError::new_err(text));
    }
    let mapping = mapping.cast::<PyMapping>()?;
    let arrays = PyList::empty(py);
    for key in keys {
        if !mapping.contains(&key)? {
            let text = format!("{call}: out has no array for the key {}", key.repr()?);
            return Err(invalid(py, text));
        }
        arrays.append(mapping.get_item(&key)?)?;
    }
    Ok(arrays.into_any())
}

/// Most arguments are of the types that are asked for first: these questions read a flag.
pub fn is_mapping(object: &Bound<'_, PyAny>) -> bool {
    if object.is_instance_of::<PyDict>() {
        return true;
    }
    let is_plain = object.is_instance_of::<PyInt>()
        || object.is_instance_of::<PyString>()
        || object.is_instance_of::<PyList>()
        || object.is_instance_of::<PyTuple>()
        || object.is_exact_instance_of::<PyRange>();
    !is_plain && object.cast::<PyMapping>().is_ok()
}
