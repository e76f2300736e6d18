//! Files that are altered, cut off, lengthened, made up, or of others: refused, and nothing changes.

use std::fs;
use std::path::Path;

use kvstore::{ErrorKind, Store};

use super::common::folder::Folder;
use super::common::random::{self, operations};
use super::{open, pull, refused, snapshot};

/// CRC-32C, bit by bit (RFC 3720, appendix B.4).
fn crc(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| {
            (sum >> 1) ^ (0x82F6_3B78 & (sum & 1).wrapping_neg())
        })
    })
}

/// A tensor: name, dtype, shape, bytes.
type Part<'a> = (&'a str, &'a str, &'a str, &'a [u8]);

/// A file with texts and tensors as given, and with the places and checksums that belong to them.
fn file(texts: &str, parts: &[Part<'_>]) -> Vec<u8> {
    let checksums = format!("[{}]", 4 * parts.len() + 4);
    let zeros = vec![0; 4 * parts.len() + 4];
    let mut members = vec![format!("\"__metadata__\":{{\"kvstore.format\":\"1\"{texts}}}")];
    let mut end = 0;
    for (name, dtype, shape, bytes) in
        parts.iter().chain(&[("#checksum", "U8", &*checksums, &*zeros)])
    {
        let start = end;
        end += bytes.len();
        members.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape},\"data_offsets\":[{start},{end}]}}"
        ));
    }
    let json = format!("{{{}}}", members.join(","));
    let mut bytes = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
    let tensors: Vec<&[u8]> = parts.iter().map(|(.., bytes)| *bytes).collect();
    let sums = std::iter::once(&*bytes).chain(tensors.iter().copied()).map(crc);
    let sums: Vec<u8> = sums.flat_map(u32::to_le_bytes).collect();
    bytes.extend(tensors.concat());
    bytes.extend(sums);
    bytes
}

