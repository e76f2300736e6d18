//! Records of both of our halves: sizes, faults, alerts, and the end.

use std::io::IoSlice;

use rustls::{AlertDescription, ContentType, HandshakeType};

use super::super::record::{MAX_CONTENT, OVERHEAD};
use super::{SUITES, TlsError, one_way, open_of, pattern, seal, unseal};
use crate::transport::tls::{MAX_RECORD, Opened, Sealer};

const DATA: ContentType = ContentType::ApplicationData;
/// With this type, a record is one of padding: zeros behind the true type, which is the last byte.
const PADDING: ContentType = ContentType::Unknown(0);

/// A record of any content, sealed with the key of the sender.
fn forge(sealer: &mut Sealer, kind: ContentType, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let fill = |out: &mut Vec<u8>| out.extend_from_slice(content);
    sealer.record(kind, content.len(), &mut out, fill).expect("an open connection");
    out
}

/// The alert that answers a record.
#[track_caller]
fn alert_for(kind: ContentType, content: &[u8]) -> AlertDescription {
    let (mut sealer, mut opener) = one_way();
    let record = forge(&mut sealer, kind, content);
    match unseal(&mut opener, &record) {
        Err(TlsError::Violation(alert, _)) => alert,
        other => panic!("{other:?}"),
    }
}

#[test]
fn values_of_all_sizes_around_the_bounds_of_records_arrive() {
    let sizes = [0, 1, 2, 15, 16, 17, 255, 256, 4096, 100_000, 1 << 20];
    let bounds = [1, 2, 3, 8].map(|records| records * MAX_CONTENT);
    let around =
        bounds.into_iter().flat_map(|size| [size - 17, size - 1, size, size + 1, size + 17]);
    for suite in SUITES {
        let (caller, listener) = open_of(suite);
        let (mut sealer, mut answers) = caller.tls.split().unwrap();
        let (mut answer, mut opener) = listener.tls.split().unwrap();
        for size in sizes.into_iter().chain(around.clone()) {
            let value = pattern(size);
            let sealed = seal(&mut sealer, &value);
            assert_eq!(sealed.len(), size + size.div_ceil(MAX_CONTENT) * OVERHEAD);
            assert_eq!(unseal(&mut opener, &sealed), Ok((value.clone(), false)));
            let sealed = seal(&mut answer, &value);
            assert_eq!(unseal(&mut answers, &sealed), Ok((value, false)));
        }
    }
}

#[test]
fn a_value_in_slices_has_the_records_of_one_in_a_piece() {
    let value = pattern(3 * MAX_CONTENT + 1000);
    for cuts in [vec![1, 2, 3], vec![0, 8, 8], vec![MAX_CONTENT, 2 * MAX_CONTENT], vec![49_000]] {
        let mut ends = cuts.clone();
        ends.push(value.len());
        let begins = [0].into_iter().chain(cuts);
        let slices = begins.zip(ends).map(|(begin, end)| IoSlice::new(&value[begin..end]));
        let slices: Vec<_> = slices.collect();
        let (mut sealer, mut opener) = one_way();
        let mut sealed = b"kept".to_vec();
        sealer.seal(&slices, &mut sealed).unwrap();
        assert_eq!(sealed[..4], *b"kept");
        assert_eq!(sealed.len(), 4 + value.len() + 4 * OVERHEAD);
        assert_eq!(unseal(&mut opener, &sealed[4..]), Ok((value.clone(), false)));
    }
}

#[test]
fn records_that_arrive_in_pieces_are_opened_when_they_are_whole() {
    let value = pattern(2 * MAX_CONTENT + 5);
    let (mut sealer, mut opener) = one_way();
    let sealed = seal(&mut sealer, &value);
    let (mut received, mut plain) = (Vec::new(), Vec::new());
    for piece in sealed.chunks(1009) {
        received.extend_from_slice(piece);
        let opened = opener.open(&mut received, &mut plain).unwrap();
        received.drain(..opened.consumed);
        assert!(received.len() < MAX_CONTENT + OVERHEAD);
    }
    assert_eq!((received.len(), plain), (0, value));
}

