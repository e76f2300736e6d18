//! Encoding of messages as frames, and decoding.

use std::sync::Arc;

use super::Bytes;
use crate::message::{
    BadFrame, Body, BundleEntry, Message, MessageKind, decode, encode, read_table, write_parts,
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
            let (table, rest) = payload.split_at(head.covered(payload.len()));
            let mut entries = Vec::new();
            read_table(&head, table, payload.len(), &mut entries)?;
            let parts = read_parts(entries, rest)?;
            Body::Parts(Arc::new(parts.into()))
        }
        kind => body(kind, payload),
    };
    Ok(Message { head, body })
}

fn read_parts(entries: Vec<BundleEntry>, mut rest: &[u8]) -> Result<Vec<Message<Bytes>>, BadFrame> {
    let mut parts = Vec::new();
    for BundleEntry { head, payload, checksum } in entries {
        let (payload, others) = rest.split_at(payload);
        if crc32c(payload) != checksum {
            return Err(BadFrame::PayloadChecksum);
        }
        parts.push(Message { body: body(head.kind, payload), head });
        rest = others;
    }
    Ok(parts)
}

fn body(kind: MessageKind, payload: &[u8]) -> Body<Bytes> {
    if kind.carries_data(payload.len()) {
        Body::Data(Bytes::new(payload))
    } else {
        Body::Fields(payload.to_vec())
    }
}
