//! Files that releases have written, in `tests/golden/releases`: later ones read them. With
//! `KV_WRITE_RELEASE=yes` the tests write those of this release first.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

const FOLDER: &str = "tests/golden/releases";
const THIS: &str = env!("CARGO_PKG_VERSION");

/// Contents by name.
pub type Files = BTreeMap<String, Vec<u8>>;

fn folder() -> PathBuf {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|it| it.join(FOLDER));
    folders.find(|folder| folder.is_dir()).expect(FOLDER)
}

/// The versions whose files are kept; this one is among them.
pub fn all() -> Vec<String> {
    let names = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().file_name());
    let all: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    assert!(all.iter().any(|version| version == THIS), "CONTRIBUTING.md says how to make {THIS}");
    all
}

pub fn path(version: &str, name: &str) -> PathBuf {
    folder().join(version).join(name)
}

/// The files of an archive.
pub fn read(version: &str, archive: &str) -> Files {
    let mut entries = tar::Archive::new(File::open(path(version, archive)).unwrap());
    let file = |entry: std::io::Result<tar::Entry<'_, File>>| {
        let (mut entry, mut content) = (entry.unwrap(), Vec::new());
        entry.read_to_end(&mut content).unwrap();
        (entry.path().unwrap().display().to_string(), content)
    };
    entries.entries().unwrap().map(file).collect()
}

/// Writes an archive of this release if that is asked for.
pub fn write(archive: &str, files: impl FnOnce() -> Files) {
    if std::env::var_os("KV_WRITE_RELEASE").is_none() {
        return;
    }
    let path = path(THIS, archive);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mut entries = tar::Builder::new(File::create(path).unwrap());
    for (name, content) in files() {
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        entries.append_data(&mut header, name, &content[..]).unwrap();
    }
    entries.finish().unwrap();
}
