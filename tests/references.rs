//! What the pages refer to is there: files, headings, commands of make, and the list of files with
//! unsafe code; and the modules that the targets for fuzzing take from the program.
#![allow(clippy::unwrap_used, reason = "a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");
/// Folders with pages for readers.
const FOLDERS: [&str; 15] = [
    "",
    "docs",
    "docs/api",
    "docs/internals",
    "docs/internals/decisions",
    "docs/operate",
    "docs/use",
    "docs/use/frameworks",
    "docs/use/languages",
    "examples/data",
    "bindings/cpp",
    "bindings/go",
    "bindings/python",
    "fuzz",
    "examples/k8s",
];
/// Paths below an installation's prefix, and in the sources of the Go project.
const ELSEWHERE: [&str; 2] =
    ["include/kvstore.hpp", "src/compress/bzip2/testdata/Isaac.Newton-Opticks.txt.bz2"];

struct Page {
    path: PathBuf,
    text: String,
}

impl Page {
    fn read(path: PathBuf) -> Self {
        let text =
            fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Self { path, text }
    }

    fn name(&self) -> String {
        self.path.strip_prefix(ROOT).unwrap().display().to_string()
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap()
    }

    /// The lines, each with whether it stands in a block of code.
    fn lines(&self) -> impl Iterator<Item = (bool, &str)> {
        let mut in_code = false;
        self.text.lines().filter_map(move |line| {
            let fence = line.trim_start().starts_with("```");
            in_code ^= fence;
            (!fence).then_some((in_code, line))
        })
    }

    fn prose(&self) -> String {
        let lines = self.lines().filter(|(in_code, _)| !in_code);
        lines.map(|(_, line)| line).collect::<Vec<&str>>().join("\n")
    }

    /// What stands between backquotes in the prose.
    fn spans(&self) -> Vec<String> {
        let prose = self.prose();
        let spans = prose.split('`').skip(1).step_by(2);
        spans.map(|span| span.split_whitespace().collect::<Vec<&str>>().join(" ")).collect()
    }

    /// The words of all code: in blocks, and between backquotes.
    fn words(&self) -> Vec<String> {
        let blocks = self.lines().filter(|(in_code, _)| *in_code).map(|(_, line)| line.to_owned());
        let code: Vec<String> = blocks.chain(self.spans()).collect();
        code.iter().flat_map(|it| it.split_whitespace()).map(str::to_owned).collect()
    }

    fn links(&self) -> Vec<String> {
        let prose: String = self.prose().split('`').step_by(2).collect::<Vec<&str>>().join("code");
        let ends = prose.split("](").skip(1);
        ends.filter_map(|rest| Some(rest.split_once(')')?.0.to_owned())).collect()
    }

    /// The anchors of the headings, as forges make them.
    fn anchors(&self) -> BTreeSet<String> {
        let mut counts = BTreeMap::<String, usize>::new();
        let headings = self.lines().filter(|(in_code, line)| !in_code && line.starts_with('#'));
        let anchor = |(_, line): (bool, &str)| {
            let anchor = anchor(line.trim_start_matches('#').trim());
            let count = counts.entry(anchor.clone()).or_default();
            *count += 1;
            if *count == 1 { anchor } else { format!("{anchor}-{}", *count - 1) }
        };
        headings.map(anchor).collect()
    }
}

/// Letters in lower case, digits, hyphens and underscores stay, spaces become hyphens.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter_map(|it| match it {
        ' ' => Some('-'),
        '-' | '_' => Some(it),
        _ if it.is_alphanumeric() => Some(it.to_ascii_lowercase()),
        _ => None,
    });
    kept.collect()
}

fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    for folder in FOLDERS {
        for entry in fs::read_dir(Path::new(ROOT).join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(Page::read(path));
            }
        }
    }
    assert!(pages.len() > 20, "{} pages", pages.len());
    pages
}