#[test]
fn each_altered_bit_of_a_record_is_found() {
    let (mut sealer, _) = one_way();
    let len = seal(&mut sealer, b"parameters").len();
    for byte in 0..len {
        let (mut sealer, mut opener) = one_way();
        let mut sealed = seal(&mut sealer, b"parameters");
        sealed[byte] ^= 1 << (byte % 8);
        let whole = sealed.clone();
        sealed.resize(1 << 15, 0);
        let mut plain = Vec::new();
        let result = opener.open(&mut sealed, &mut plain);
        assert!(matches!(result, Err(TlsError::Violation(..))), "byte {byte}: {result:?}");
        assert!(plain.is_empty());
        // A record that is good changes nothing any more.
        let again = opener.open(&mut whole.clone(), &mut plain);
        assert_eq!(again, result, "byte {byte}");
    }
}

#[test]
fn records_that_are_cut_repeated_reordered_or_missing_are_refused() {
    let records =
        |sealer: &mut Sealer| [seal(sealer, b"one"), seal(sealer, b"two"), seal(sealer, b"three")];
    let wrong_tag = |result: Result<_, TlsError>| {
        matches!(result, Err(TlsError::Violation(AlertDescription::BadRecordMac, _)))
    };
    let orders: [&[usize]; 5] = [&[1], &[0, 0], &[0, 2], &[1, 0], &[0, 1, 1]];
    for order in orders {
        let (mut sealer, mut opener) = one_way();
        let records = records(&mut sealer);
        let bytes: Vec<u8> = order.iter().flat_map(|at| records[*at].clone()).collect();
        assert!(wrong_tag(unseal(&mut opener, &bytes)), "{order:?}");
    }
    // A record whose end is missing: the next one is taken for it.
    let (mut sealer, mut opener) = one_way();
    let [one, two, _] = records(&mut sealer);
    assert!(wrong_tag(unseal(&mut opener, &[&one[..one.len() - 1], &two].concat())));
    // One that says so in its header.
    let (mut sealer, mut opener) = one_way();
    let [mut one, ..] = records(&mut sealer);
    one.pop();
    one[4] -= 1;
    assert!(wrong_tag(unseal(&mut opener, &one)));
    // One without room for a tag.
    assert!(wrong_tag(unseal(&mut one_way().1, &[23, 3, 3, 0, 3, 1, 2, 3])));
    assert!(wrong_tag(unseal(&mut one_way().1, &[23, 3, 3, 0, 0])));
    // One of another connection.
    let (mut sealer, _) = one_way();
    assert!(wrong_tag(unseal(&mut one_way().1, &seal(&mut sealer, b"one"))));
}

#[test]
fn what_is_behind_a_good_record_does_not_take_it_back() {
    let (mut sealer, mut opener) = one_way();
    let (one, mut two) = (seal(&mut sealer, b"one"), seal(&mut sealer, b"two"));
    two[7] ^= 1;
    let mut plain = b"before ".to_vec();
    assert!(opener.open(&mut [one, two].concat(), &mut plain).is_err());
    assert_eq!(plain, b"before one");
}

