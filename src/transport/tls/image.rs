//! The layout of a message in its records, in one piece of memory: content is written between the places of
//! headers and tags, and sealed where it lies (scatter). So the copy to the send buffer is the only one.

use std::ops::Range;

use super::record::{HEAD_LEN, MAX_CONTENT, OVERHEAD};

/// Distance between the begins of two records.
const STRIDE: usize = MAX_CONTENT + OVERHEAD;

/// Length of the records of this many bytes of content.
pub(in crate::transport) fn records_len(content: usize) -> usize {
    content + content.div_ceil(MAX_CONTENT) * OVERHEAD
}

/// Where the content from `at` on lies: up to `len` bytes, which are in one record.
fn run(at: usize, len: usize) -> Range<usize> {
    let (record, within) = (at / MAX_CONTENT, at % MAX_CONTENT);
    let begin = record * STRIDE + HEAD_LEN + within;
    begin..begin + len.min(MAX_CONTENT - within)
}

/// Writes content at its place.
pub(in crate::transport) fn write_content(image: &mut [u8], mut at: usize, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let place = run(at, bytes.len());
        let (part, rest) = bytes.split_at(place.len());
        image[place].copy_from_slice(part);
        (at, bytes) = (at + part.len(), rest);
    }
}

/// The place of content that lies in one record; None if it is in several.
pub(in crate::transport) fn content_mut(
    image: &mut [u8],
    at: usize,
    len: usize,
) -> Option<&mut [u8]> {
    let place = run(at, len);
    if place.len() == len { Some(&mut image[place]) } else { None }
}

/// The parts of `len` bytes of content.
pub(super) fn contents(image: &[u8], len: usize) -> impl Iterator<Item = &[u8]> {
    (0..len).step_by(MAX_CONTENT).map(move |at| &image[run(at, len - at)])
}

/// The records of `len` bytes of content, whole.
pub(super) fn records_mut(image: &mut [u8], len: usize) -> impl Iterator<Item = &mut [u8]> {
    image[..records_len(len)].chunks_mut(STRIDE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_found_where_it_was_written_whatever_its_parts() {
        let content: Vec<u8> = (0..=250).cycle().take(3 * MAX_CONTENT + 100).collect();
        for part in [1_000, MAX_CONTENT - 1, MAX_CONTENT, 40_000] {
            let mut image = vec![0; records_len(content.len())];
            for (number, bytes) in content.chunks(part).enumerate() {
                write_content(&mut image, number * part, bytes);
            }
            let parts: Vec<_> = contents(&image, content.len()).collect();
            assert_eq!((parts.len(), parts.concat() == content), (4, true), "parts of {part}");
            let records: Vec<_> =
                records_mut(&mut image, content.len()).map(|it| it.len()).collect();
            assert_eq!(records, [STRIDE, STRIDE, STRIDE, 100 + OVERHEAD]);
        }
        assert_eq!(records_len(0), 0);
    }

    #[test]
    fn only_content_of_one_record_is_lent_in_a_piece() {
        let mut image = vec![7; records_len(2 * MAX_CONTENT)];
        content_mut(&mut image, MAX_CONTENT - 8, 8).unwrap().fill(1);
        assert!(content_mut(&mut image, MAX_CONTENT - 8, 9).is_none());
        content_mut(&mut image, MAX_CONTENT, 3).unwrap().fill(2);
        let parts: Vec<_> = contents(&image, 2 * MAX_CONTENT).collect();
        assert_eq!((parts[0][MAX_CONTENT - 9], parts[0][MAX_CONTENT - 8]), (7, 1));
        assert_eq!(&parts[1][..4], [2, 2, 2, 7]);
    }
}
