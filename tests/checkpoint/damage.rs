//! Files that are altered, cut off, lengthened, made up, or of others: refused, and nothing changes.

use std::fs;
use std::path::Path;

use kvstore::{ErrorKind, Store};

use super::common::folder::Folder;
use super::common::random::{Random, operations};
use super::{open, pull, refused, snapshot};

/// CRC-32C, bit by bit (RFC 3720, appendix B.4).
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg())
        })
    })
}

/// A file of a header and tensors, with the checksums that belong to them.
fn file(json: &str, tensors: &[&[u8]]) -> Vec<u8> {
    let mut bytes = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
    let sums: Vec<u8> = std::iter::once(&*bytes)
        .chain(tensors.iter().copied())
        .flat_map(|it| crc(it).to_le_bytes())
        .collect();
    tensors.iter().for_each(|tensor| bytes.extend(*tensor));
    bytes.extend(sums);
    bytes
}

/// The header of one key of two f32, with texts and tensors between it and the checksums.
fn header(texts: &str, key: &str, more: &str, checksums: &str) -> String {
    format!(
        "{{\"__metadata__\":{{\"kvstore.format\":\"1\"{texts}}},\
         \"{key}\":{{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}{more},\
         \"#checksum\":{{\"dtype\":\"U8\",\"shape\":{checksums}}}}}"
    )
}

const TWO: &[u8] = &[0, 0, 0x80, 0x3F, 0, 0, 0, 0x40];
const SGD: &str = ",\"kvstore.optimizer\":\"sgd\",\"kvstore.options\":\"\"";

/// A store with something to lose.
fn victim() -> Store {
    let store = open();
    store.init(1u64, &[5.0f32, 6.0]).unwrap();
    store.set_optimizer("momentum", "").unwrap();
    store.push(1u64, &[1.0f32, 1.0]).unwrap();
    store
}

/// A small file with everything in it.
fn good(path: &Path) -> Vec<u8> {
    let store = open();
    let name = store.intern("w").unwrap();
    store.init(1u64, &[1.0f32, 2.0]).unwrap();
    store.init(name, &[kvstore::f16::ONE; 3]).unwrap();
    store.set_optimizer("nadam", "multi_precision=1,wd=0.5").unwrap();
    store.set_key_hyperparameter(name, "lr_mult", 0.5).unwrap();
    store.push(name, &[kvstore::f16::ONE; 3]).unwrap();
    snapshot(&store, path)
}

/// Tries files on one store, which must stay as it was.
struct Trial {
    folder: Folder,
    store: Store,
    before: Vec<u8>,
}

impl Trial {
    fn new(name: &str) -> Self {
        let (folder, store) = (Folder::new(name), victim());
        let before = snapshot(&store, &folder.file("victim"));
        Self { folder, store, before }
    }

    fn refuse(&self, bytes: &[u8], what: &str) -> kvstore::Error {
        let path = self.folder.file("damaged");
        fs::write(&path, bytes).unwrap();
        let error = self.store.load(&path).expect_err(what);
        let kinds = [ErrorKind::Corrupt, ErrorKind::Unsupported];
        assert!(kinds.contains(&error.kind()), "{what}: {error}");
        error
    }

    fn end(self) {
        assert!(snapshot(&self.store, &self.folder.file("victim")) == self.before);
    }
}

#[test]
fn every_altered_byte_is_found() {
    let trial = Trial::new("altered");
    let file = good(&trial.folder.file("good"));
    let mut damaged = file.clone();
    let mut random = Random::from_environment("altered bytes");
    for at in 0..file.len() {
        for change in [1, 0x80, 1 + random.below(255) as u8] {
            damaged[at] ^= change;
            trial.refuse(&damaged, &format!("byte {at} changed by {change}"));
            damaged[at] = file[at];
        }
    }
    trial.end();
}

