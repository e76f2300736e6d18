//! The native half of the Python package `kvstore`: arrays become `kv_tensor`s here, and the data
//! calls run here, with the GIL released.
//!
//! The extension uses the C library that the package has opened and contains no second copy of it.
//! It keeps to the stable ABI of Python 3.9, so one build serves all later versions. Rare cases, such
//! as values that are no arrays, and texts of errors are Python's: `kvstore/_arrays.py`.
#![deny(unsafe_code)]

mod bound;
mod calls;
mod checksum;
mod dlpack;
mod exchange;
mod kinds;
mod lent;
mod library;
mod lightgbm;
mod mappings;
mod methods;
mod numpy;
mod operation;
mod pairs;
mod python;
mod store;
mod streams;
mod watched;

use pyo3::prelude::*;

#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::bound::BoundLists;
    #[pymodule_export]
    use crate::calls::{
        begin_in_child, counted, end_calls, is_between_calls, raise_interrupt, unwatch,
    };
    #[pymodule_export]
    use crate::checksum::crc32c;
    #[pymodule_export]
    use crate::dlpack::export;
    #[pymodule_export]
    use crate::exchange::Exchange;
    #[pymodule_export]
    use crate::library::bind;
    #[pymodule_export]
    use crate::lightgbm::{close_lightgbm, open_lightgbm};
    #[pymodule_export]
    use crate::methods::with_data_calls;
    #[pymodule_export]
    use crate::operation::{Call, Operation};
    #[pymodule_export]
    use crate::store::{Handle, Store};
}
