//! Offers, headers and sealed messages of a peer, for fuzzing.

use super::offer::{FRONT, HEADER, MOST_FRONT, UcxHeader, UcxMessage, UcxOffer, split_header};
use crate::transport::tls::{MessageOpener, MessageSealer, records_len, write_content};

/// A message that the peer has sealed: its number, its bytes, its content, and whether it was delivered.
struct Sealed {
    number: u64,
    bytes: Vec<u8>,
    content: Vec<u8>,
    is_delivered: bool,
}

/// Bytes of any kind as an offer, and as a header with the content of a message. Then steps of a byte for what
/// happens, a number of two bytes, and bytes: a message is sealed, and sealed ones are delivered whole, altered or cut.
pub(crate) fn fabric(data: &[u8]) {
    if let Some(UcxOffer { tag, secret, address }) = UcxOffer::decode(data) {
        assert!(UcxOffer::encode(&tag, secret.as_ref(), &address)[4..] == data[4..]);
    }
    let is_header = (HEADER..=HEADER + MOST_FRONT).contains(&data.len());
    assert_eq!(split_header(data).is_some(), is_header);
    if let Some((header, front)) = split_header(data) {
        assert!([&header[..], front].concat() == data);
    }
    if let Some((header, content)) = data.split_first_chunk::<HEADER>() {
        if let (tag, Some(UcxHeader::Sealed(number))) = UcxHeader::decode(header) {
            assert_eq!(UcxHeader::sealed(&tag, number), *header);
        }
        if UcxMessage::of_content(content).is_some() {
            assert!(content.len() >= FRONT);
        }
    }
    let (Ok(mut sealer), Ok(mut opener)) =
        (MessageSealer::new([7; 32]), MessageOpener::new([7; 32]))
    else {
        return;
    };
    let (mut messages, mut rest): (Vec<Sealed>, _) = (Vec::new(), data);
    while let Some(([step, low, high], tail)) = rest.split_first_chunk() {
        let number = usize::from(u16::from_le_bytes([*low, *high]));
        let bytes = &tail[..number.min(tail.len())];
        rest = tail;
        if step % 5 == 0 {
            messages.push(seal(&mut sealer, bytes));
            rest = &tail[bytes.len()..];
            continue;
        }
        if messages.is_empty() || step % 5 == 4 {
            assert_eq!(opener.open(number as u64, &mut bytes.to_vec()), None, "noise");
            continue;
        }
        let at = number % messages.len();
        deliver(&mut opener, &mut messages[at], step % 5, number);
    }
}

fn seal(sealer: &mut MessageSealer, frames: &[u8]) -> Sealed {
    let content = [&UcxMessage::Frames.front(frames.len())[..], frames].concat();
    let mut bytes = vec![0; records_len(content.len())];
    write_content(&mut bytes, 0, &content);
    let number = sealer.seal(&mut bytes, content.len()).expect("numbers are left");
    Sealed { number, bytes, content, is_delivered: false }
}

fn deliver(opener: &mut MessageOpener, message: &mut Sealed, step: u8, number: usize) {
    let mut bytes = message.bytes.clone();
    match step {
        1 => {
            let len = opener.open(message.number, &mut bytes);
            let expected = (!message.is_delivered).then_some(message.content.len());
            assert_eq!(len, expected, "each message arrives once");
            assert!(len.is_none_or(|len| bytes[..len] == message.content));
            message.is_delivered = true;
            return;
        }
        2 => {
            let at = number % bytes.len();
            bytes[at] ^= 1;
        }
        _ => bytes.truncate(number % bytes.len()),
    }
    if let Some(len) = opener.open(message.number, &mut bytes) {
        // Cut between two records: the length in front says so, and the number is used.
        assert_eq!(UcxMessage::of_content(&bytes[..len]), None, "altered or cut");
        message.is_delivered = true;
    }
}