const SGD: &str = ",\"kvstore.optimizer\":\"sgd\",\"kvstore.options\":\"\"";
const TWO_BIT: &str = ",\"kvstore.codec\":\"2bit\",\"kvstore.codec_options\":\"threshold=0.5\"";
const MINUS: &[u8] = &[0xFF; 8];
const ZEROS: &[u8] = &[0; 12];
/// The key of most of these files, and what stands at the end of one key under an optimizer.
const A: Part<'_> = ("a", "F32", "[2]", &[0, 0, 0x80, 0x3F, 0, 0, 0, 0x40]);
const STATE: Part<'_> = ("#state.0:a", "F32", "[2]", &[0; 8]);
const UPDATES: Part<'_> = ("#updates", "I64", "[1]", STATE.3);
const CARRIED: Part<'_> = ("#carried", "F64", "[1]", STATE.3);

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
    let mut random = random::from_environment("altered bytes");
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
    let mut random = random::from_environment("garbage");
    let file = good(&trial.folder.file("good"));
    for round in 0..operations(2000).min(1_000_000) {
        let mut bytes: Vec<u8> = if random.one_in(2) {
            (0..random.below(200)).map(|_| random.next() as u8).collect()
        } else {
            file.clone()
        };
        // Pieces of it moved, doubled, or cut out; a length that may fit.
        for _ in 0..random.below(4) {
            let (from, to) = (random.index(bytes.len() + 1), random.index(bytes.len() + 1));
            let piece = bytes[from.min(to)..from.max(to)].to_vec();
            let at = random.index(bytes.len() + 1);
            bytes.splice(at..at, piece);
        }
        if let (Some(length), true) = (bytes.first_chunk_mut(), random.one_in(2)) {
            *length = random.below(300).to_le_bytes();
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
    for (texts, parts) in [("", vec![A]), (SGD, vec![A, STATE, UPDATES, CARRIED])] {
        fs::write(&path, file(texts, &parts)).unwrap();
        let store = open();
        store.load(&path).unwrap();
        let key = store.keys().unwrap()[0];
        assert_eq!(pull(&store, key, 2), [1.0, 2.0]);
        assert_eq!(store.key_name(key).unwrap(), "a");
    }
}

/// Tries made-up files that must be refused with these words.
fn refuse_all(name: &str, cases: &[(&str, &[Part<'_>], &str)]) {
    let trial = Trial::new(name);
    for (texts, parts, says) in cases {
        let error = trial.refuse(&file(texts, parts), says);
        assert!(error.message().contains(says), "{texts} {parts:?}: {error}");
    }
    trial.end();
}

#[test]
fn names_that_no_key_has_are_refused_though_the_checksums_fit() {
    let key = |name| (name, "F32", "[2]", A.3);
    refuse_all(
        "hostile-names",
        &[
            ("", &[key("#7x")], "\"#7x\""),
            ("", &[key("#07")], "\"#07\""),
            ("", &[key("#9223372036854775808")], "too large"),
            ("", &[key("a\\u0000")], "NUL"),
            ("", &[key("#residual:a")], "#residual:a"),
            ("", &[key("#pad.0")], "#pad.0"),
            ("", &[A, key("#pad.1")], "#pad.1"),
            ("", &[A, key("a")], "twice"),
            (&format!("{SGD},\"kvstore.lr_mult:a\":\"fast\""), &[A], "\"fast\""),
            (&format!("{SGD},\"kvstore.lr_mult:a\":\"-1\""), &[A], "lr_mult is -1"),
            (&format!("{SGD},\"kvstore.lr_mult:#x\":\"1\""), &[A], "#x"),
            (&format!("{SGD},\"kvstore.lr_mult:\\u0000\":\"1\""), &[A], "NUL"),
            (&format!("{SGD},\"kvstore.no_such:a\":\"1\""), &[A], "no_such"),
            (",\"kvstore.optimizer\":\"later\"", &[A], "newer library"),
        ],
    );
    let trial = Trial::new("twins");
    let twins = [key("dffpkeddlblkmhfa"), key("pioccgceckckiifa")];
    let path = trial.folder.file("twins");
    fs::write(&path, file("", &twins)).unwrap();
    refused(trial.store.load(&path), ErrorKind::NameCollision, "pioccgceckckiifa");
    trial.end();
}

#[test]
fn states_that_no_rule_has_are_refused_though_the_checksums_fit() {
    let longer: Part<'_> = ("#state.0:a", "F32", "[3]", ZEROS);
    let wider: Part<'_> = ("#state.0:a", "F64", "[1]", STATE.3);
    let of_others: Part<'_> = ("#state.0:b", "F32", "[2]", STATE.3);
    let second: Part<'_> = ("#state.1:a", "F32", "[2]", STATE.3);
    let master: Part<'_> = ("#master:a", "F32", "[2]", STATE.3);
    let minus: Part<'_> = ("#updates", "I64", "[1]", MINUS);
    let integers: Part<'_> = ("a", "I32", "[2]", A.3);
    let names: Vec<String> = (0..40).map(|at| format!("#state.{at}:a")).collect();
    let many: Vec<Part<'_>> = std::iter::once(A)
        .chain(names.iter().map(|name| (name.as_str(), "F32", "[2]", STATE.3)))
        .chain([UPDATES, CARRIED])
        .collect();
    let misplaced = "\"#state.0:a\", float64[1], is where \"#state.0:a\", float32[2], must be";
    refuse_all(
        "hostile-states",
        &[
            ("", &[A, STATE], "#state.0:a"),
            ("", &[A, UPDATES, CARRIED], "#updates"),
            (SGD, &[A], "#updates"),
            (SGD, &[A, UPDATES], "#carried"),
            (SGD, &[A, CARRIED, UPDATES], "#carried"),
            (SGD, &[A, UPDATES, CARRIED, STATE], "#state.0:a"),
            (SGD, &[A, STATE, wider], "twice"),
            (SGD, &[A, wider, UPDATES, CARRIED], misplaced),
            (SGD, &[A, longer, UPDATES, CARRIED], "float32[3]"),
            (SGD, &[A, of_others, UPDATES, CARRIED], "#state.0:b"),
            (SGD, &[A, second, UPDATES, CARRIED], "#state.1:a"),
            (SGD, &[A, master, UPDATES, CARRIED], "#master:a"),
            (SGD, &[A, minus, CARRIED], "pushed -1 times"),
            (SGD, &[STATE, UPDATES, CARRIED], "#state.0:a"),
            (SGD, &many, "#state.3:a"),
        ],
    );
    let trial = Trial::new("integers");
    let path = trial.folder.file("integers");
    fs::write(&path, file(SGD, &[integers, STATE, UPDATES, CARRIED])).unwrap();
    refused(trial.store.load(&path), ErrorKind::DtypeMismatch, "the optimizer sgd cannot change");
    trial.end();
}

#[test]
fn residuals_that_no_codec_has_are_refused_though_the_checksums_fit() {
    let residual: Part<'_> = ("#residual.0.0:a", "F32", "[2]", STATE.3);
    let second: Part<'_> = ("#residual.0.1:a", "F32", "[2]", STATE.3);
    let longer: Part<'_> = ("#residual.0.0:a", "F32", "[3]", ZEROS);
    let integers: Part<'_> = ("a", "I32", "[2]", A.3);
    let rounds: Part<'_> = ("#rounds", "I64", "[1]", STATE.3);
    let minus: Part<'_> = ("#rounds", "I64", "[1]", MINUS);
    // Two workers, each with a residual and a count of its own.
    let two = format!("{TWO_BIT},\"kvstore.workers\":\"2\"");
    let other: Part<'_> = ("#residual.1.0:a", "F32", "[2]", STATE.3);
    let counts = [STATE.3, MINUS].concat();
    let both: Part<'_> = ("#rounds", "I64", "[1,2]", &[0; 16]);
    let negative: Part<'_> = ("#rounds", "I64", "[1,2]", &counts);
    let [one, half, most] =
        ["1", "2.5", "4294967296"].map(|it| two.replace("\"2\"", &format!("\"{it}\"")));
    let odd = TWO_BIT.replace("0.5", "-1");
    let unknown = TWO_BIT.replace("2bit", "3bit");
    refuse_all(
        "hostile-residuals",
        &[
            ("", &[A, residual], "#residual.0.0:a"),
            ("", &[A, rounds], "#rounds"),
            (TWO_BIT, &[A], "#rounds"),
            (TWO_BIT, &[A, second, rounds], "#residual.0.1:a"),
            (TWO_BIT, &[A, longer, rounds], "float32[3]"),
            (TWO_BIT, &[integers, residual, rounds], "#residual.0.0:a"),
            (TWO_BIT, &[A, residual, minus], "pushed -1 times"),
            (TWO_BIT, &[A, residual, other, rounds], "#residual.1.0:a"),
            (&two, &[A, residual, both], "has not what each of 2 workers has left"),
            (&two, &[A, residual, second, both], "#residual.0.1:a"),
            (&two, &[A, residual, other, rounds], "#rounds"),
            (&two, &[A, residual, other, negative], "pushed -1 times"),
            (&one, &[A, residual, rounds], "\"1\" workers"),
            (&half, &[A, residual, rounds], "\"2.5\" workers"),
            (&most, &[A, rounds], "\"4294967296\" workers"),
        ],
    );
    let trial = Trial::new("codecs");
    let path = trial.folder.file("workers");
    fs::write(&path, file(&two, &[A, residual, other, both])).unwrap();
    open().load(&path).unwrap();
    for (texts, says) in [(&odd, "threshold"), (&unknown, "3bit")] {
        let error = trial.refuse(&file(texts, &[A, residual, rounds]), texts);
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.message().contains(says), "{error}");
    }
    trial.end();
}

#[test]
fn files_of_others_are_told_apart() {
    let trial = Trial::new("others");
    let plain = "{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}";
    let bytes = [&(plain.len() as u64).to_le_bytes(), plain.as_bytes(), A.3].concat();
    let error = trial.refuse(&bytes[..bytes.len() - 1], "half a file of another program");
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let other = std::env::temp_dir().join(format!("kvstore-foreign-{}", std::process::id()));
    fs::write(&other, &bytes).unwrap();
    let store = open();
    store.load(&other).unwrap();
    fs::remove_file(&other).unwrap();
    let key = store.intern("a").unwrap();
    let mut out = [0.0f32; 2];
    store.pull(key, &mut out).unwrap();
    assert_eq!(out.map(f32::to_le_bytes).concat(), A.3);
    let mut later = file("", &[A]);
    let format = b"kvstore.format\":\"";
    let at = later.windows(format.len()).position(|it| it == format).unwrap() + format.len();
    later[at] = b'2';
    let error = trial.refuse(&later, "a later format");
    assert!(error.message().contains("use a newer library"), "{error}");
    let huge = [&u64::MAX.to_le_bytes()[..], b"{}"].concat();
    let error = trial.refuse(&huge, "a huge header");
    assert!(error.message().contains("announce a header of 18446744073709551615 bytes"), "{error}");
    trial.end();
}
