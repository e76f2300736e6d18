//! The protocol has no clock, thread, lock, input or output, and few dependencies.

use std::fs;
use std::path::Path;

use crate::imports::{Tree, is_in};

const FORBIDDEN: [&str; 10] = [
    "std::env",
    "std::fs",
    "std::net",
    "std::process",
    "std::sync::Condvar",
    "std::sync::Mutex",
    "std::sync::RwLock",
    "std::sync::atomic",
    "std::thread",
    "std::time",
];
/// Packages that the protocol may depend on.
const ALLOWED: [&str; 4] = ["foldhash", "indexmap", "libkvstore-checksum", "smallvec"];
/// What else may be in front of `::` in small letters: primitive types, and tools in attributes.
const NO_CRATES: &str =
    "bool char f32 f64 i8 i16 i32 i64 i128 isize str u8 u16 u32 u64 u128 usize clippy";

/// Sentences about dependencies and paths that the protocol may not have.
pub fn impurities(root: &Path, tree: &Tree) -> Vec<String> {
    let manifest = fs::read_to_string(root.join("crates/protocol/Cargo.toml")).unwrap();
    let section = manifest.split_once("\n[dependencies]\n").unwrap().1.split("\n[").next().unwrap();
    let packages = section.lines().filter_map(|line| line.split([' ', '.', '=']).next());
    let mut wrong: Vec<String> = packages
        .filter(|it| !it.is_empty() && !ALLOWED.contains(it))
        .map(|it| format!("the protocol depends on {it}"))
        .collect();
    let crates = ALLOWED.map(|it| it.trim_start_matches("lib").replace('-', "_"));
    let is_below =
        |inner: &str, outer: &str| format!("{inner}::").starts_with(&format!("{outer}::"));
    for file in tree.files.iter().filter(|it| is_in(&it.path, "crates/protocol")) {
        for import in &file.imports {
            let path = match tree.resolve(&import.module, &import.path) {
                Err(path) => path,
                Ok(_) if import.path[0] == "kvstore" => import.path.clone(),
                Ok(_) => continue,
            };
            let is_std = ["std", "core", "alloc"].contains(&&*path[0]);
            let text =
                if is_std { format!("std::{}", path[1..].join("::")) } else { path.join("::") };
            let is_glob = import.name.as_deref() == Some("*");
            let is_forbidden = |it: &&str| is_below(&text, it) || (is_glob && is_below(it, &text));
            let is_stray = path[0].starts_with(|c: char| c.is_lowercase())
                && !is_std
                && !crates.contains(&path[0])
                && !NO_CRATES.split(' ').any(|it| it == path[0]);
            if is_stray || FORBIDDEN.iter().any(is_forbidden) {
                wrong.push(format!("{}:{} uses {text}", file.path, import.line));
            }
        }
    }
    wrong
}
