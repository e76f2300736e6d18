//! The kinds of memory that tensors live in.

/// Where the elements of a tensor are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Memory {
    /// The host may touch them.
    Host,
    /// In the memory of the CUDA device of this number: no code of the host touches them.
    #[cfg(feature = "cuda")]
    Device(u16),
}

impl Memory {
    /// The number of the device.
    pub(crate) fn device(self) -> Option<u16> {
        match self {
            Self::Host => None,
            #[cfg(feature = "cuda")]
            Self::Device(ordinal) => Some(ordinal),
        }
    }
}
