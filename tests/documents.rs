//! The documents say what the code does, where that can be compared.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use kvstore::{Config, ErrorKind, Key};

#[path = "../benches/common/page.rs"]
#[allow(dead_code, reason = "benchmarks use more of it")]
mod page;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(ROOT).join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The rows of all tables in a text, as trimmed cells, without the lines under headings.
fn rows(text: &str) -> Vec<Vec<String>> {
    let cells = |line: &str| {
        let inner = line.trim().trim_matches('|');
        inner.split('|').map(|cell| cell.trim().to_owned()).collect::<Vec<String>>()
    };
    text.lines()
        .filter(|line| line.starts_with('|') && !line.starts_with("|-"))
        .map(cells)
        .collect()
}

/// What stands between backquotes, if that is all there is.
fn code(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`').filter(|code| !code.contains('`'))
}

#[test]
fn the_table_of_statuses_is_complete_and_has_the_right_numbers() {
    let text = read("docs/use/errors.md");
    let documented: Vec<(i32, String)> = rows(&text)
        .iter()
        .filter_map(|row| Some((row[0].parse().ok()?, code(&row[1])?.to_owned())))
        .collect();
    let kinds = ErrorKind::ALL.iter().map(|kind| (kind.code(), kind.name().to_owned()));
    let expected: Vec<(i32, String)> =
        std::iter::once((0, "KV_OK".to_owned())).chain(kinds).collect();
    assert_eq!(documented, expected);
}

#[test]
fn the_page_about_running_jobs_says_what_to_do_about_every_error() {
    let page = read("docs/operate/operations.md");
    let is_name = |c: char| c.is_ascii_uppercase() || c == '_';
    let words: BTreeSet<&str> = page.split(|c| !is_name(c)).collect();
    let missing: Vec<&str> = ErrorKind::ALL
        .iter()
        .map(|kind| kind.name())
        .filter(|name| !words.contains(name))
        .collect();
    assert!(missing.is_empty(), "docs/operate/operations.md does not mention {missing:?}");
}

/// The rows of docs/use/config.md that describe an option: name, variable, values.
fn options() -> Vec<(String, String, String)> {
    let text = read("docs/use/config.md");
    let option = |row: &Vec<String>| {
        let name = code(&row[0])?;
        Some((name.to_owned(), code(row.get(1)?)?.to_owned(), row.get(2)?.clone()))
    };
    rows(&text).iter().filter_map(option).collect()
}

fn accepts(name: &str, value: &str) -> bool {
    Config::new().set(name, value).is_ok()
}

#[test]
fn every_documented_option_is_known_with_its_values_and_no_others() {
    let options = options();
    assert!(!options.is_empty(), "docs/use/config.md has no table of options");
    for (name, variable, values) in options {
        let error = Config::new().set(&name, "\u{1}").map_err(|error| error.to_string());
        assert!(!format!("{error:?}").contains("there is no option"), "{name} is unknown");
        assert_eq!(variable, format!("KV_{}", name.to_uppercase()));
        let words: Vec<&str> = values.split('`').skip(1).step_by(2).collect();
        for word in &words {
            assert!(accepts(&name, word), "{name}={word} is documented and refused");
        }
        if !words.is_empty() {
            assert!(!accepts(&name, "neither"), "{name}: the list of values is not the whole list");
        }
        if let Some((least, most)) = range(&values) {
            for (value, good) in
                [(least - 1, false), (least, true), (most, true), (most + 1, false)]
            {
                assert_eq!(accepts(&name, &value.to_string()), good, "{name}={value}");
            }
        }
    }
}

/// The numbers of "1 to 256" or "-1 (for ever) to 1000 (a second)".
fn range(values: &str) -> Option<(i64, i64)> {
    let (least, most) = values.split_once(" to ")?;
    let number = |text: &str| text.split_whitespace().next()?.replace(',', "").parse().ok();
    Some((number(least)?, number(most)?))
}

#[test]
fn the_header_lists_the_same_options_as_the_page() {
    let header = read("include/kvstore.h");
    let chapter = header.split(" * OPTIONS").nth(1).unwrap().split("*/").next().unwrap();
    let names: BTreeSet<&str> = chapter
        .lines()
        .filter_map(|line| line.strip_prefix(" *   ")?.split("  ").next())
        .filter(|name| !name.is_empty() && !name.starts_with(' '))
        .collect();
    let options = options();
    assert_eq!(names, options.iter().map(|(name, ..)| name.as_str()).collect());
}

