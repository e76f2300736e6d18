//! Frames of earlier releases, in `tests/golden/releases`: a line each, of the name of a kind and bytes in
//! hexadecimal. With `KV_WRITE_RELEASE=yes` those of this release are written first.

use std::fs;
use std::path::PathBuf;

use super::header::{BadFrame, Header, MessageKind, VERSION, decode};
use super::{Body, Message};
use crate::job::Role;
use crate::sim::{Bytes, read_frame, write_frame};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/releases");
/// Where frames have the version of their format.
const VERSION_AT: usize = 4;

/// Each field with a number of its own.
fn header(kind: MessageKind) -> Header {
    Header {
        kind,
        role: Role::Server,
        rank: 3,
        job: 0x0102_0304_0506_0708,
        incarnation: 12,
        to_incarnation: 13,
        epoch: 14,
        sequence: 15,
        ack: 16,
        key: 17,
        generation: 18,
        slice: 19,
        round: 20,
        offset: 21,
        total: 22,
        request: 23,
        setting: 24,
        priority: -25,
        flags: 26,
        codec: 1,
        ..Header::default()
    }
}

fn message(kind: MessageKind, payload: &[u8]) -> Message<Bytes> {
    let body = if kind.carries_data(payload.len()) {
        Body::Data(Bytes::new(payload))
    } else {
        Body::Fields(payload.to_vec())
    };
    Message { head: header(kind), body }
}

/// A frame of each kind; the one of a bundle has two parts.
fn frames() -> Vec<(String, Vec<u8>)> {
    let frame = |kind: &MessageKind| {
        let message = if *kind == MessageKind::Bundle {
            let parts = [MessageKind::Push, MessageKind::Pull].map(|kind| message(kind, &[5, 6]));
            let bundle = Message::bundle(parts.to_vec());
            let (offset, total) = (bundle.head.offset, bundle.head.total);
            Message { head: Header { offset, total, ..header(*kind) }, ..bundle }
        } else {
            message(*kind, &[1, 2, 3, 4, 5])
        };
        (format!("{kind:?}"), write_frame(&message))
    };
    MessageKind::ALL.iter().map(frame).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().concat()
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn path(release: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(release).join("frames.txt")
}

#[test]
fn frames_of_earlier_releases_are_read_with_the_same_meaning_or_their_version_is_told() {
    let known = frames();
    if std::env::var_os("KV_WRITE_RELEASE").is_some() {
        let lines = known.iter().map(|(name, frame)| format!("{name} {}\n", hex(frame)));
        fs::write(path(env!("CARGO_PKG_VERSION")), lines.collect::<Vec<_>>().concat()).unwrap();
    }
    let mut releases = 0;
    for release in fs::read_dir(FOLDER).unwrap() {
        let release = release.unwrap().file_name().into_string().unwrap();
        for line in fs::read_to_string(path(&release)).unwrap().lines() {
            let (name, frame) = line.split_once(' ').unwrap();
            let frame = bytes(frame);
            let version = u16::from_le_bytes([frame[VERSION_AT], frame[VERSION_AT + 1]]);
            if version != VERSION {
                let told = decode(&frame, 1 << 20).unwrap_err();
                assert_eq!(told, BadFrame::Version(version), "{release}: {name}");
                continue;
            }
            let read = read_frame(&frame).unwrap();
            let kind = read.head.kind;
            assert_eq!(format!("{kind:?}"), name, "{release}");
            let (offset, total) = (read.head.offset, read.head.total);
            let is_bundle = kind == MessageKind::Bundle;
            let expected =
                if is_bundle { Header { offset, total, ..header(kind) } } else { header(kind) };
            assert_eq!(read.head, expected, "{release}: {name}");
            assert_eq!(hex(&write_frame(&read)), hex(&frame), "{release}: {name}");
        }
        releases += 1;
    }
    assert!(releases > 0);
}