#[test]
fn every_relative_link_leads_to_a_file_and_every_anchor_to_a_heading() {
    let (mut followed, mut wrong) = (0, Vec::new());
    for page in pages() {
        for link in page.links().iter().filter(|link| !link.contains("://")) {
            let (target, heading) = link.split_once('#').unwrap_or((link, ""));
            let path =
                if target.is_empty() { page.path.clone() } else { page.folder().join(target) };
            let is_there = path.exists()
                && (heading.is_empty() || Page::read(path).anchors().contains(heading));
            if !is_there {
                wrong.push(format!("{}: {link}", page.name()));
            }
            followed += 1;
        }
    }
    assert!(followed > 100, "{followed} links");
    assert!(wrong.is_empty(), "links that lead nowhere: {wrong:#?}");
}

/// The pages of a folder and below it, but for those that a page of a folder below it lists.
fn listed_by(folder: &Path, pages: &mut Vec<PathBuf>) {
    for name in children(folder) {
        let path = folder.join(&name);
        if path.join("README.md").exists() {
            pages.push(path.join("README.md"));
        } else if path.is_dir() {
            listed_by(&path, pages);
        } else if path.extension().is_some_and(|it| it == "md") && name != "README.md" {
            pages.push(path);
        }
    }
}

#[test]
fn the_first_page_of_a_folder_leads_to_each_of_its_pages() {
    let (mut found, mut wrong) = (0, Vec::new());
    for folder in FOLDERS.iter().filter(|folder| folder.starts_with("docs")) {
        let folder = Path::new(ROOT).join(folder);
        if !folder.join("README.md").exists() {
            continue;
        }
        let first = Page::read(folder.join("README.md"));
        let targets = first.links().into_iter().map(|it| it.split('#').next().unwrap().to_owned());
        let targets: BTreeSet<PathBuf> = targets.map(|it| folder.join(it)).collect();
        let mut pages = Vec::new();
        listed_by(&folder, &mut pages);
        found += pages.len();
        wrong.extend(pages.into_iter().filter(|page| !targets.contains(page)));
    }
    assert!(found > 80, "{found} pages");
    assert!(wrong.is_empty(), "pages that the first page of their folder lacks: {wrong:#?}");
}

#[test]
fn every_path_that_a_page_names_is_there() {
    let (mut found, mut wrong) = (0, Vec::new());
    for page in pages() {
        let bases = [Path::new(ROOT), &Path::new(ROOT).join("src"), page.folder()];
        for word in page.words() {
            let path = word.trim_end_matches('/').split(':').next().unwrap();
            if !looks_like_a_path(path, &bases) {
                continue;
            }
            let is_there = alternatives(path).iter().all(|path| {
                bases.iter().any(|base| exists(base, path) || exists(base, &format!("{path}.rs")))
            });
            if !is_there {
                wrong.push(format!("{}: {word}", page.name()));
            }
            found += 1;
        }
    }
    assert!(found > 100, "{found} paths");
    assert!(wrong.is_empty(), "paths that are not there: {wrong:#?}");
}

/// Words with slashes between them, of which the first is a folder of ours.
fn looks_like_a_path(path: &str, bases: &[&Path]) -> bool {
    let is_part = |part: &str| {
        let allowed = |it: char| it.is_ascii_alphanumeric() || "._-*<>{},".contains(it);
        !part.is_empty() && part.chars().all(allowed)
    };
    let first = path.split('/').next().unwrap();
    path.contains('/')
        && path.split('/').all(is_part)
        && !matches!(first, "build" | "dist" | "target" | "lib" | "." | "..")
        && !ELSEWHERE.contains(&path)
        && bases.iter().any(|base| base.join(first).is_dir())
}

/// What braces with commas stand for: `a/{b,c}` for `a/b` and `a/c`.
fn alternatives(path: &str) -> Vec<String> {
    let parts = || Some((path.split_once('{')?, path.split_once('}')?.1));
    let Some(((before, inner), after)) = parts() else { return vec![path.to_owned()] };
    let inner = inner.split('}').next().unwrap();
    inner.split(',').map(|it| format!("{before}{}{after}", it.trim())).collect()
}

