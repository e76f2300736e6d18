//! The rooms of the sources, that is the modules on top of each crate, stand in one order: no import
//! runs back up, no files import one another in a circle, no folder is crowded. Their names have the
//! words of the field. CONTRIBUTING.md has the order and the words.
#![allow(clippy::unwrap_used, reason = "a failed test")]

#[path = "../common/folder.rs"]
#[allow(dead_code, reason = "these tests use a part of it")]
mod folder;
mod imports;
mod names;
mod planted;
mod pure;
mod source;

use std::path::Path;
use std::sync::LazyLock;

use imports::Tree;

/// Maximum number of source files side by side in a folder.
const MAX_FILES: usize = 14;
/// The optimizers: each rule has a file of its own, with its options, states and formula.
const CROWDED: [&str; 1] = ["src/optim"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

static TREE: LazyLock<Tree> = LazyLock::new(|| Tree::read(root()));

fn assert_none(wrong: &[String], what: &str) {
    assert!(wrong.is_empty(), "{what}\n{}", wrong.join("\n"));
}

#[test]
fn the_sources_are_read() {
    let arrows = TREE.arrows(true).len();
    assert!(
        TREE.files.len() > 300 && arrows > 1_000,
        "{} files, {arrows} arrows",
        TREE.files.len()
    );
    assert!(names::rooms(root()).len() > 40);
}

#[test]
fn no_files_import_one_another_in_a_circle() {
    assert_none(&TREE.circles(), "move what both need to a file below them:");
}

#[test]
fn every_import_leads_to_a_room_below() {
    let rooms = names::rooms(root());
    assert_none(&TREE.upward(&rooms), "CONTRIBUTING.md, Rooms, has them lowest first:");
}

#[test]
fn no_folder_is_crowded() {
    assert_none(&TREE.crowded(MAX_FILES, &CROWDED), "group the files in folders:");
}

#[test]
fn the_words_of_the_field_are_in_the_names_of_their_rooms() {
    let words = names::table(root(), "Words");
    assert_none(&names::missing_words(&TREE, &words), "CONTRIBUTING.md, Words, has the rooms:");
}

#[test]
fn few_types_have_the_same_name() {
    assert_none(&names::repeated_types(&TREE), "a name says which of them it is:");
}

#[test]
fn comments_and_strings_name_their_subjects() {
    assert_none(&names::loose_words(&TREE), "write worker, server, caller, thread, peer:");
}

#[test]
fn the_protocol_has_no_clock_thread_lock_or_socket() {
    assert_none(&pure::impurities(root(), &TREE), "the crate above it has the system:");
}
