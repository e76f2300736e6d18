//! Records that are sealed where their content lies, and opened in the buffer to which they were received.

use std::io::IoSlice;

use super::super::image::{records_len, write_content};
use super::super::record::{MAX_CONTENT, OVERHEAD};
use super::super::sealer::PeerUpdate;
use super::{SUITES, TlsError, one_way, open_of, pattern, unseal};
use crate::transport::tls::{Opener, Sealer};

/// The records of a value, sealed in their place, with what is sent before them.
fn seal_in_place(sealer: &mut Sealer, value: &[u8]) -> (Vec<u8>, Vec<u8>) {
    // There may be more room than content.
    let mut image = vec![0xaa; records_len(value.len()) + 100];
    for (number, part) in value.chunks(5_001).enumerate() {
        write_content(&mut image, number * 5_001, part);
    }
    let mut before = Vec::new();
    let is_sealed = sealer.seal_image(&mut image, value.len(), &mut before).unwrap();
    image.truncate(if is_sealed { records_len(value.len()) } else { 0 });
    (before, image)
}

/// Receives bytes in pieces, and opens them in one buffer, with so many bytes between data and records.
fn open_pieces(
    opener: &mut Opener,
    sealed: &[u8],
    piece: usize,
    gap: usize,
) -> Result<Vec<u8>, TlsError> {
    let mut bytes = vec![0; gap + sealed.len()];
    let (mut data, mut begin, mut end) = (0, gap, gap);
    for piece in sealed.chunks(piece) {
        bytes[end..][..piece.len()].copy_from_slice(piece);
        end += piece.len();
        opener.open_in_place(&mut bytes[..end], &mut data, &mut begin)?;
        assert!(end - begin < MAX_CONTENT + OVERHEAD, "whole records are opened");
    }
    assert_eq!(begin, end);
    bytes.truncate(data);
    Ok(bytes)
}

#[test]
fn records_sealed_in_their_place_are_those_of_a_copy() {
    for suite in SUITES {
        for size in [1, 100, MAX_CONTENT - 1, MAX_CONTENT, MAX_CONTENT + 1, 200_000] {
            let value = pattern(size);
            let (caller, listener) = open_of(suite);
            let (mut sealer, mut opener) =
                (caller.tls.split().unwrap().0, listener.tls.split().unwrap().1);
            let (before, sealed) = seal_in_place(&mut sealer, &value);
            assert_eq!((before.len(), sealed.len()), (0, records_len(size)));
            assert_eq!(unseal(&mut opener, &sealed), Ok((value.clone(), false)));
            // Records of both kinds follow one another.
            let mut more = Vec::new();
            sealer.seal(&[IoSlice::new(&value)], &mut more).unwrap();
            more.extend(seal_in_place(&mut sealer, &value).1);
            assert_eq!(unseal(&mut opener, &more), Ok((value.repeat(2), false)));
        }
    }
}

#[test]
fn records_are_opened_in_the_buffer_whatever_the_pieces_that_arrive() {
    for suite in SUITES {
        let (caller, listener) = open_of(suite);
        let (mut sealer, mut opener) =
            (caller.tls.split().unwrap().0, listener.tls.split().unwrap().1);
        let value = pattern(5 * MAX_CONTENT + 77);
        for (piece, gap) in [(1_009, 0), (1_009, 1), (16_406, 15), (70_000, 16), (usize::MAX, 333)]
        {
            let (_, sealed) = seal_in_place(&mut sealer, &value);
            let opened = open_pieces(&mut opener, &sealed, piece, gap).unwrap();
            assert!(opened == value, "pieces of {piece}, gap of {gap}");
        }
    }
}

#[test]
fn an_altered_record_leaves_the_data_before_it_and_ends_the_opener() {
    let (mut sealer, mut opener) = one_way();
    let value = pattern(3 * MAX_CONTENT);
    let (_, mut sealed) = seal_in_place(&mut sealer, &value);
    sealed[2 * (MAX_CONTENT + OVERHEAD) + 99] ^= 4;
    let (mut data, mut begin) = (0, 0);
    let result = opener.open_in_place(&mut sealed, &mut data, &mut begin);
    assert!(matches!(result, Err(TlsError::Violation(..))), "{result:?}");
    assert_eq!((data, begin), (2 * MAX_CONTENT, 2 * (MAX_CONTENT + OVERHEAD)));
    assert!(sealed[..data] == value[..data]);
    assert_eq!(opener.open_in_place(&mut [], &mut 0, &mut 0), result);
}

#[test]
fn key_updates_stand_before_an_image_and_an_image_beyond_the_limit_is_copied() {
    let (mut sealer, mut opener) = one_way();
    sealer.limit_records(5);
    let (three, many) = (pattern(3 * MAX_CONTENT), pattern(9 * MAX_CONTENT + 1));
    let update = 5 + OVERHEAD;
    let (mut updates, mut copies) = (0, 0);
    for value in [&three, &three, &many, &three, &many, &three] {
        let (before, sealed) = seal_in_place(&mut sealer, value);
        copies += usize::from(sealed.is_empty());
        updates += usize::from(before.len() == update);
        let bytes = [before, sealed].concat();
        assert!(open_pieces(&mut opener, &bytes, 20_000, 3).unwrap() == *value);
    }
    assert_eq!((updates, copies), (3, 2), "the first image fits the key");
    // The peer's request is answered before the next data.
    let (mut other, mut asked) = one_way();
    let mut request = Vec::new();
    other.update(PeerUpdate::Requested, &mut request).unwrap();
    assert_eq!(unseal(&mut asked, &request), Ok((Vec::new(), false)));
}

#[test]
fn a_closed_half_seals_no_image() {
    let (mut sealer, _) = one_way();
    sealer.close(&mut Vec::new());
    let mut image = vec![0; records_len(10)];
    assert!(matches!(sealer.seal_image(&mut image, 10, &mut Vec::new()), Err(TlsError::Misuse(_))));
}