#[test]
fn an_altered_tensor_is_named() {
    let trial = Trial::new("named");
    let mut file = good(&trial.folder.file("good"));
    let start = 8 + u64::from_le_bytes(*file.first_chunk().unwrap()) as usize;
    file[start] ^= 1;
    let error = trial.refuse(&file, "the first tensor");
    assert!(error.message().contains("the bytes of tensor \"#1\" are altered"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    trial.end();
}

#[test]
fn every_other_length_is_found() {
    let trial = Trial::new("length");
    let mut file = good(&trial.folder.file("good"));
    for length in 0..file.len() {
        let error = trial.refuse(&file[..length], &format!("{length} bytes"));
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{length}: {error}");
    }
    for more in 0..20 {
        file.push(more);
        trial.refuse(&file, &format!("{more} more"));
    }
    trial.end();
}

#[test]
fn garbage_is_refused() {
    let trial = Trial::new("garbage");
    let mut random = Random::from_environment("garbage");
    let file = good(&trial.folder.file("good"));
    for round in 0..operations(2000) {
        let mut bytes: Vec<u8> = if random.one_in(2) {
            (0..random.below(200)).map(|_| random.next() as u8).collect()
        } else {
            file.clone()
        };
        // Pieces of it moved, doubled, or cut out; a length that may fit.
        for _ in 0..random.below(4) {
            let (from, to) = (random.below(bytes.len() + 1), random.below(bytes.len() + 1));
            let piece = bytes[from.min(to)..from.max(to)].to_vec();
            let at = random.below(bytes.len() + 1);
            bytes.splice(at..at, piece);
        }
        if let (Some(length), true) = (bytes.first_chunk_mut(), random.one_in(2)) {
            *length = (random.below(300) as u64).to_le_bytes();
        }
        if bytes != file {
            trial.refuse(&bytes, &format!("round {round}"));
        }
    }
    trial.end();
}

#[test]
fn a_file_that_was_made_by_hand_is_read() {
    let folder = Folder::new("by-hand");
    let path = folder.file("file");
    fs::write(&path, file(&header("", "a", "", "[8],\"data_offsets\":[8,16]"), &[TWO])).unwrap();
    let store = open();
    store.load(&path).unwrap();
    assert_eq!(pull(&store, store.keys().unwrap()[0], 2), [1.0, 2.0]);
    assert_eq!(store.key_name(store.keys().unwrap()[0]).unwrap(), "a");
}

/// A tensor's entry.
fn entry(name: &str, dtype: &str, shape: &str, place: &str) -> String {
    format!(",\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":{place}}}")
}

#[test]
fn headers_that_lie_are_refused_though_their_checksums_fit() {
    let trial = Trial::new("hostile");
    let one = "[8],\"data_offsets\":[8,16]";
    let numbers = |at: u64| {
        entry("#updates", "I64", "[1]", &format!("[{at},{}]", at + 8))
            + &entry("#carried", "F64", "[1]", &format!("[{},{}]", at + 8, at + 16))
    };
    let state = |shape: &str, end: u64| entry("#state.0:a", "F32", shape, &format!("[8,{end}]"));
    let zeros: &[u8] = &[0; 64];
    let minus: &[u8] = &[0xFF; 8];
    for (json, tensors, says) in [
        (header("", "#7x", "", one), vec![TWO], "\"#7x\""),
        (header("", "#07", "", one), vec![TWO], "\"#07\""),
        (header("", "#9223372036854775808", "", one), vec![TWO], "too large"),
        (header("", "a\\u0000", "", one), vec![TWO], "NUL"),
        (header("", "#residual:a", "", one), vec![TWO], "#residual"),
        (header("", "#pad.0", "", one), vec![TWO], "#pad.0"),
        (
            header("", "a", &state("[2]", 16), "[12],\"data_offsets\":[16,28]"),
            vec![TWO, &zeros[..8]],
            "#state.0",
        ),
        (header(SGD, "a", "", one), vec![TWO], "#updates"),
        (
            header("", "a", &numbers(8), "[16],\"data_offsets\":[24,40]"),
            vec![TWO, &zeros[..8], &zeros[..8]],
            "#updates",
        ),
        (
            header(
                SGD,
                "a",
                &(state("[3]", 20) + &entry("#pad.2", "U8", "[4]", "[20,24]") + &numbers(24)),
                "[24],\"data_offsets\":[40,64]",
            ),
            vec![TWO, &zeros[..12], &zeros[..4], &zeros[..8], &zeros[..8]],
            "\"#state.0:a\", float32[3], is where \"#state.0:a\", float32[2], must be",
        ),
        (
            header(
                SGD,
                "a",
                &(entry("#state.0:b", "F32", "[2]", "[8,16]") + &numbers(16)),
                "[20],\"data_offsets\":[32,52]",
            ),
            vec![TWO, &zeros[..8], &zeros[..8], &zeros[..8]],
            "\"#state.0:b\"",
        ),
        (
            header(
                SGD,
                "a",
                &(entry("#master:a", "F32", "[2]", "[8,16]") + &numbers(16)),
                "[20],\"data_offsets\":[32,52]",
            ),
            vec![TWO, &zeros[..8], &zeros[..8], &zeros[..8]],
            "#master",
        ),
        (
            header(SGD, "a", &numbers(8), "[16],\"data_offsets\":[24,40]"),
            vec![TWO, minus, minus],
            "less than 0",
        ),
        (header(",\"kvstore.optimizer\":\"later\"", "a", "", one), vec![TWO], "newer library"),
        (
            header(&format!("{SGD},\"kvstore.lr_mult:a\":\"fast\""), "a", "", one),
            vec![TWO],
            "\"fast\"",
        ),
        (
            header(&format!("{SGD},\"kvstore.lr_mult:a\":\"-1\""), "a", "", one),
            vec![TWO],
            "lr_mult is -1",
        ),
        (header(&format!("{SGD},\"kvstore.lr_mult:#x\":\"1\""), "a", "", one), vec![TWO], "#x"),
        (header(&format!("{SGD},\"kvstore.no_such:a\":\"1\""), "a", "", one), vec![TWO], "no_such"),
    ] {
        let error = trial.refuse(&file(&json, &tensors), &json);
        assert!(error.message().contains(says), "{says}: {error}\n{json}");
    }
    let names = [",\"dffpkeddlblkmhfa\"", ",\"pioccgceckckiifa\""];
    let twins = names
        .map(|name| format!("{name}:{{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[8,8]}}"))
        .concat();
    let path = trial.folder.file("twins");
    let json = header("", "a", &twins, "[16],\"data_offsets\":[8,24]");
    fs::write(&path, file(&json, &[TWO, &[], &[]])).unwrap();
    refused(trial.store.load(&path), ErrorKind::NameCollision, "pioccgceckckiifa");
    trial.end();
}

#[test]
fn more_states_than_any_rule_has_are_refused() {
    let trial = Trial::new("states");
    let mut more = String::new();
    for at in 0..40 {
        more += &entry(
            &format!("#state.{at}:a"),
            "F32",
            "[2]",
            &format!("[{},{}]", 8 + 8 * at, 16 + 8 * at),
        );
    }
    let json = header(SGD, "a", &more, "[168],\"data_offsets\":[328,496]");
    let error = trial.refuse(&file(&json, &[TWO; 41]), "40 states");
    assert!(error.message().contains("#state.3:a"), "{error}");
    trial.end();
}

#[test]
fn files_of_others_are_told_apart() {
    let trial = Trial::new("others");
    let plain = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    let bytes = [&(plain.len() as u64).to_le_bytes(), plain.as_bytes(), TWO].concat();
    let error = trial.refuse(&bytes, "a file of safetensors");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("only files that a store has saved can be loaded"), "{error}");
    let later =
        header("", "a", "", "[8],\"data_offsets\":[8,16]").replace("format\":\"1", "format\":\"2");
    let error = trial.refuse(&file(&later, &[TWO]), "a later format");
    assert!(error.message().contains("use a newer library"), "{error}");
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let error = trial.refuse(&huge, "a huge header");
    assert!(error.message().contains("announce a header of 18446744073709551615 bytes"), "{error}");
    trial.end();
}
