//! Errors: a kind for programs, and a text for people.

use std::fmt;
use std::sync::Arc;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Declares the kinds once, with number, C name and meaning.
macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $code:literal, $name:literal;)+) => {
        /// The kind of an [`Error`], one to one with the `kv_status` of the C interface.
        ///
        /// 1-19 are the caller's mistake, 20-39 mean *not now*, 40-59 a peer is gone, 60-79 come from the environment,
        /// 90-99 are a bug of this library.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        #[repr(i32)]
        pub enum ErrorKind { $($(#[$doc])* $kind = $code,)+ }

        impl ErrorKind {
            /// Every kind, in ascending order of its number.
            pub const ALL: &'static [ErrorKind] = &[$(ErrorKind::$kind,)+];

            /// The name of the status in the C interface.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(ErrorKind::$kind => $name,)+ }
            }
        }
    };
}

kinds! {
    /// An argument is NULL, out of range, misaligned, or not valid UTF-8.
    InvalidArgument = 1, "KV_ERR_INVALID_ARGUMENT";
    /// The request is known, and this build or this store cannot serve it.
    Unsupported = 2, "KV_ERR_UNSUPPORTED";
    /// An option has an unknown name or a value that does not fit.
    Option = 3, "KV_ERR_OPTION";
    /// The key has not been initialised, or was removed.
    KeyNotFound = 4, "KV_ERR_KEY_NOT_FOUND";
    /// The key has been initialised before.
    KeyExists = 5, "KV_ERR_KEY_EXISTS";
    /// Two names have the same hash; one of them must be renamed.
    NameCollision = 6, "KV_ERR_NAME_COLLISION";
    /// A tensor's shape differs from the key's.
    ShapeMismatch = 7, "KV_ERR_SHAPE_MISMATCH";
    /// A tensor's element type differs from the key's and cannot be converted.
    DtypeMismatch = 8, "KV_ERR_DTYPE_MISMATCH";
    /// An out overlaps another tensor of the call, or itself.
    Overlap = 9, "KV_ERR_OVERLAP";
    /// The ticket is stale, or was never issued by this store.
    Ticket = 10, "KV_ERR_TICKET";
    /// The user's updater failed.
    Callback = 11, "KV_ERR_CALLBACK";
    /// The store was called from inside one of its own updaters.
    Reentrant = 12, "KV_ERR_REENTRANT";
    /// The buffer is too small; the required size has been written.
    BufferTooSmall = 13, "KV_ERR_BUFFER_TOO_SMALL";
    /// The store has been closed or aborted.
    Closed = 14, "KV_ERR_CLOSED";
    /// The store was created before a `fork()`, in the parent process.
    Forked = 15, "KV_ERR_FORKED";
    /// The call is not for processes of this role.
    Role = 16, "KV_ERR_ROLE";
    /// The processes of a job do not agree.
    Differs = 17, "KV_ERR_DIFFERS";
    /// The deadline passed; the message says what is missing.
    Timeout = 20, "KV_ERR_TIMEOUT";
    /// The operation was cancelled before it took effect in full.
    Cancelled = 21, "KV_ERR_CANCELLED";
    /// An operation with a ticket did not end within the store's timeout, and failed.
    Expired = 22, "KV_ERR_EXPIRED";
    /// A process of the job that the call needs is gone.
    PeerLost = 40, "KV_ERR_PEER_LOST";
    /// This process was declared lost, and the job went on without it.
    Evicted = 41, "KV_ERR_EVICTED";
    /// The job does not take this process.
    Refused = 42, "KV_ERR_REFUSED";
    /// There is not enough memory.
    OutOfMemory = 60, "KV_ERR_OUT_OF_MEMORY";
    /// A file cannot be read or written.
    Io = 61, "KV_ERR_IO";
    /// A file is cut off or altered.
    Corrupt = 62, "KV_ERR_CORRUPT";
    /// An address cannot be used or reached.
    Network = 63, "KV_ERR_NETWORK";
    /// A GPU failed, or cannot be used; the text has CUDA's name of the error.
    Device = 64, "KV_ERR_DEVICE";
    /// A bug of this library; the store is poisoned.
    Internal = 90, "KV_ERR_INTERNAL";
    /// The store met a bug of this library before and refuses to go on.
    Poisoned = 91, "KV_ERR_POISONED";
}

impl ErrorKind {
    /// The number of the status in the C interface.
    #[must_use]
    pub const fn code(self) -> i32 {
        self as i32
    }
}

/// An error: its kind, and a text that names the key, the shapes and what to do.
#[derive(Debug, Clone)]
pub struct Error {
    kind: ErrorKind,
    message: Arc<str>,
}

impl Error {
    pub(crate) fn new(kind: ErrorKind, message: impl Into<Arc<str>>) -> Self {
        Self { kind, message: message.into() }
    }

    /// A copy whose text begins with the place of the error.
    pub(crate) fn at(&self, place: impl fmt::Display) -> Self {
        Self::new(self.kind, format!("{place}: {}", self.message))
    }

    /// The kind, for programs.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The text, for people.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.kind.name())
    }
}

impl std::error::Error for Error {}

/// Makes an [`Error`] of a kind from a format string: `fail!(Ticket, "ticket {} is stale", t)`.
macro_rules! fail {
    ($kind:ident, $($text:tt)+) => {
        $crate::error::Error::new($crate::error::ErrorKind::$kind, format!($($text)+))
    };
}
pub(crate) use fail;

#[cfg(test)]
mod tests {
    use super::ErrorKind;

    #[test]
    fn codes_ascend_and_stay_in_their_groups() {
        let codes: Vec<i32> = ErrorKind::ALL.iter().map(|kind| kind.code()).collect();
        assert!(codes.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(
            codes.iter().all(|code| matches!(code, 1..=19 | 20..=39 | 40..=59 | 60..=79 | 90..=99))
        );
        assert!(ErrorKind::ALL.iter().all(|kind| kind.name().starts_with("KV_ERR_")));
    }
}
