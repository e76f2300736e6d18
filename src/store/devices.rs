//! Devices of a store: where values are, and the streams of callers.

use super::{CallClass, Store};
#[cfg(feature = "cuda")]
use crate::config::{Config, CudaChoice};
#[cfg(feature = "cuda")]
use crate::device;
use crate::error::{Result, fail};
use crate::key::Key;

impl Store {
    /// The CUDA device on which the value of a key is; None in host memory.
    pub(crate) fn key_device(&self, key: Key) -> Result<Option<u16>> {
        if let Some(remote) = &self.remote {
            self.enter(CallClass::Work, |_| remote.look_up("key_device", key))?;
        }
        self.enter(CallClass::Work, |local| match local.keys.table.get(key) {
            Some(slot) => Ok(slot.device()),
            None => {
                Err(fail!(KeyNotFound, "key_device: {} is not there", local.keys.names.label(key)))
            }
        })
    }
}

/// Names the stream of this thread's calls for a CUDA device.
#[cfg(feature = "cuda")]
pub(crate) fn set_stream(ordinal: u16, handle: u64) -> Result<()> {
    let choice = CudaChoice::new(&Config::new()).map_err(|error| error.at("set_stream"))?;
    device::set_stream(&choice, ordinal, handle)
}

/// The stream of this thread's calls for a CUDA device.
#[cfg(feature = "cuda")]
pub(crate) fn stream(ordinal: u16) -> Result<u64> {
    let choice = CudaChoice::new(&Config::new()).map_err(|error| error.at("stream"))?;
    device::stream_of(&choice, ordinal)
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn set_stream(_: u16, _: u64) -> Result<()> {
    Err(fail!(Unsupported, "set_stream: this build has no CUDA devices"))
}

#[cfg(not(feature = "cuda"))]
pub(crate) fn stream(_: u16) -> Result<u64> {
    Err(fail!(Unsupported, "stream: this build has no CUDA devices"))
}
