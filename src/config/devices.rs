//! Options of tensors in the memory of GPUs.

use super::{Config, numbers};
use crate::error::Result;

/// The option `cuda`.
#[derive(Debug, Clone)]
pub(crate) enum CudaChoice {
    /// The driver of the system.
    Auto,
    /// Tensors in CUDA memory are refused.
    No,
    /// The driver is the library of a path.
    Library(String),
}

impl CudaChoice {
    pub(crate) fn new(config: &Config) -> Result<Self> {
        Ok(match config.find("cuda")?.as_deref() {
            None | Some("auto") => Self::Auto,
            Some("no") => Self::No,
            Some(path) => Self::Library(path.into()),
        })
    }
}

/// How a store uses GPUs.
#[derive(Debug, Clone)]
pub(crate) struct DeviceSettings {
    pub(crate) cuda: CudaChoice,
    /// The numbers of those that it may use; None is all.
    pub(crate) allowed: Option<Vec<u16>>,
    /// Bytes of its keys; None is without a bound.
    pub(crate) bytes: Option<usize>,
    /// Whether pointers are checked.
    pub(crate) checks: bool,
    /// Whether calls return when the GPUs are done.
    pub(crate) waits: bool,
    /// Whether updaters get tensors in the memory of the key's GPU.
    pub(crate) updates_there: bool,
}

impl DeviceSettings {
    pub(super) fn new(config: &Config) -> Result<Self> {
        let is = |name: &str, value: &str| -> Result<bool> {
            config.find(name).map(|it| it.as_deref() == Some(value))
        };
        let bytes = config.number("device_bytes")?;
        Ok(Self {
            cuda: CudaChoice::new(config)?,
            allowed: config.find("devices")?.as_deref().and_then(numbers),
            bytes: bytes.and_then(|bytes| usize::try_from(bytes).ok()),
            checks: !is("device_checks", "no")?,
            waits: is("device_wait", "yes")?,
            updates_there: is("updater_memory", "device")?,
        })
    }
}
