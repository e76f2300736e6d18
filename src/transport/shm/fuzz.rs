//! Offers of a peer, and segments with any content, for fuzzing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::offer::SegmentOffer;
use super::ring::next;
use super::segment::{QUEUE, Segment};

/// Bytes of the ring.
const SIZE: usize = 4_096;

/// An offer; then the number of the pieces that are written, where each is, and the bytes of the ring.
pub(crate) fn offers(data: &[u8]) {
    let (offer, content) = data.split_at(data.len().min(40));
    match SegmentOffer::decode(offer) {
        Some(offer) => assert_eq!(offer.encode(), &data[..40]),
        None => assert!(offer.len() < 40),
    }
    let Some((head, content)) = content.split_first_chunk() else { return };
    let Ok(segment) = Segment::create(SIZE).map(Arc::new) else { return };
    segment.head().store(u64::from_le_bytes(*head), Ordering::SeqCst);
    let (entries, rest) = content.as_chunks::<16>();
    for (number, entry) in (0..QUEUE as u64).zip(entries) {
        let (at, len) = entry.split_at(8);
        let word =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        segment.entry(number).at.store(word(at), Ordering::SeqCst);
        segment.entry(number).len.store(word(len), Ordering::SeqCst);
    }
    let bytes = &rest[..rest.len().min(SIZE)];
    segment.write(bytes);
    let mut read = 0;
    while let Ok(Some((at, len))) = next(&segment, read) {
        assert_eq!(segment.piece(at, len).to_vec().len(), len);
        read += 1;
        assert!(read <= QUEUE as u64, "as many pieces as fit in the queue");
    }
}