/// The functions that the header declares.
fn functions() -> BTreeSet<String> {
    let header = read("include/kvstore.h");
    let mut declarations = String::new();
    for (index, piece) in header.split("/*").enumerate() {
        let code = if index == 0 { piece } else { piece.split_once("*/").map_or("", |(_, it)| it) };
        declarations.push_str(code);
    }
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let before_brackets = declarations.split('(').map(|text| text.rsplit(|c| !is_name(c)).next());
    before_brackets.flatten().filter(|name| name.starts_with("kv_")).map(str::to_owned).collect()
}

#[test]
fn every_function_is_mentioned_in_the_tour() {
    let functions = functions();
    assert!(functions.contains("kv_push") && functions.contains("kv_tensor_cpu"), "{functions:?}");
    let tour = read("docs/use/c-api.md");
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: BTreeSet<&str> = tour.split(|c| !is_name(c)).collect();
    let missing: Vec<&String> =
        functions.iter().filter(|name| !words.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "docs/use/c-api.md does not mention {missing:?}");
}

#[test]
fn the_documented_keys_of_names_are_right() {
    let text = read("docs/use/semantics.md");
    let mut checked = 0;
    for row in rows(&text).iter().filter(|row| row.len() == 4) {
        let Some(key) = code(&row[3]).and_then(|key| key.strip_prefix("0x")) else { continue };
        let digits: Vec<char> = row[1].chars().filter(char::is_ascii_hexdigit).collect();
        let byte =
            |pair: &[char]| u8::from_str_radix(&pair.iter().collect::<String>(), 16).unwrap();
        let name = String::from_utf8(digits.chunks(2).map(byte).collect()).unwrap();
        assert_eq!(Key::of_name(&name).id(), u64::from_str_radix(key, 16).unwrap(), "{name:?}");
        checked += 1;
    }
    assert!(checked >= 10, "docs/use/semantics.md has only {checked} test vectors");
}

/// Words of a page beside code, rows of tables, and sections that benchmarks write.
fn words_of_prose(page: &str) -> usize {
    let (mut in_code, mut is_measured, mut words) = (false, false, 0);
    for line in page.lines() {
        let fence = line.trim_start().starts_with("```");
        in_code ^= fence;
        is_measured |= line.starts_with("<!-- table: ");
        if !(in_code || fence || is_measured || line.starts_with('|')) {
            words += line.split_whitespace().count();
        }
        is_measured &= line != "<!-- end -->";
    }
    words
}

#[test]
fn the_page_about_performance_has_few_words_around_its_tables() {
    let around =
        "one two\n| a | b |\n<!-- table: x -->\nan AMD\n<!-- end -->\n```sh\nls\n```\nthree";
    assert_eq!(words_of_prose(around), 3);
    let words = words_of_prose(&read("docs/use/performance.md"));
    assert!((500..=2_500).contains(&words), "docs/use/performance.md has {words} words of prose");
}

#[test]
fn the_benchmarks_write_every_marked_table_of_the_page_about_performance() {
    let text = read("docs/use/performance.md");
    let mut marked = BTreeSet::new();
    for section in text.split("\n<!-- table: ").skip(1) {
        let (name, rest) = section.split_once(" -->\n").unwrap();
        let (table, _) =
            rest.split_once("\n<!-- end -->").unwrap_or_else(|| panic!("{name}: no end"));
        assert!(page::TABLES.contains(&name), "no benchmark writes table {name:?}");
        assert!(marked.insert(name), "table {name} has two places");
        assert!(!table.contains("<!--"), "{name}: a marker within a table");
        assert!(table.contains("; 20") && rows(table).len() > 1, "{name}: no date, or no rows");
    }
    let printed_only = ["sweep-2-", "sweep-8-", "hand-middle", "hand-large"];
    let is_printed_only = |name: &&str| printed_only.iter().any(|it| name.starts_with(it));
    let wanted: BTreeSet<&str> =
        page::TABLES.into_iter().filter(|name| !is_printed_only(name)).collect();
    assert_eq!(marked, wanted, "tables of benchmarks without a place in docs/use/performance.md");
}

