//! Encoding of messages as frames, and decoding.

use std::sync::Arc;

use super::Bytes;
use crate::message::{
    BadFrame, Body, BundleParts, Message, MessageKind, decode, encode, read_table, write_parts,
};
use kvstore_checksum::crc32c;

pub(crate) fn write_frame(message: &Message<Bytes>) -> Vec<u8> {
    let (head, mut frame) = (&message.head, Vec::new());
    match &message.body {
        Body::Parts(parts) => {
            let mut payload = vec![0; usize::try_from(message.body.len()).unwrap()];
            write_parts(parts.messages(), &mut payload, |body, place| {
                place.copy_from_slice(bytes(body));
                Some(crc32c(place))
            });
            encode(head, &payload, &mut frame);
        }
        body => encode(head, bytes(body), &mut frame),
    }
    frame
}

fn bytes(body: &Body<Bytes>) -> &[u8] {
    match body {
        Body::Fields(fields) => fields,
        Body::Data(data) => data.bytes(),
        Body::Parts(_) => panic!("a bundle in a bundle"),
    }
}

/// Decodes the only frame of a delivery.
pub(crate) fn read_frame(frame: &[u8]) -> Result<Message<Bytes>, BadFrame> {
    let (head, payload, rest) = decode(frame, 1 << 20)?;
    assert!(rest.is_empty(), "one frame at a time");
    let body = match head.kind {
        MessageKind::Bundle => {
            let (table, mut rest) = payload.split_at(head.covered(payload.len()));
            let (mut parts, mut entries) = (BundleParts::default(), Vec::new());
            read_table(&head, table, payload.len(), &mut parts, &mut entries)?;
            parts.fill(&entries, |head, entry| {
                let (payload, others) = rest.split_at(entry.payload);
                rest = others;
                let is_intact = crc32c(payload) == entry.checksum;
                is_intact.then(|| body(head.kind, payload)).ok_or(BadFrame::PayloadChecksum)
            })?;
            Body::Parts(Arc::new(parts))
        }
        kind => body(kind, payload),
    };
    Ok(Message { head, body })
}

fn body(kind: MessageKind, payload: &[u8]) -> Body<Bytes> {
    if kind.carries_data(payload.len()) {
        Body::Data(Bytes::new(payload))
    } else {
        Body::Fields(payload.to_vec())
    }
}
