//! The records of the connection in RFC 8448, section 3 (Simple 1-RTT Handshake).

use ring::aead::AES_128_GCM;
use ring::hkdf::{HKDF_SHA256, KeyType, Prk};
use rustls::ContentType;

use super::super::record::RecordKey;

/// `client_application_traffic_secret_0`.
const CALLER_SECRET: &str = "9e40646ce79a7f9dc05af8889bce6552875afa0b06df0087f792ebb7c17504a5";
/// `server_application_traffic_secret_0`.
const LISTENER_SECRET: &str = "a11af9f05531f856ad47116b45a950328204b4f44bfb6b3a4b4f1f3fcb631643";
const CALLER_KEY: (&str, &str) = ("17422dda596ed5d9acd890e3c63f5051", "5b78923dee08579033e523d9");
const LISTENER_KEY: (&str, &str) = ("9f02283b6c9c07efc26bb9f2ac92e356", "cf782b88dd83549aadf1e984");

/// `{client} send application_data record`, and the alert behind it.
const CALLER_DATA: &str = "17 03 03 00 43
    a2 3f 70 54 b6 2c 94 d0 af fa fe 82 28 ba 55 cb ef ac ea 42 f9 14 aa 66 bc ab 3f 2b 98 19 a8 a5
    b4 6b 39 5b d5 4a 9a 20 44 1e 2b 62 97 4e 1f 5a 62 92 a2 97 70 14 bd 1e 3d ea e6 3a ee bb 21 69
    49 15 e4";
const CALLER_ALERT: &str = "17 03 03 00 13
    c9 87 27 60 65 56 66 b7 4d 7f f1 15 3e fd 6d b6 d0 b0 e3";

/// `{server} send handshake record`, a ticket; then its data and its alert.
const LISTENER_TICKET: &str = "17 03 03 00 de
    3a 6b 8f 90 41 4a 97 d6 95 9c 34 87 68 0d e5 13 4a 2b 24 0e 6c ff ac 11 6e 95 d4 1d 6a f8 f6 b5
    80 dc f3 d1 1d 63 c7 58 db 28 9a 01 59 40 25 2f 55 71 3e 06 1d c1 3e 07 88 91 a3 8e fb cf 57 53
    ad 8e f1 70 ad 3c 73 53 d1 6d 9d a7 73 b9 ca 7f 2b 9f a1 b6 c0 d4 a3 d0 3f 75 e0 9c 30 ba 1e 62
    97 2a c4 6f 75 f7 b9 81 be 63 43 9b 29 99 ce 13 06 46 15 13 98 91 d5 e4 c5 b4 06 f1 6e 3f c1 81
    a7 7c a4 75 84 00 25 db 2f 0a 77 f8 1b 5a b0 5b 94 c0 13 46 75 5f 69 23 2c 86 51 9d 86 cb ee ac
    87 aa c3 47 d1 43 f9 60 5d 64 f6 50 db 4d 02 3e 70 e9 52 ca 49 fe 51 37 12 1c 74 bc 26 97 68 7e
    24 87 46 d6 df 35 30 05 f3 bc e1 86 96 12 9c 81 53 55 6b 3b 6c 67 79 b3 7b f1 59 85 68 4f";
const LISTENER_DATA: &str = "17 03 03 00 43
    2e 93 7e 11 ef 4a c7 40 e5 38 ad 36 00 5f c4 a4 69 32 fc 32 25 d0 5f 82 aa 1b 36 e3 0e fa f9 7d
    90 e6 df fc 60 2d cb 50 1a 59 a8 fc c4 9c 4b f2 e5 f0 a2 1c 00 47 c2 ab f3 32 54 0d d0 32 e1 67
    c2 95 5d";
const LISTENER_ALERT: &str = "17 03 03 00 13
    b5 8f d6 71 66 eb f5 99 d2 47 20 cf be 7e fa 7a 88 64 a9";

/// `close_notify`, a warning.
const CLOSE: [u8; 2] = [1, 0];

