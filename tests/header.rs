//! The committed C header is what cbindgen makes of the sources, and its numbers are the package's.
//!
//! With `KV_UPDATE_HEADER=1` the header is written instead of compared.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::env;
use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: &str) -> String {
    fs::read_to_string(Path::new(ROOT).join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The number that the header defines a macro as.
fn defined(name: &str) -> u32 {
    let header = read("include/kvstore.h");
    let start = format!("#define {name} ");
    let line = header.lines().find_map(|line| line.strip_prefix(&start));
    line.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no number for {name}"))
}

#[test]
fn the_header_is_what_cbindgen_makes_of_the_sources() {
    let config = cbindgen::Config::from_file(Path::new(ROOT).join("cbindgen.toml")).unwrap();
    let mut fresh = Vec::new();
    cbindgen::generate_with_config(ROOT, config).unwrap().write(&mut fresh);
    let fresh = String::from_utf8(fresh).unwrap();
    if env::var("KV_UPDATE_HEADER").is_ok_and(|update| update == "1") {
        fs::write(Path::new(ROOT).join("include/kvstore.h"), fresh).unwrap();
        return;
    }
    let committed = read("include/kvstore.h");
    let (mut old, mut new) = (committed.lines(), fresh.lines());
    for number in 1.. {
        match (old.next(), new.next()) {
            (None, None) => break,
            (old, new) => assert!(
                old == new,
                "include/kvstore.h:{number} is {old:?}, the sources give {new:?}; run `make header`"
            ),
        }
    }
    assert_eq!(committed, fresh, "line ends differ; run `make header`");
}

#[test]
fn the_version_in_the_header_is_the_version_of_the_package() {
    let parts = ["KV_VERSION_MAJOR", "KV_VERSION_MINOR", "KV_VERSION_PATCH"];
    let version = parts.map(|name| defined(name).to_string()).join(".");
    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    assert_eq!(kvstore::VERSION, env!("CARGO_PKG_VERSION"));
}

#[test]
fn the_soname_has_the_number_of_the_binary_interface() {
    let script = read("build.rs");
    let number = script
        .lines()
        .find_map(|line| line.strip_prefix("const ABI: u32 = ")?.strip_suffix(';'))
        .and_then(|number| number.parse().ok());
    assert_eq!(number, Some(defined("KV_ABI_VERSION")));
}