#[test]
fn a_measured_table_replaces_its_own_section_and_nothing_else() {
    let place =
        |name: &str, text: &str| format!("<!-- table: {name} -->\n{text}\n\n<!-- end -->\n");
    let page = |b: &str| format!("# A\n\n{}\nwords\n\n{}end\n", place("a", "| 1 |"), place("b", b));
    assert_eq!(page::replaced(&page("| 2 |"), "b", "| 3 |\n"), Some(page("| 3 |")));
    assert_eq!(page::replaced(&page("| 2 |"), "c", "| 3 |"), None);
    assert!(page::check("lists").is_ok() && page::check("c").is_err());
}

/// What a manifest depends on, in any of its tables.
fn dependencies(manifest: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    let mut is_table = false;
    for line in manifest.lines() {
        if let Some(title) = line.strip_prefix('[') {
            let title = title.trim_end_matches(']');
            is_table = title.ends_with("dependencies");
            // One with a table of its own.
            if let Some((table, name)) = title.rsplit_once('.')
                && table.ends_with("dependencies")
            {
                names.insert(name.to_owned());
            }
        } else if is_table && let Some((name, _)) = line.split_once(['=', '.']) {
            names.insert(name.trim().to_owned());
        }
    }
    names.retain(|name| !name.starts_with('#'));
    names
}

#[test]
fn every_dependency_has_a_sentence_in_the_page_about_the_design() {
    let page = read("docs/internals/design.md");
    let section = page.split("\n## Dependencies\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let used = section.split("\nNot used").next().unwrap();
    let listed: BTreeSet<String> = used.split('`').skip(1).step_by(2).map(str::to_owned).collect();
    let crates = fs::read_dir(Path::new(ROOT).join("crates")).unwrap();
    let crates = crates.map(|entry| entry.unwrap().path().join("Cargo.toml"));
    let others = ["Cargo.toml", "bindings/python/native/Cargo.toml"];
    let manifests: Vec<_> = crates.chain(others.map(|it| Path::new(ROOT).join(it))).collect();
    assert!(manifests.len() > 3, "{manifests:?}");
    let mut used = BTreeSet::new();
    for manifest in &manifests {
        let found = dependencies(&read(manifest));
        assert!(!found.is_empty(), "{}", manifest.display());
        used.extend(found);
    }
    let missing: Vec<&String> = used.difference(&listed).collect();
    assert!(
        missing.is_empty(),
        "docs/internals/design.md does not say what these are for: {missing:?}"
    );
    let table = section.lines().filter_map(|line| line.strip_prefix("| `")?.split(" | ").next());
    let names = table.flat_map(|cell| cell.split('(').next().unwrap().split(", "));
    let names = names.map(|name| name.trim().trim_matches('`'));
    let gone: Vec<&str> = names.filter(|name| !used.contains(*name)).collect();
    assert!(gone.is_empty(), "docs/internals/design.md lists what no manifest has: {gone:?}");
    let found =
        dependencies("[dependencies]\na = \"1\"\n# b = 2\nc.workspace = true\n[x]\nd = 1\n");
    assert_eq!(found, ["a", "c"].map(str::to_owned).into());
}

#[test]
fn every_decision_is_listed_and_says_what_was_asked_answered_and_why() {
    let folder = Path::new(ROOT).join("docs/internals/decisions");
    let index = read("docs/internals/decisions/README.md");
    let names = fs::read_dir(&folder).unwrap();
    let names = names.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let records: BTreeSet<String> = names.filter(|name| name != "README.md").collect();
    assert!(records.len() > 30, "{} records", records.len());
    for (number, name) in (1..).zip(&records) {
        let text = read(folder.join(name));
        let title = text.lines().next().unwrap().trim_start_matches("# ");
        let (digits, title) = title.split_once(' ').unwrap();
        assert_eq!(digits, format!("{number:04}"), "{name}");
        assert!(name.starts_with(digits), "{name}");
        let row = format!("| {digits} | [{title}]({name}) |");
        assert!(index.contains(&row), "docs/internals/decisions/README.md lacks {row}");
        for part in ["**Question.**", "**Answer.**", "**Why.**"] {
            assert!(text.contains(part), "{name} lacks {part}");
        }
        let words = text.split_whitespace().count();
        assert!((80..=250).contains(&words), "{name} has {words} words");
    }
    assert_eq!(index.matches(".md) |").count(), records.len());
}
