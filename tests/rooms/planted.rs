//! The checks find planted faults, and the reader of sources sees every form of import.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::folder::Folder;
use crate::imports::Tree;
use crate::{names, pure};

/// Makes files: each line of `plan` is one of a file, behind its path.
fn plant(test: &str, plan: &str) -> (Folder, Tree) {
    let folder = Folder::new(&format!("rooms-{test}"));
    for line in plan.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (path, text) = line.split_once(':').unwrap();
        let path = folder.file(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let before = fs::read_to_string(&path).unwrap_or_default();
        fs::write(path, format!("{before}{}\n", text.trim())).unwrap();
    }
    let tree = Tree::read(folder.path());
    (folder, tree)
}

/// Checks the arrows: "from to name", with commas between them.
fn assert_arrows(tree: &Tree, all: bool, expected: &str) {
    let stem =
        |file: usize| Path::new(&tree.files[file].path).file_stem().unwrap().to_str().unwrap();
    let mut found = BTreeSet::new();
    for ((from, to), names) in tree.arrows(all) {
        found.extend(names.iter().map(|name| format!("{} {} {name}", stem(from), stem(to))));
    }
    let found: Vec<&str> = found.iter().map(String::as_str).collect();
    assert_eq!(found.join(", "), expected.split_whitespace().collect::<Vec<_>>().join(" "));
}

#[test]
fn every_form_of_import_is_seen() {
    let plan = r##"
        src/lib.rs: mod low; mod user; mod key; mod log; mod error; mod panics;
        src/low/mod.rs: mod inner; mod deep; mod shapes; pub(crate) use inner::Inner;
        src/low/inner.rs: pub(crate) struct Inner;
        src/low/deep.rs: pub struct Deep; pub fn call() {} mod m { use super::super::inner::Inner; }
        src/low/shapes.rs: pub enum Shape {}
        src/user.rs: use crate::low::{Inner, deep::{self, Deep as Other}, shapes::*,};
        src/user.rs: use crate::{low, log as logs};
        src/user.rs: pub(crate) use super::key::Key;
        src/user.rs: fn f<'a>(text: &'a str) -> Vec<kvstore_protocol::Time> { // crate::comment::A
        src/user.rs: let _ = ('\'', b'{', "\"crate::text::A", r#"}}" crate::raw::A"#);
        src/user.rs: low::deep::call::<crate::error::Kind>(0..logs::Level::A.b);
        src/user.rs: fail!($crate::panics::caught) }
        src/key.rs: pub(crate) struct Key;
        src/log.rs: pub enum Level { A }
        src/error.rs: pub enum Kind {}
        src/panics.rs: pub fn caught() {}
        crates/protocol/src/lib.rs: mod job; pub use job::Time;
        crates/protocol/src/job.rs: pub type Time = u64;"##;
    let (_folder, tree) = plant("forms", plan);
    let defining = "deep inner Inner, user deep Deep, user deep call, user deep deep, \
        user error Kind, user inner Inner, user job Time, user key Key, user log Level, \
        user log log, user mod low, user panics caught, user shapes *";
    assert_arrows(&tree, false, defining);
    let all = defining.replace("key Key,", "key Key, user lib Time,");
    assert_arrows(&tree, true, &all.replace("mod low", "mod Inner, user mod low"));
}

#[test]
fn re_exports_and_globs_are_followed() {
    let plan = "
        src/lib.rs: mod a; mod b; mod user; pub use a::*;
        src/a/mod.rs: mod one; pub use one::Thing as Renamed; macro_rules! stop { () => {} }
        src/a/mod.rs: pub(crate) use stop;
        src/a/one.rs: pub struct Thing;
        src/b.rs: use crate::Renamed; use crate::a::stop;
        src/user.rs: use ::std::sync as s; fn f() { s::Mutex::new(crate::b::Renamed) }";
    let (_folder, tree) = plant("exports", plan);
    assert_arrows(&tree, false, "b mod stop, b one Thing, user one Thing");
    let user = tree.files.last().unwrap();
    let foreign = user.imports.iter().filter_map(|it| tree.resolve(&it.module, &it.path).err());
    let foreign: Vec<String> = foreign.map(|path| path.join("::")).collect();
    assert_eq!(foreign, ["std::sync", "std::sync::Mutex::new"]);
}