#[test]
fn records_of_other_lengths_or_types_than_allowed_are_refused() {
    use AlertDescription::{RecordOverflow, UnexpectedMessage};

    // The header is enough to refuse a record that is not sealed, or too long.
    let headers: [([u8; 5], _); 5] = [
        ([20, 3, 3, 0, 1], UnexpectedMessage),
        ([21, 3, 3, 0, 2], UnexpectedMessage),
        ([22, 3, 3, 0, 9], UnexpectedMessage),
        ([0, 3, 3, 0, 9], UnexpectedMessage),
        ([23, 3, 3, 0x41, 1], RecordOverflow),
    ];
    for (mut header, alert) in headers {
        let result = one_way().1.open(&mut header, &mut Vec::new());
        assert!(matches!(result, Err(TlsError::Violation(it, _)) if it == alert), "{header:?}");
    }
    let longest = [23, 3, 3, 0x41, 0];
    assert_eq!(MAX_RECORD, longest.len() + 0x4100);
    let result = one_way().1.open(&mut longest.clone(), &mut Vec::new());
    assert_eq!(result, Ok(Opened { consumed: 0, is_closed: false }));

    assert_eq!(alert_for(DATA, &pattern(MAX_CONTENT + 1)), RecordOverflow);
    assert_eq!(alert_for(PADDING, &[&pattern(MAX_CONTENT)[..], &[23]].concat()), RecordOverflow);
    assert_eq!(alert_for(PADDING, &[0; 100]), UnexpectedMessage);
    assert_eq!(alert_for(PADDING, &[]), UnexpectedMessage);
    assert_eq!(alert_for(ContentType::ChangeCipherSpec, &[1]), UnexpectedMessage);
    assert_eq!(alert_for(ContentType::Heartbeat, &[1, 2, 3]), UnexpectedMessage);
    assert_eq!(alert_for(ContentType::Unknown(99), &[1]), UnexpectedMessage);
    assert_eq!(alert_for(ContentType::Handshake, &[]), UnexpectedMessage);
}

#[test]
fn padding_is_dropped_and_the_version_ignored() {
    let (mut sealer, mut opener) = one_way();
    for (value, zeros) in [(&b"padded"[..], 0), (b"padded", 1000), (b"", 7), (b"ends in 0\0", 3)] {
        let content = [value, &[23], &vec![0; zeros]].concat();
        let sealed = forge(&mut sealer, PADDING, &content);
        assert_eq!(unseal(&mut opener, &sealed), Ok((value.to_vec(), false)));
    }
    let whole = [&pattern(MAX_CONTENT - 1)[..], &[23]].concat();
    let sealed = forge(&mut sealer, PADDING, &whole);
    assert_eq!(unseal(&mut opener, &sealed), Ok((whole[..MAX_CONTENT - 1].to_vec(), false)));
}

#[test]
fn handshake_messages_that_no_peer_may_send_now_are_refused() {
    use AlertDescription::{DecodeError, IllegalParameter, UnexpectedMessage};

    let alert = |message: &[u8]| alert_for(ContentType::Handshake, message);
    // The receiver listens: no ticket is for it.
    for kind in
        [HandshakeType::ClientHello, HandshakeType::Finished, HandshakeType::NewSessionTicket]
    {
        assert_eq!(alert(&[kind.into(), 0, 0, 0]), UnexpectedMessage);
    }
    assert_eq!(alert(&[24, 0, 0, 2, 0, 0]), DecodeError);
    assert_eq!(alert(&[24, 0, 0, 0]), DecodeError);
    assert_eq!(alert(&[24, 0, 0, 1, 2]), IllegalParameter);
    assert_eq!(alert(&[24, 0, 0, 1, 0, 24, 0, 0, 1, 0]), UnexpectedMessage);
    assert_eq!(alert(&[24, 0, 0, 1, 0, 24]), UnexpectedMessage);
}

#[test]
fn a_handshake_message_may_be_in_several_records_but_with_none_between() {
    let (mut sealer, mut opener) = one_way();
    let pieces =
        [&[24][..], &[0, 0], &[1]].map(|it| forge(&mut sealer, ContentType::Handshake, it));
    assert_eq!(unseal(&mut opener, &pieces.concat()), Ok((Vec::new(), false)));
    let data = forge(&mut sealer, DATA, b"between");
    let result = unseal(&mut opener, &data);
    let expected = AlertDescription::UnexpectedMessage;
    assert!(matches!(result, Err(TlsError::Violation(alert, _)) if alert == expected));
}

