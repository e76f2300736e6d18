//! The words of the field in names, names of several types, and loose words.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::imports::{Tree, is_in, list};

/// Words that readers look for; of two with `or` between them, one.
const WORDS: &str = "transport, connection, handshake, retransmission, backpressure, flow control, \
    membership, rendezvous, heartbeat, quorum, straggler, snapshot, slice, shard, round, epoch, \
    lease or liveness, admission, telemetry";
/// Maximum number of type names that product code defines in more than one file.
const MAX_REPEATED_TYPES: usize = 40;
/// Names that say little: at most one type each.
const LOOSE_TYPES: [&str; 11] =
    ["Place", "Step", "State", "Part", "Desk", "Call", "Crew", "Line", "Way", "Job", "Role"];
/// Words in place of the subject of a sentence, and how often all comments and strings may have them.
const LOOSE_WORDS: [&str; 3] = ["nobody", "whoever", "somebody"];
const MAX_LOOSE_WORDS: usize = 20;
/// Each instruction set has types of the same names here.
const KERNELS: &str = "src/kernel";

/// The cells of the rows of the table below a heading of CONTRIBUTING.md.
pub fn table(root: &Path, heading: &str) -> Vec<Vec<String>> {
    let page = fs::read_to_string(root.join("CONTRIBUTING.md")).unwrap();
    let section = page.split_once(&format!("\n## {heading}\n")).unwrap().1;
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix('|'));
    rows.skip(2).map(|row| row.split('|').map(|cell| cell.trim().to_owned()).collect()).collect()
}

/// The rooms that a cell names.
fn spans(cell: &str) -> impl Iterator<Item = String> + '_ {
    cell.split('`').skip(1).step_by(2).map(str::to_owned)
}

/// The rooms of the table, lowest first; a row may have several.
pub fn rooms(root: &Path) -> Vec<String> {
    table(root, "Rooms").iter().flat_map(|row| spans(&row[0]).collect::<Vec<_>>()).collect()
}

/// Whether a name, in Camel or snake case, has a word or its plural.
pub fn has_word(name: &str, word: &str) -> bool {
    let snake =
        |c: char| [if c.is_uppercase() { "_" } else { "" }, &c.to_lowercase().to_string()].concat();
    let (name, word) = (name.chars().map(snake).collect::<String>(), word.replace(' ', "_"));
    let name = format!("_{name}_");
    name.contains(&format!("_{word}_")) || name.contains(&format!("_{word}s_"))
}

/// A sentence for each word of the field that no name in its room has.
pub fn missing_words(tree: &Tree, rows: &[Vec<String>]) -> Vec<String> {
    let mut wrong = Vec::new();
    for word in WORDS.split(", ") {
        let row = rows.iter().find(|row| row[0] == word);
        let Some(room) = row.and_then(|row| spans(&row[1]).next()) else {
            wrong.push(format!("the table gives no room for {word}"));
            continue;
        };
        let files = tree.files.iter().filter(|it| is_in(&it.path, &room));
        let named = files.clone().flat_map(|it| &it.definitions);
        let named = named.filter(|it| !["const", "static", "macro_rules"].contains(&&*it.keyword));
        let mut names = named.map(|it| &it.name).chain(files.filter_map(|it| it.module.last()));
        if !names.any(|name| word.split(" or ").any(|word| has_word(name, word))) {
            wrong.push(format!("no module, type or function in {room} has {word} in its name"));
        }
    }
    wrong
}

/// Sentences about types of the same name.
pub fn repeated_types(tree: &Tree) -> Vec<String> {
    let mut types: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for file in tree.files.iter().filter(|it| !is_in(&it.path, KERNELS)) {
        let is_type = |keyword: &str| ["struct", "enum", "trait", "union"].contains(&keyword);
        for it in &file.definitions {
            if is_type(&it.keyword) || (it.keyword == "type" && !it.is_associated) {
                types.entry(&it.name).or_default().insert(file.path.clone());
            }
        }
    }
    types.retain(|_, files| files.len() > 1);
    let repeated = types.len();
    types.retain(|name, _| repeated > MAX_REPEATED_TYPES || LOOSE_TYPES.contains(name));
    let mut wrong: Vec<String> = types
        .iter()
        .map(|(name, files)| format!("{} files have a type {name}: {}", files.len(), list(files)))
        .collect();
    if repeated > MAX_REPEATED_TYPES {
        let limit = format!("at most {MAX_REPEATED_TYPES} may be");
        wrong.insert(0, format!("{repeated} type names are in more than one file, {limit}"));
    }
    wrong
}

/// Sentences about comments and strings with loose words.
pub fn loose_words(tree: &Tree) -> Vec<String> {
    let mut found = Vec::new();
    for file in &tree.files {
        for token in &file.prose {
            for (at, line) in token.text.to_lowercase().lines().enumerate() {
                let words = line.split(|c: char| !c.is_alphabetic());
                for word in words.filter(|it| LOOSE_WORDS.contains(it)) {
                    found.push(format!("{}:{} has {word}", file.path, token.line + at));
                }
            }
        }
    }
    if found.len() <= MAX_LOOSE_WORDS {
        return Vec::new();
    }
    found.insert(0, format!("{} loose words, at most {MAX_LOOSE_WORDS} may be", found.len()));
    found
}
