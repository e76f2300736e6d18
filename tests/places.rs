//! The places in the code that pages name are there, as `folder/file.rs: item, item`: in the drawing of
//! docs/internals/design.md, and in the recipes of CONTRIBUTING.md.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::fs;
use std::path::Path;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Ends of the names of files that the recipes name.
const ENDINGS: [&str; 12] =
    ["c", "go", "h", "hpp", "json", "md", "py", "rs", "sh", "toml", "txt", "yaml"];
/// What an item of Rust is declared with.
const DECLARATIONS: [&str; 9] =
    ["const", "enum", "fn", "macro_rules!", "mod", "static", "struct", "trait", "type"];

#[derive(Debug, PartialEq)]
struct Place {
    file: String,
    items: Vec<String>,
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(Path::new(ROOT).join(path)).ok()
}

/// The text below a heading, up to the next heading that is not below it.
fn section(page: &str, heading: &str) -> String {
    let level = heading.split(' ').next().unwrap().len();
    let is_end = |line: &&str| {
        let marks = line.len() - line.trim_start_matches('#').len();
        (1..=level).contains(&marks) && line[marks..].starts_with(' ')
    };
    let lines = page.lines().skip_while(|line| *line != heading);
    let section: Vec<&str> = lines.skip(1).take_while(|line| !is_end(line)).collect();
    assert!(!section.is_empty(), "there is no section {heading:?}");
    section.join("\n")
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_file(word: &str) -> bool {
    let is_of_path = |c: char| is_of_name(c) || "./-".contains(c);
    let ending = word.rsplit_once('.').map(|(_, ending)| ending);
    ending.is_some_and(|it| ENDINGS.contains(&it)) && word.chars().all(is_of_path)
}

/// The places in a line of a drawing: a file and a colon, then names with commas between them.
fn places_drawn(line: &str) -> Vec<Place> {
    let mut places = Vec::<Place>::new();
    let mut goes_on = false;
    for word in line.split_whitespace() {
        if let Some(file) = word.strip_suffix(':').filter(|word| is_file(word)) {
            places.push(Place { file: file.to_owned(), items: Vec::new() });
            goes_on = true;
        } else if let Some(place) = places.last_mut().filter(|_| goes_on) {
            place.items.push(word.trim_end_matches(',').to_owned());
            goes_on = word.ends_with(',');
        }
    }
    places
}

/// The files between backquotes, with the items that follow a colon.
fn places_quoted(text: &str) -> Vec<Place> {
    let spans = text.split('`').skip(1).step_by(2);
    let place = |span: &str| {
        let span = span.split_whitespace().collect::<Vec<&str>>().join(" ");
        let (file, items) = span.split_once(": ").unwrap_or((&span, ""));
        let is_misspelt = span.split(':').next().is_some_and(is_file) && !is_file(file);
        assert!(!is_misspelt, "{span:?} is not written as `folder/file.rs: item, item`");
        let items = items.split(", ").filter(|item| !item.is_empty()).map(str::to_owned).collect();
        is_file(file).then(|| Place { file: file.to_owned(), items })
    };
    spans.filter_map(place).collect()
}

/// Whether a word stands in a text, and not only as a part of another one.
fn has_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let (before, after) = (&text[..at], &text[at + word.len()..]);
        !before.ends_with(is_of_name) && !after.starts_with(is_of_name)
    })
}

/// Whether a source of Rust declares a name.
fn declares(text: &str, name: &str) -> bool {
    let is_declaration = |line: &str| {
        let mut words = line.split_whitespace();
        let keyword = words.find(|word| DECLARATIONS.contains(word) && *word != "const");
        let keyword = keyword.or_else(|| {
            words = line.split_whitespace();
            words.find(|word| *word == "const")
        });
        keyword.is_some()
            && words.next().is_some_and(|word| word.split(|c| !is_of_name(c)).next() == Some(name))
    };
    text.lines().map(|line| line.split("//").next().unwrap()).any(is_declaration)
}

/// The bodies of what is declared or implemented under a name, as far as the indentation goes.
fn bodies(text: &str, name: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let indentation = |line: &str| line.len() - line.trim_start().len();
    let opens = |line: &str| {
        let line = line.trim_end();
        let is_head =
            ["enum ", "struct ", "trait ", "impl"].iter().any(|word| has_word(line, word.trim()));
        is_head && has_word(line, name) && line.ends_with('{')
    };
    let body = |start: usize| {
        let end = |line: &&&str| indentation(line) > indentation(lines[start]) || line.is_empty();
        lines[start + 1..].iter().take_while(end).copied().collect::<Vec<&str>>().join("\n")
    };
    (0..lines.len()).filter(|at| opens(lines[*at])).map(body).collect()
}