fn bytes(text: &str) -> Vec<u8> {
    let digits: Vec<char> = text.split_whitespace().flat_map(str::chars).collect();
    let value = |pair: &[char]| u8::from_str_radix(&String::from_iter(pair), 16);
    digits.chunks(2).map(|pair| value(pair).expect("hex digits")).collect()
}

/// The application data of both sides: 50 bytes from 0.
fn data() -> Vec<u8> {
    (0..50).collect()
}

#[derive(Clone, Copy)]
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// HKDF-Expand-Label of RFC 8446, section 7.1, without a context.
fn expand(secret: &str, label: &str, len: u8) -> Vec<u8> {
    let label = format!("tls13 {label}");
    let label_len = u8::try_from(label.len()).expect("a short label");
    let info = [&[0, len, label_len], label.as_bytes(), &[0]].concat();
    let mut out = vec![0; usize::from(len)];
    let secret = Prk::new_less_safe(HKDF_SHA256, &bytes(secret));
    let length = Length(out.len());
    secret.expand(&[&info], length).expect("a short key").fill(&mut out).expect("its length");
    out
}

fn key(secret: &str) -> RecordKey {
    RecordKey::of(&AES_128_GCM, &expand(secret, "key", 16), &expand(secret, "iv", 12), 0)
        .expect("a key of AES-128")
}

fn seal(key: &mut RecordKey, kind: ContentType, content: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    key.seal(kind, content.len(), &mut out, |out| out.extend_from_slice(content)).expect("sealed");
    out
}

/// Opens a published record, and compares what sealing its content again gives.
#[track_caller]
fn check(opening: &mut RecordKey, sealing: &mut RecordKey, record: &str) -> (ContentType, Vec<u8>) {
    let record = bytes(record);
    let mut copy = record.clone();
    let opened = opening.open(&mut copy).expect("a record of the RFC");
    let (kind, content) = (opened.kind, opened.content.to_vec());
    assert_eq!(seal(sealing, kind, &content), record);
    (kind, content)
}

#[test]
fn the_traffic_keys_are_those_of_the_rfc() {
    for (secret, (key, iv)) in [(CALLER_SECRET, CALLER_KEY), (LISTENER_SECRET, LISTENER_KEY)] {
        assert_eq!(expand(secret, "key", 16), bytes(key));
        assert_eq!(expand(secret, "iv", 12), bytes(iv));
    }
}

#[test]
fn the_records_of_the_caller_are_those_of_the_rfc() {
    let (mut opening, mut sealing) = (key(CALLER_SECRET), key(CALLER_SECRET));
    let records = [CALLER_DATA, CALLER_ALERT].map(|it| check(&mut opening, &mut sealing, it));
    assert_eq!(records[0], (ContentType::ApplicationData, data()));
    assert_eq!(records[1], (ContentType::Alert, CLOSE.to_vec()));
}

#[test]
fn the_records_of_the_listener_are_those_of_the_rfc() {
    let (mut opening, mut sealing) = (key(LISTENER_SECRET), key(LISTENER_SECRET));
    let records = [LISTENER_TICKET, LISTENER_DATA, LISTENER_ALERT]
        .map(|it| check(&mut opening, &mut sealing, it));
    // new_session_ticket of 201 bytes, for 30 s.
    assert_eq!(records[0].0, ContentType::Handshake);
    assert_eq!(records[0].1[..8], [4, 0, 0, 201, 0, 0, 0, 30]);
    assert_eq!(records[0].1.len(), 205);
    assert_eq!(records[1], (ContentType::ApplicationData, data()));
    assert_eq!(records[2], (ContentType::Alert, CLOSE.to_vec()));
}

#[test]
fn the_records_of_the_rfc_are_opened_in_their_order_only() {
    assert!(key(LISTENER_SECRET).open(&mut bytes(LISTENER_DATA)).is_err());
    assert!(key(CALLER_SECRET).open(&mut bytes(CALLER_ALERT)).is_err());
    assert!(key(LISTENER_SECRET).open(&mut bytes(CALLER_DATA)).is_err());
}
