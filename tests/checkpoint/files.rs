//! Files and paths: what is replaced, what cannot be read or written.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use kvstore::{ErrorKind, Store};

use super::common::folder::Folder;
use super::{loaded, open, pull, refused};

fn store(number: f32) -> Store {
    let store = open();
    store.init(1u64, &[number]).unwrap();
    store
}

#[test]
fn a_save_replaces_the_file_and_leaves_nothing_else() {
    let folder = Folder::new("replaces");
    let path = folder.file("file");
    for number in [1.0, 2.0] {
        store(number).save(&path).unwrap();
        assert_eq!(pull(&loaded(&path), 1u64, 1), [number]);
    }
    fs::write(folder.file("file.3.kvstore-part"), "left by a killed process").unwrap();
    store(3.0).save(&path).unwrap();
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn the_file_has_the_mode_of_the_one_that_it_replaces() {
    let folder = Folder::new("mode");
    let (path, usual) = (folder.file("file"), folder.file("usual"));
    fs::write(&usual, "").unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    store(1.0).save(&path).unwrap();
    assert_eq!(mode(&path), mode(&usual), "a new file is an ordinary one");
    for kept in [0o600, 0o640, 0o400] {
        fs::set_permissions(&path, fs::Permissions::from_mode(kept)).unwrap();
        store(1.0).save(&path).unwrap();
        assert_eq!(mode(&path), kept, "{kept:o}");
    }
}

#[test]
fn planted_files_with_the_names_of_unfinished_ones_do_not_block_a_save() {
    let folder = Folder::new("planted");
    let path = folder.file("file");
    // Folders, which a save cannot remove.
    let planted = |n| folder.file(&format!("file.{n}.kvstore-part"));
    (0..1_000).for_each(|n| fs::create_dir(planted(n)).unwrap());
    store(7.0).save(&path).unwrap();
    assert_eq!(pull(&loaded(&path), 1u64, 1), [7.0]);
}

#[test]
fn a_symbolic_link_is_replaced_by_the_file() {
    let folder = Folder::new("link");
    let (path, target) = (folder.file("link"), folder.file("target"));
    fs::write(&target, "as it was").unwrap();
    symlink(&target, &path).unwrap();
    store(1.0).save(&path).unwrap();
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read_to_string(&target).unwrap(), "as it was");
    // A load follows one.
    let again = folder.file("again");
    symlink(&path, &again).unwrap();
    assert_eq!(pull(&loaded(&again), 1u64, 1), [1.0]);
}

#[test]
fn what_cannot_be_written_leaves_everything_as_it_was() {
    let folder = Folder::new("unwritable");
    let store = store(1.0);
    fs::create_dir_all(folder.file("taken/inside")).unwrap();
    for (path, says) in [
        (folder.file("none/file"), "No such file or directory"),
        (folder.file("taken"), "cannot write it"),
        ("/".into(), "not a file's name"),
        ("".into(), "not a file's name"),
        (folder.file(&"n".repeat(300)), "too long"),
    ] {
        refused(store.save(&path), ErrorKind::Io, says);
        refused(store.save(&path), ErrorKind::Io, &format!("save: \"{}\": ", path.display()));
    }
    assert_eq!(folder.names(), ["taken"]);
}

#[test]
fn what_cannot_be_read_is_said_at_once() {
    let folder = Folder::new("unreadable");
    let (store, pipe) = (open(), folder.file("pipe"));
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    refused(store.load(folder.file("none")), ErrorKind::Io, "No such file or directory");
    refused(store.load(folder.path()), ErrorKind::Io, "it is not a file");
    refused(store.load(&pipe), ErrorKind::Io, "it is not a file");
    refused(store.load("/dev/zero"), ErrorKind::Io, "it is not a file");
}