/// Whether a body has a variant, a field or a function of this name.
fn has_member(body: &str, name: &str) -> bool {
    let is_member = |line: &str| {
        let line = line.trim_start();
        let line = line.strip_prefix("pub").map_or(line, |rest| {
            rest.strip_prefix("(crate)").or(rest.strip_prefix("(super)")).unwrap_or(rest).trim()
        });
        let rest = line.strip_prefix(name);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with([',', ':', '(', '{']))
            || rest.is_some_and(|rest| rest.starts_with(" {") || rest.starts_with(" = "))
    };
    declares(body, name) || body.lines().any(is_member)
}

/// Whether a file has an item: in Rust a declaration, or `Type::member`; elsewhere a word.
fn has_item(file: &str, text: &str, item: &str) -> bool {
    if file.rsplit_once('.').is_none_or(|(_, ending)| ending != "rs") {
        return has_word(text, item);
    }
    match item.split_once("::") {
        None => declares(text, item),
        Some((name, member)) => bodies(text, name).iter().any(|body| has_member(body, member)),
    }
}

/// The places that are not there.
fn missing(places: &[Place]) -> Vec<String> {
    let mut missing = Vec::new();
    for Place { file, items } in places {
        let Some(text) = read(file) else {
            missing.push(file.clone());
            continue;
        };
        let gone = items.iter().filter(|item| !has_item(file, &text, item));
        missing.extend(gone.map(|item| format!("{file}: {item}")));
    }
    missing
}

#[test]
fn every_file_and_function_that_the_drawing_names_is_there() {
    let page = read("docs/internals/design.md").unwrap();
    let section = section(&page, "## The way of one kv_pushpull");
    let drawing: Vec<&str> = section.split("```").nth(1).unwrap().trim().lines().collect();
    assert!(drawing.len() <= 50, "{} lines do not fit a screen", drawing.len());
    assert!(drawing.iter().all(|line| line.len() <= 100 && line.is_ascii()));
    let places: Vec<Place> = drawing.iter().flat_map(|line| places_drawn(line)).collect();
    assert!(places.len() > 40, "{} places", places.len());
    assert!(places.iter().all(|place| !place.items.is_empty()), "{places:#?}");
    let is_function = |place: &&Place| {
        let text = read(&place.file).unwrap_or_default();
        place.items.iter().all(|item| has_word(&text, &format!("fn {item}")))
    };
    let wrong: Vec<&Place> = places.iter().filter(|place| !is_function(place)).collect();
    assert!(wrong.is_empty(), "docs/internals/design.md names what is not there: {wrong:#?}");
}

#[test]
fn every_file_and_item_that_a_recipe_names_is_there() {
    let page = read("CONTRIBUTING.md").unwrap();
    let places = places_quoted(&section(&page, "## Recipes"));
    let items: usize = places.iter().map(|place| place.items.len()).sum();
    assert!(places.len() > 100 && items > 100, "{} files, {items} items", places.len());
    let are_names = |item: &String| item.split("::").all(|name| name.chars().all(is_of_name));
    let wrong = places.iter().find(|place| !place.items.iter().all(are_names));
    assert!(wrong.is_none(), "{wrong:?} has what is no item");
    let missing = missing(&places);
    assert!(missing.is_empty(), "CONTRIBUTING.md names what is not there: {missing:#?}");
}

#[test]
fn what_is_not_there_is_found_missing() {
    let place = |file: &str, items: &[&str]| Place {
        file: file.into(),
        items: items.iter().map(|&item| item.into()).collect(),
    };
    let drawn = places_drawn(" |  src/role.rs: one, two    src/key.rs: of_name   lock");
    assert_eq!(drawn, [place("src/role.rs", &["one", "two"]), place("src/key.rs", &["of_name"])]);
    let quoted = places_quoted(
        "See `src/role.rs: LocalRole, LocalRole::Worker`, `make`,\nand `src/none.rs`.",
    );
    assert_eq!(
        quoted,
        [place("src/role.rs", &["LocalRole", "LocalRole::Worker"]), place("src/none.rs", &[])]
    );
    assert_eq!(missing(&quoted), ["src/none.rs"]);
    let text = "/// fn old() {}\npub(crate) enum Way {\n    To { one: u8 },\n    From,\n}\n\n\
                impl Way {\n    const fn go(self) {}\n}\n\nconst MOST: usize = 4;\nmacro_rules! all {}\n";
    let has = |item: &str| has_item("a.rs", text, item);
    let there = ["Way", "Way::To", "Way::From", "Way::go", "go", "MOST", "all"];
    assert_eq!(there.map(has), [true; 7]);
    let gone = ["old", "Wa", "To", "one", "Way::At", "Way::Fro", "Other::To", "usize"];
    assert_eq!(gone.map(has), [false; 8]);
    assert!(has_item("a.md", "a `word` here", "word") && !has_item("a.md", "words", "word"));
}
