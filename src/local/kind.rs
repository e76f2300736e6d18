//! Type strings.

use std::ffi::CStr;

use crate::error::{Result, fail};

/// A type of store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreKind {
    /// In this process.
    Local,
    /// In this process, summing where the data is. On CPU memory equal to [`StoreKind::Local`].
    Device,
    /// One job of many processes, in rounds.
    DistSync,
    /// One job of many processes, each push by itself.
    DistAsync,
    /// As [`StoreKind::DistSync`]; each worker sums where the data is.
    DistDeviceSync,
    /// As [`StoreKind::DistAsync`]; each worker sums where the data is.
    DistDeviceAsync,
}

/// Every type with its canonical name, and its aliases, lower case.
const KINDS: &[(StoreKind, &CStr, &[&str])] = &[
    (StoreKind::Local, c"local", &["local_update_cpu", "local_allreduce_cpu"]),
    (StoreKind::Device, c"device", &["local_allreduce_device"]),
    (StoreKind::DistSync, c"dist_sync", &["dist"]),
    (StoreKind::DistAsync, c"dist_async", &[]),
    (StoreKind::DistDeviceSync, c"dist_device_sync", &["dist_sync_device", "dist_device"]),
    (StoreKind::DistDeviceAsync, c"dist_device_async", &[]),
];

impl StoreKind {
    pub(crate) fn parse(text: &str) -> Result<Self> {
        let lower = text.to_ascii_lowercase();
        let is = |(kind, _, aliases): &&(StoreKind, _, &[&str])| {
            kind.name() == lower || aliases.contains(&lower.as_str())
        };
        match KINDS.iter().find(is) {
            Some((kind, ..)) if cfg!(feature = "dist") || !kind.is_distributed() => Ok(*kind),
            Some(_) => Err(fail!(
                Unsupported,
                "create: the distributed store type {text:?} is not in this build; it has local and device"
            )),
            None => {
                let names = |(kind, _, aliases): &(StoreKind, _, &'static [&str])| {
                    [kind.name()].into_iter().chain(aliases.iter().copied())
                };
                let known = KINDS.iter().flat_map(names).collect::<Vec<_>>().join(", ");
                Err(fail!(
                    InvalidArgument,
                    "create: there is no store type {text:?}; the types are {known}"
                ))
            }
        }
    }

    /// Whether a store of this type is one job of many processes.
    #[must_use]
    pub fn is_distributed(self) -> bool {
        !matches!(self, StoreKind::Local | StoreKind::Device)
    }

    /// Whether each push merges by itself, without rounds.
    #[cfg(feature = "dist")]
    pub(crate) fn is_asynchronous(self) -> bool {
        matches!(self, StoreKind::DistAsync | StoreKind::DistDeviceAsync)
    }

    /// The canonical type string.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.c_name().to_str().unwrap_or_default()
    }

    pub(crate) fn c_name(self) -> &'static CStr {
        let of = |(kind, ..): &&(StoreKind, _, _)| *kind == self;
        KINDS.iter().find(of).map_or(c"", |(_, name, _)| name)
    }
}
