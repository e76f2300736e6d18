//! Statuses of the driver (`CUresult`) as errors.

use crate::error::{Error, fail};

/// A status that is not success.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

impl Code {
    pub(crate) const OUT_OF_MEMORY: Self = Self(2);
    pub(crate) const NOT_READY: Self = Self(600);
    /// Work on the legacy stream would depend on a stream that is being captured.
    pub(crate) const CAPTURE_IMPLICIT: Self = Self(906);

    /// Whether the process cannot use the device any more: every later call gives an error.
    pub(crate) fn loses_device(self) -> bool {
        matches!(self.0, 46 | 214 | 700 | 702 | 710..=719 | 999)
    }

    /// What the user can do about it.
    fn advice(self) -> &'static str {
        match self.0 {
            100 => "; no device is visible: see CUDA_VISIBLE_DEVICES and nvidia-smi",
            221 => {
                "; the driver has no compiler: a container needs the capabilities compute,utility"
            }
            222 => "; the driver is too old for the kernels of this library",
            _ if self.loses_device() => {
                "; this process cannot use the device any more: its keys are lost, others go on"
            }
            _ => "",
        }
    }

    /// The error of a call of the driver, with CUDA's name of the status.
    pub(super) fn error(self, call: &str, name: &str) -> Error {
        fail!(Device, "{call}: {name} ({}){}", self.0, self.advice())
    }
}
