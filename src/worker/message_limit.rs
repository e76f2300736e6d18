//! The size of the slices of a key against the maximum of a message. A larger slice would end its connection,
//! and each one after it, until the call's deadline.

use crate::codec::BLOCK;
use crate::error::{Result, fail};
use crate::job::sums::sum_dtype;
use crate::local::merger::Handling;
use crate::tensor::DType;

/// Maximum bytes of a slice: a message of a connection has at most 1 GiB, of which the header of a frame and
/// its fields need less than the rest.
const MOST: u64 = (1 << 30) - (64 << 10);

/// What the size of a slice depends on.
pub(super) struct MessageLimit<'a> {
    pub(super) call: &'a str,
    /// The option of the job.
    pub(super) slice_bytes: u64,
    /// Sums are those of a tree, for which sums of 16-bit keys travel in float32.
    pub(super) adds_by_tree: bool,
    /// Whether the slices of a key stay together, for a rule that needs it.
    pub(super) whole: bool,
    pub(super) handling: &'a Handling,
}

impl MessageLimit<'_> {
    /// Fails if a slice of a key does not fit in a message, in plain or encoded.
    pub(super) fn check(
        &self,
        label: &dyn Fn() -> String,
        dtype: DType,
        count: usize,
    ) -> Result<()> {
        let Self { call, slice_bytes, .. } = self;
        let item = dtype.size() as u64;
        let bytes = (count as u64).saturating_mul(item);
        let slice = if self.whole { bytes } else { bytes.min(slice_of(*slice_bytes, item)) };
        let encoded = self.handling.codec_of(dtype).map_or(0, |codec| {
            codec.bytes(usize::try_from(slice / item).unwrap_or(usize::MAX)) as u64
        });
        let summed =
            if self.adds_by_tree { slice / item * sum_dtype(dtype).size() as u64 } else { slice };
        let message = summed.max(encoded);
        if message <= MOST {
            return Ok(());
        }
        let key = label();
        let what = "more than a message can have";
        Err(if self.whole {
            fail!(
                InvalidArgument,
                "{call}: {key} has {bytes} bytes, and the optimizer needs it in one message of {message} \
                 bytes, {what} ({MOST}); split it into smaller keys, or use an optimizer that goes element \
                 by element"
            )
        } else {
            fail!(
                InvalidArgument,
                "{call}: {key} has {bytes} bytes, and a slice of it {message}, {what} ({MOST}); set \
                 slice_bytes, which is {slice_bytes}, to less"
            )
        })
    }
}

/// Bytes of a slice of items of this size, as the scheduler cuts a key.
fn slice_of(slice_bytes: u64, item: u64) -> u64 {
    let block = BLOCK as u64 * item;
    (slice_bytes / block * block).max(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::Codec;
    use std::sync::Arc;

    fn check(limit: &MessageLimit<'_>, count: u64) -> std::result::Result<(), String> {
        let count = usize::try_from(count).unwrap();
        let label = || "key 7".to_owned();
        limit.check(&label, DType::F32, count).map_err(|error| error.message().to_owned())
    }

    #[test]
    fn a_slice_fits_up_to_the_size_of_a_message() {
        let handling = Handling::PLAIN;
        let limit = MessageLimit {
            call: "init",
            slice_bytes: 256 << 10,
            adds_by_tree: false,
            whole: false,
            handling: &handling,
        };
        assert_eq!(check(&limit, 1 << 40), Ok(()), "in small slices any key fits");
        let large = MessageLimit { slice_bytes: 1 << 30, ..limit };
        assert_eq!(check(&large, MOST / 4), Ok(()));
        let text = check(&large, MOST / 4 + 1).unwrap_err();
        assert!(text.starts_with("init: key 7 has 1073676292 bytes"), "{text}");
        assert!(text.contains("set slice_bytes, which is 1073741824, to less"), "{text}");
        // Rounded down to blocks of 2,048 elements it fits again.
        let fits = MessageLimit { slice_bytes: MOST + 8_191, ..large };
        assert_eq!(check(&fits, 1 << 40), Ok(()));
        let whole = MessageLimit { slice_bytes: 4_096, whole: true, ..fits };
        assert_eq!(check(&whole, MOST / 4), Ok(()));
        let text = check(&whole, MOST / 4 + 1).unwrap_err();
        assert!(text.contains("one message of 1073676292 bytes"), "{text}");
        assert!(text.contains("split it into smaller keys"), "{text}");
    }

    #[test]
    fn a_codec_that_makes_a_slice_larger_counts() {
        let codec = Codec::new("topk", "ratio=1").unwrap().map(Arc::new);
        let handling = Handling { codec, ..Handling::PLAIN };
        let (call, slice_bytes) = ("set_compression", 900 << 20);
        let limit = MessageLimit {
            call,
            slice_bytes,
            adds_by_tree: false,
            whole: false,
            handling: &handling,
        };
        assert_eq!(check(&limit, 100 << 20), Ok(()), "600 MiB");
        // Six bytes for each element of four.
        let text = check(&limit, 225 << 20).unwrap_err();
        assert!(text.contains("a slice of it 1415577600, more than"), "{text}");
    }
}