#[test]
fn tests_are_left_out() {
    let plan = r#"
        src/also.rs: fn f() {} struct D;
        src/kept.rs: mod tests;
        src/kept/tests.rs: use crate::user::A;
        src/lib.rs: #[cfg(test)] mod checks; #[cfg(all(test, not(loom)))] pub(crate) mod long;
        src/lib.rs: #[cfg(any(fuzzing, test, feature = "testing"))] pub mod shared;
        src/lib.rs: #[cfg(not(test))] mod kept; #[cfg(any(test, feature = "dist"))] mod also;
        src/checks.rs: use crate::user::A;
        src/long.rs: use crate::user::A;
        src/shared/mod.rs: mod deeper;
        src/shared/deeper.rs: use crate::user::A;
        src/models.rs: #![cfg(loom)] use crate::user::A;
        src/user.rs: struct Real { #[cfg(test)] count: crate::kept::Counter<u8>, kept: u8 }
        src/user.rs: #[cfg(test)] use crate::kept::{A, B};
        src/user.rs: #[cfg(test)] static S: crate::kept::S = crate::kept::S { a: 1 };
        src/user.rs: #[cfg(test)] #[allow(dead_code)] fn g<A, B>(a: A, b: B) { crate::kept::g() }
        src/user.rs: fn f() { #[cfg(test)] crate::kept::f(); crate::also::f() }
        src/user.rs: #[cfg(test)] mod tests { use crate::kept::C; mod inner {} }
        src/user.rs: use crate::also::D;"#;
    let (_folder, tree) = plant("tests", plan);
    let files: Vec<&str> = tree.files.iter().map(|it| &*it.path).collect();
    assert_eq!(files, ["src/also.rs", "src/kept.rs", "src/lib.rs", "src/user.rs"]);
    assert_arrows(&tree, true, "user also D, user also f");
}

#[test]
fn a_planted_circle_is_found_and_containment_is_none() {
    let plan = "
        src/lib.rs: mod a; mod b;
        src/a/mod.rs: mod part; struct A; use part::Part;
        src/a/part.rs: use super::A; struct Part; use crate::b::{self, B};
        src/b.rs: struct B; use crate::c::C;
        src/c.rs: pub struct C(crate::a::Part);";
    let expected = "a circle of files: src/a/part.rs takes B, b from src/b.rs; src/b.rs takes C \
        from src/c.rs; src/c.rs takes Part from src/a/part.rs";
    assert_eq!(plant("circle", plan).1.circles(), [expected]);
}

#[test]
fn a_planted_import_that_runs_up_is_found() {
    let plan = "
        CONTRIBUTING.md: .
        CONTRIBUTING.md: ## Rooms
        CONTRIBUTING.md: | room | what it is | also called |
        CONTRIBUTING.md: |---|---|---|
        CONTRIBUTING.md: | `src/low`, `src/mid.rs` | | |
        CONTRIBUTING.md: | `src/top` | | |
        CONTRIBUTING.md: | `src/gone` | | |
        src/low/inner.rs: use crate::top::Low;
        src/low/mod.rs: mod inner;
        src/mid.rs: pub struct Low; use crate::low::inner;
        src/stray.rs: struct A;
        src/top/mod.rs: pub use crate::mid::Low;";
    let (folder, tree) = plant("up", plan);
    let expected = [
        "the room src/gone has no files",
        "src/stray.rs has no row in the table",
        "src/low/inner.rs takes Low from src/mid.rs: src/mid.rs is above src/low",
        "src/low/inner.rs takes Low from src/top/mod.rs: src/top is above src/low",
    ];
    assert_eq!(tree.upward(&names::rooms(folder.path())), expected);
}

#[test]
fn a_fifteenth_file_is_found() {
    let mut plan = "src/many/tests.rs: fn f() {}\n".to_owned();
    for at in 1..=15 {
        writeln!(plan, "src/many/f{at}.rs: fn f() {{}}").unwrap();
    }
    let (_folder, tree) = plant("fifteen", &plan);
    let wrong = tree.crowded(14, &[]);
    assert!(wrong[0].starts_with("src/many has 15 files, at most 14 may be: f1.rs, "), "{wrong:?}");
    assert!(tree.crowded(15, &[]).is_empty() && tree.crowded(14, &["src/many"]).is_empty());
}

#[test]
fn words_are_parts_of_names_and_repeated_names_are_found() {
    assert!(
        names::has_word("MyFlowControl", "flow control") && names::has_word("in_slices", "slice")
    );
    assert!(
        !names::has_word("background", "round") && !names::has_word("control_flow", "flow control")
    );
    let plan = "
        src/one.rs: struct Job; trait T { type Out; } impl T for Job { type Out = u8; }
        src/one.rs: const QUORUM: u8 = 1; fn retransmission() {}
        src/two.rs: enum Job {} impl<X> T for Job { type Out = u8; } // Nobody";
    let (_folder, tree) = plant("names", plan);
    assert_eq!(names::repeated_types(&tree), ["2 files have a type Job: src/one.rs, src/two.rs"]);
    assert!(names::loose_words(&tree).is_empty());
    let row = |word: &str| vec![word.to_owned(), "`src/one.rs`".to_owned()];
    let wrong = names::missing_words(&tree, &[row("retransmission"), row("quorum")]).join("\n");
    assert!(wrong.contains("no module, type or function in src/one.rs has quorum in its name"));
    assert!(!wrong.contains("retransmission") && wrong.contains("gives no room for epoch"));
}

#[test]
fn a_clock_a_lock_and_a_stray_crate_in_the_protocol_are_found() {
    let plan = "
        crates/protocol/Cargo.toml: [package]
        crates/protocol/Cargo.toml: [dependencies]
        crates/protocol/Cargo.toml: foldhash = { workspace = true }
        crates/protocol/Cargo.toml: mio.workspace = true
        crates/protocol/src/a.rs: use std::{collections::BTreeMap, time::{self, Instant}};
        crates/protocol/src/a.rs: use std::sync; fn f() { u32::from(sync::Mutex::new(0)); foldhash::new(); }
        crates/protocol/src/a.rs: use std::sync::*; use kvstore::Store; fn g() { tokio::spawn() }
        src/lib.rs: use std::fs; pub struct Store;";
    let (folder, tree) = plant("pure", plan);
    let mut expected = vec!["the protocol depends on mio".to_owned()];
    let paths = "1 std::time, 1 std::time::Instant, 2 std::sync::Mutex::new, 3 std::sync, \
        3 kvstore::Store, 3 tokio::spawn";
    let paths = paths.split(", ").map(|it| it.split_once(' ').unwrap());
    let sentence = |(line, path)| format!("crates/protocol/src/a.rs:{line} uses {path}");
    expected.extend(paths.map(sentence));
    assert_eq!(pure::impurities(folder.path(), &tree), expected);
}
