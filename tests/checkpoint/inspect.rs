//! What is found in files, sound ones and damaged ones.

use std::fs;

use kvstore::{ErrorKind, Inspection, Store, TensorState};

use super::common::folder::Folder;
use super::common::random::{self, operations};
use super::open;

/// A store with everything that a file can have.
fn store() -> Store {
    let store = open();
    let weight = store.intern("weight").unwrap();
    store.init(weight, &[1.0f32; 6]).unwrap();
    store.init(7u64, &[half::f16::ONE; 3]).unwrap();
    store.set_optimizer("adam", "learning_rate=0.25,multi_precision=true").unwrap();
    for _ in 0..3 {
        store.push(weight, &[0.5f32; 6]).unwrap();
    }
    store.push(7u64, &[half::f16::ONE; 3]).unwrap();
    store
}

#[test]
fn keys_states_and_settings_are_found() {
    let folder = Folder::new("inspect");
    let path = folder.file("a");
    store().save(&path).unwrap();
    let found = Inspection::read(&path).unwrap();
    assert!(found.is_intact());
    assert_eq!(found.bytes, fs::metadata(&path).unwrap().len());
    assert_eq!(found.texts["kvstore.optimizer"], "adam");
    let parts = |key: &str| -> Vec<String> {
        let of_key = found.tensors.iter().filter(|tensor| tensor.key.as_deref() == Some(key));
        of_key.map(|tensor| tensor.part.clone().unwrap_or_default()).collect()
    };
    assert_eq!(parts("weight"), ["", "state.0", "state.1"]);
    assert_eq!(parts("#7"), ["", "state.0", "state.1", "master"]);
    // Integers stand before names.
    assert_eq!(found.updates, [1, 3]);
    let file = fs::read(&path).unwrap();
    for tensor in found.tensors.iter().filter(|tensor| tensor.name == "weight") {
        let at = usize::try_from(tensor.offset).unwrap();
        assert_eq!((tensor.bytes, &tensor.shape[..]), (24, &[6][..]));
        assert_ne!(file[at..at + 24], [0; 24]);
    }
}

/// Every byte of a file counts: either it cannot be read, or the damage is found, at its place.
#[test]
fn every_altered_byte_is_found_at_its_place() {
    let folder = Folder::new("inspect-altered");
    let path = folder.file("a");
    store().save(&path).unwrap();
    let sound = fs::read(&path).unwrap();
    let whole = Inspection::read(&path).unwrap();
    for at in 0..sound.len() {
        let mut bytes = sound.clone();
        bytes[at] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let Ok(found) = Inspection::read(&path) else {
            let header = usize::try_from(whole.tensors[0].offset).unwrap();
            assert!(at < header, "byte {at}");
            continue;
        };
        assert!(!found.is_intact(), "byte {at}");
        let inside = |tensor: &&kvstore::InspectedTensor| {
            (tensor.offset..tensor.offset + tensor.bytes).contains(&(at as u64))
        };
        if let Some(tensor) = whole.tensors.iter().find(inside) {
            let same = found.tensors.iter().find(|found| found.name == tensor.name).unwrap();
            assert_eq!(same.state, TensorState::Altered, "byte {at}");
        }
    }
}

#[test]
fn a_file_that_is_cut_off_shows_what_is_missing() {
    let folder = Folder::new("inspect-cut");
    let path = folder.file("a");
    store().save(&path).unwrap();
    let sound = fs::read(&path).unwrap();
    let last = Inspection::read(&path).unwrap().tensors.pop().unwrap();
    fs::write(&path, &sound[..usize::try_from(last.offset).unwrap()]).unwrap();
    let found = Inspection::read(&path).unwrap();
    let states: Vec<TensorState> = found.tensors.iter().map(|tensor| tensor.state).collect();
    let (missing, others) = states.split_last().unwrap();
    assert_eq!(*missing, TensorState::Missing);
    assert!(others.iter().all(|state| *state == TensorState::Unchecked), "{others:?}");
    assert!(found.damage[0].starts_with("it is cut off: "), "{:?}", found.damage);
    fs::write(&path, b"").unwrap();
    assert_eq!(Inspection::read(&path).unwrap_err().kind(), ErrorKind::Corrupt);
    assert_eq!(Inspection::read(folder.path()).unwrap_err().kind(), ErrorKind::Io);
}

/// Whatever stands in a file, an answer comes.
#[test]
fn files_of_noise_are_answered() {
    let folder = Folder::new("inspect-noise");
    let path = folder.file("a");
    store().save(&path).unwrap();
    let sound = fs::read(&path).unwrap();
    let mut random = random::from_environment("inspect");
    for _ in 0..operations(100) {
        let mut bytes = sound.clone();
        for _ in 0..=random.below(8) {
            let at = random.index(bytes.len().min(1200));
            bytes[at] = random.next() as u8;
        }
        if random.one_in(2) {
            bytes.resize(random.index(2 * bytes.len()), 0);
        }
        fs::write(&path, &bytes).unwrap();
        assert!(!Inspection::read(&path).is_ok_and(|found| found.is_intact()) || bytes == sound);
    }
}
