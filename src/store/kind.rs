//! Type strings.

use std::ffi::CStr;

use crate::error::{Result, fail};

/// A type of store that this build has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreKind {
    /// In this process.
    Local,
    /// In this process, summing where the data is. On CPU memory the same as [`StoreKind::Local`].
    Device,
}

/// Canonical name and aliases, lower case.
const LOCAL: &[&str] = &["local", "local_update_cpu", "local_allreduce_cpu"];
const DEVICE: &[&str] = &["device", "local_allreduce_device"];
const DISTRIBUTED: &[&str] = &[
    "dist_sync",
    "dist",
    "dist_async",
    "dist_device_sync",
    "dist_sync_device",
    "dist_device",
    "dist_device_async",
];

impl StoreKind {
    pub(super) fn parse(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let is_in = |names: &[&str]| names.contains(&lower.as_str());
        if is_in(LOCAL) {
            Ok(StoreKind::Local)
        } else if is_in(DEVICE) {
            Ok(StoreKind::Device)
        } else if is_in(DISTRIBUTED) {
            Err(fail!(
                Unsupported,
                "create: the distributed store type {text:?} is not in this build; it has local and device"
            ))
        } else {
            let known = [LOCAL, DEVICE, DISTRIBUTED].concat().join(", ");
            Err(fail!(
                InvalidArgument,
                "create: there is no store type {text:?}; the types are {known}"
            ))
        }
    }

    /// The canonical type string.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            StoreKind::Local => LOCAL[0],
            StoreKind::Device => DEVICE[0],
        }
    }

    pub(crate) fn c_name(self) -> &'static CStr {
        match self {
            StoreKind::Local => c"local",
            StoreKind::Device => c"device",
        }
    }
}