/// Whether something below `base` is called so; `*`, or a word between `<` and `>`, stands for any
/// text within a name.
fn exists(base: &Path, path: &str) -> bool {
    let Some((part, rest)) = path.split_once('/') else {
        return children(base).iter().any(|name| is_called(name, path));
    };
    let called = children(base).into_iter().filter(|name| is_called(name, part));
    called.into_iter().any(|name| exists(&base.join(name), rest))
}

fn children(folder: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn is_called(name: &str, pattern: &str) -> bool {
    let first = pattern.find(['*', '<']);
    let Some(first) = first else { return name == pattern };
    let last = pattern.rfind(['*', '>']).unwrap();
    let (start, end) = (&pattern[..first], &pattern[last + 1..]);
    name.len() >= start.len() + end.len() && name.starts_with(start) && name.ends_with(end)
}

#[test]
fn every_command_of_make_that_a_page_names_is_there() {
    let makefile = fs::read_to_string(Path::new(ROOT).join("Makefile")).unwrap();
    let targets: BTreeSet<&str> = makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', ' ', '#']))
        .filter_map(|line| line.split_once(':'))
        .flat_map(|(targets, _)| targets.split_whitespace())
        .collect();
    let (mut found, mut wrong) = (0, Vec::new());
    for page in pages() {
        let code = page.lines().filter(|(in_code, _)| *in_code).map(|(_, line)| line.to_owned());
        for command in code.chain(page.spans()) {
            let Some(rest) = command.trim_start().strip_prefix("make ") else { continue };
            let is_target =
                |word: &&str| word.chars().all(|it| it.is_ascii_lowercase() || it == '-');
            let rest = rest.split('#').next().unwrap();
            for word in rest.split_whitespace().filter(|word| !word.starts_with('-')) {
                if is_target(&word) && !targets.contains(word) {
                    wrong.push(format!("{}: make {word}", page.name()));
                }
                found += usize::from(is_target(&word));
            }
        }
    }
    assert!(found > 20, "{found} commands");
    assert!(wrong.is_empty(), "commands that the Makefile does not have: {wrong:#?}");
}

/// The files of the product that allow unsafe code, with the reason that each gives.
fn files_with_unsafe_code(folder: &Path, found: &mut BTreeMap<String, String>) {
    for name in children(folder) {
        let path = folder.join(name);
        if path.is_dir() {
            files_with_unsafe_code(&path, found);
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let Some((_, rest)) = text.split_once("#![allow(unsafe_code, reason = \"") else {
            continue;
        };
        let reason = rest.split('"').next().unwrap().to_owned();
        found.insert(path.strip_prefix(ROOT).unwrap().display().to_string(), reason);
    }
}

#[test]
fn the_page_about_the_design_lists_every_file_with_unsafe_code() {
    let page = Page::read(Path::new(ROOT).join("docs/internals/design.md"));
    let section = page.text.split("\n## unsafe\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.strip_suffix(" |"));
    let listed: BTreeMap<String, String> = rows
        .map(|row| row.split_once("` | ").unwrap())
        .map(|(file, reason)| (file.to_owned(), reason.to_owned()))
        .collect();
    let mut found = BTreeMap::new();
    files_with_unsafe_code(&Path::new(ROOT).join("src"), &mut found);
    let crates = Path::new(ROOT).join("crates");
    for name in children(&crates) {
        files_with_unsafe_code(&crates.join(name).join("src"), &mut found);
    }
    files_with_unsafe_code(&Path::new(ROOT).join("bindings/python/native/src"), &mut found);
    assert!(found.len() > 5);
    assert_eq!(listed, found, "docs/internals/design.md, section unsafe");
}

#[test]
fn figures_of_charts_are_readable_where_paint_order_is_not_known() {
    let mut figures = 0;
    let folders = ["docs/use", "benches/charts"].map(|folder| Path::new(ROOT).join(folder));
    let charts = folders.iter().flat_map(|folder| {
        let is_chart = |name: &String| name.rsplit_once('.').is_some_and(|(_, it)| it == "svg");
        children(folder).into_iter().filter(is_chart).map(|name| (folder.join(&name), name))
    });
    for (path, name) in charts {
        let text = fs::read_to_string(path).unwrap();
        assert!(!text.contains("paint-order"), "{name}");
        let lines: Vec<&str> = text.lines().collect();
        for pair in lines.windows(2).filter(|pair| pair[1].contains("class=\"figure\"")) {
            assert_eq!(pair[0].replace("\"halo\"", "\"figure\""), pair[1], "{name}");
            figures += 1;
        }
    }
    assert!(figures > 50, "{figures} figures");
}

/// Paths below the crate that a file of the program names outside of its tests, such as `launch::plan`.
fn paths_named(text: &str) -> BTreeSet<String> {
    let product = text.split("#[cfg(test)]").next().unwrap();
    let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    let mut paths = BTreeSet::new();
    for rest in product.split("crate::").skip(1) {
        let path = rest.split(|c| !is_path(c)).next().unwrap();
        let list =
            rest[path.len()..].strip_prefix('{').map_or("", |it| it.split('}').next().unwrap());
        let names = list.split(',').map(|name| name.trim().split(|c| !is_path(c)).next().unwrap());
        paths.extend(names.map(|name| format!("{path}{name}")));
    }
    paths
}

/// The modules that a file takes by their paths, and below them those of the files that it takes: each
/// with its file, and whether that only takes others.
fn modules_taken(
    file: &Path,
    parent: &str,
    modules: &mut BTreeMap<String, (PathBuf, bool)>,
) -> usize {
    let text = fs::read_to_string(file).unwrap();
    let parts: Vec<_> = text.split("#[path = \"").skip(1).collect();
    for part in &parts {
        let (path, rest) = part.split_once("\"]\n").unwrap();
        let name = rest.split_once("mod ").unwrap().1.split(';').next().unwrap();
        let (name, path) = (format!("{parent}{name}"), file.parent().unwrap().join(path));
        let below = modules_taken(&path, &format!("{name}::"), modules);
        modules.insert(name, (path, below > 0));
    }
    parts.len()
}

/// The module that is missing for a path: the path leads through modules that only take others to one that
/// has items.
fn missing<'a>(path: &'a str, modules: &BTreeMap<String, (PathBuf, bool)>) -> Option<&'a str> {
    let ends = path.match_indices("::").map(|(at, _)| at).chain([path.len()]);
    for end in ends {
        match modules.get(&path[..end]) {
            None => return Some(&path[..end]),
            Some((_, false)) => return None,
            Some((_, true)) => {}
        }
    }
    None
}

/// The suites do not build the targets: that needs another tool chain.
#[test]
fn every_target_for_fuzzing_has_the_modules_that_its_modules_name() {
    let folder = Path::new(ROOT).join("fuzz/fuzz_targets");
    let (mut taken, mut wrong) = (0, Vec::new());
    for target in children(&folder) {
        let mut modules = BTreeMap::new();
        modules_taken(&folder.join(&target), "", &mut modules);
        for (path, _) in modules.values().filter(|(_, only_takes)| !only_takes) {
            taken += 1;
            for named in paths_named(&fs::read_to_string(path).unwrap()) {
                if let Some(module) = missing(&named, &modules) {
                    wrong.push(format!("{target}: {} names {module}", path.display()));
                }
            }
        }
        let archive = target.replace(".rs", ".tar");
        assert!(Path::new(ROOT).join("fuzz/corpus").join(&archive).is_file(), "{archive}");
    }
    assert!(taken > 5, "{taken} modules");
    assert!(wrong.is_empty(), "modules that a target does not take: {wrong:#?}");
}
