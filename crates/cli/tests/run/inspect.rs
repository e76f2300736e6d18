//! `kvstore inspect`, on files that stores have saved, and on damaged ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use kvstore::{Config, Store};

use super::launcher::PROGRAM;

/// A file that goes with the value.
struct Saved(PathBuf);

impl Saved {
    fn new(name: &str) -> Self {
        let file = format!("kvstore-inspect-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(file);
        let store = Store::open("local", &Config::new()).unwrap();
        // What a terminal would obey.
        let weight = store.intern("fc1\x1b[31m").unwrap();
        store.init(weight, &[1.0f32; 6]).unwrap();
        store.set_optimizer("momentum", "learning_rate=0.25,momentum=0.5").unwrap();
        store.push(weight, &[1.0f32; 6]).unwrap();
        store.save(&path).unwrap();
        Self(path)
    }
}

impl Drop for Saved {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// The status, standard output and standard error.
fn inspect(options: &[&str], path: &Path) -> (Option<i32>, String, String) {
    let output = Command::new(PROGRAM).arg("inspect").args(options).arg(path).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[test]
fn a_checkpoint_is_shown_as_a_table() {
    let saved = Saved::new("table");
    let (status, out, err) = inspect(&[], &saved.0);
    assert_eq!((status, err.as_str()), (Some(0), ""));
    let expected = [
        &*format!("saved by   {}", kvstore::VERSION),
        "optimizer  momentum learning_rate=0.25,momentum=0.5",
        "codec      none",
        &format!("size       {} bytes; 1 keys with 24", fs::metadata(&saved.0).unwrap().len()),
        "",
        "key            dtype    shape  bytes  updates  belongs to it  checksum",
        r"fc1\u{1b}[31m  float32  [6]    24     1        state.0        ok",
        "",
        "All checksums are right.",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), expected);
}

#[test]
fn a_checkpoint_is_one_object_of_json() {
    let saved = Saved::new("json");
    let (status, out, _) = inspect(&["--json"], &saved.0);
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((status, &found["intact"]), (Some(0), &true.into()));
    assert_eq!(found["texts"]["kvstore.optimizer"], "momentum");
    let key = &found["keys"][0];
    assert_eq!((&key["name"], &key["updates"]), (&"fc1\u{1b}[31m".into(), &1.into()));
    assert_eq!(key["shape"], serde_json::json!([6]));
    assert_eq!(key["parts"][0]["name"], "state.0");
    assert_eq!(found["others"].as_array().unwrap().len(), 2);
}

#[test]
fn damage_is_shown_with_its_place_and_the_status_is_1() {
    let saved = Saved::new("damage");
    let sound = fs::read(&saved.0).unwrap();
    let header = usize::try_from(u64::from_le_bytes(sound[..8].try_into().unwrap())).unwrap() + 8;
    let mut bytes = sound.clone();
    bytes[header + 30] ^= 4;
    fs::write(&saved.0, &bytes).unwrap();
    let (status, out, _) = inspect(&[], &saved.0);
    assert_eq!(status, Some(1));
    assert!(out.contains("state.0        state.0 altered\n"), "{out}");
    let place = format!("from byte {} to {}\n", header + 24, header + 48);
    assert!(out.contains(&place) && !out.contains("are right"), "{out}");

    fs::write(&saved.0, &sound[..header + 24]).unwrap();
    let (status, out, _) = inspect(&[], &saved.0);
    assert!(status == Some(1) && out.contains("DAMAGED: it is cut off: "), "{out}");
    assert!(out.contains("unchecked, state.0 missing\n"), "{out}");

    for (bytes, part) in
        [(&b""[..], "it is no checkpoint"), (&sound[..9], "cut off or no checkpoint")]
    {
        fs::write(&saved.0, bytes).unwrap();
        let (status, out, err) = inspect(&["--json"], &saved.0);
        assert_eq!((status, out.as_str()), (Some(1), ""));
        assert!(err.starts_with("kvstore inspect: /") && err.contains(part), "{err}");
    }
}

#[test]
fn digests_are_those_of_the_store() {
    let folder =
        std::env::temp_dir().join(format!("kvstore-inspect-digest-{}", std::process::id()));
    let store = Store::open("local", &Config::new()).unwrap();
    store.init(7u64, &[1.0f32; 600]).unwrap();
    store.set_optimizer("adam", "learning_rate=0.25").unwrap();
    store.push(7u64, &[0.5f32; 600]).unwrap();
    store.save(&folder).unwrap();
    let digest = store.digest(&[7u64.into()]).unwrap()[0];
    let (status, out, _) = inspect(&["--json"], &folder);
    fs::remove_file(&folder).unwrap();
    assert_eq!(status, Some(0));
    let found: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["keys"][0]["digest"], format!("{:016x}", digest.value));
    assert_eq!(found["keys"][0]["state_digest"], format!("{:016x}", digest.state));
    assert!(digest.state != 0);
}