#[test]
fn callers_drop_tickets_even_in_pieces_and_refuse_endless_ones() {
    let ends = || {
        let (caller, listener) = super::open();
        (listener.tls.split().unwrap().0, caller.tls.split().unwrap().1)
    };
    let (mut sealer, mut opener) = ends();
    let ticket = [&[4, 0, 0, 200][..], &pattern(200)].concat();
    let two = [&ticket[..], &ticket].concat();
    for pieces in [vec![&two[..]], vec![&two[..3], &two[3..250], &two[250..]]] {
        for piece in pieces {
            let sealed = forge(&mut sealer, ContentType::Handshake, piece);
            assert_eq!(unseal(&mut opener, &sealed), Ok((Vec::new(), false)));
        }
        let sealed = seal(&mut sealer, b"data");
        assert_eq!(unseal(&mut opener, &sealed), Ok((b"data".to_vec(), false)));
    }
    let (mut sealer, mut opener) = ends();
    let sealed = forge(&mut sealer, ContentType::Handshake, &[4, 1, 0, 0]);
    let result = unseal(&mut opener, &sealed);
    assert!(matches!(result, Err(TlsError::Violation(AlertDescription::DecodeError, _))));
}

#[test]
fn a_peer_that_sends_many_records_without_data_is_refused() {
    let (mut sealer, mut opener) = one_way();
    for _ in 0..3 {
        for _ in 0..64 {
            let empty = forge(&mut sealer, DATA, b"");
            assert_eq!(unseal(&mut opener, &empty), Ok((Vec::new(), false)));
        }
        let data = seal(&mut sealer, b"1");
        assert_eq!(unseal(&mut opener, &data), Ok((b"1".to_vec(), false)));
    }
    let mut results = (0..65).map(|_| unseal(&mut opener, &forge(&mut sealer, DATA, b"")));
    assert!(results.by_ref().take(64).all(|it| it.is_ok()));
    assert!(matches!(results.next(), Some(Err(TlsError::Violation(..)))));
}

#[test]
fn a_close_ends_both_halves_and_what_follows_is_ignored() {
    let (mut sealer, mut opener) = one_way();
    let mut sealed = seal(&mut sealer, b"last");
    sealer.close(&mut sealed);
    let len = sealed.len();
    sealer.close(&mut sealed);
    assert_eq!(sealed.len(), len, "an end is sent once");
    assert!(matches!(sealer.seal(&[IoSlice::new(b"more")], &mut sealed), Err(TlsError::Misuse(_))));
    assert_eq!(sealed.len(), len);
    sealed.extend_from_slice(b"garbage behind the end");
    assert_eq!(unseal(&mut opener, &sealed), Ok((b"last".to_vec(), true)));
    assert_eq!(unseal(&mut opener, b"more garbage"), Ok((Vec::new(), true)));
}

#[test]
fn alerts_end_the_connection_except_the_announcement_of_its_end() {
    let (mut sealer, mut opener) = one_way();
    let canceled = forge(&mut sealer, ContentType::Alert, &[1, 90]);
    assert_eq!(unseal(&mut opener, &canceled), Ok((Vec::new(), false)));
    // The severity is ignored.
    for alert in [[1, 40], [2, 48], [2, 200]] {
        let (mut sealer, mut opener) = one_way();
        let expected = Err(TlsError::Alert(alert[1].into()));
        let sealed = forge(&mut sealer, ContentType::Alert, &alert);
        assert_eq!(unseal(&mut opener, &sealed), expected);
        assert_eq!(unseal(&mut opener, b""), expected);
    }
    for alert in [&[][..], &[1], &[1, 0, 1]] {
        assert_eq!(alert_for(ContentType::Alert, alert), AlertDescription::DecodeError);
    }
}

#[test]
fn the_alert_for_an_error_reaches_the_peer() {
    let (caller, listener) = super::open();
    let (mut to_listener, mut from_listener) = caller.tls.split().unwrap();
    let (mut to_caller, mut from_caller) = listener.tls.split().unwrap();
    let mut bad = seal(&mut to_listener, b"x");
    bad[5] ^= 1;
    let error = unseal(&mut from_caller, &bad).unwrap_err();
    let mut sealed = Vec::new();
    to_caller.alert(&error, &mut sealed);
    let expected = TlsError::Alert(AlertDescription::BadRecordMac);
    assert_eq!(unseal(&mut from_listener, &sealed), Err(expected.clone()));
    // No alert answers an alert.
    let mut none = Vec::new();
    to_listener.alert(&expected, &mut none);
    to_listener.close(&mut none);
    assert_eq!(none.len(), 0);
}
