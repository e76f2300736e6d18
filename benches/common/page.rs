//! The tables of docs/use/performance.md, each between `<!-- table: NAME -->` and `<!-- end -->`.
//!
//! A benchmark with `--page` replaces the tables that it measures, and leaves all others as they
//! are. With `--quick` it has too few rounds for figures: it then writes into a copy of the page
//! under target/bench.
#![allow(clippy::print_stdout, reason = "a benchmark says what it writes")]

use std::path::Path;
use std::{env, fs, io};

/// The tables that benches can write.
pub const TABLES: [&str; 42] = [
    "sweep-1-limits",
    "sweep-1-thread-1",
    "sweep-1-thread-2",
    "sweep-1-overhead",
    "sweep-2-limits",
    "sweep-2-thread-1",
    "sweep-2-thread-2",
    "sweep-2-overhead",
    "sweep-4-limits",
    "sweep-4-thread-1",
    "sweep-4-thread-2",
    "sweep-4-overhead",
    "sweep-8-limits",
    "sweep-8-thread-1",
    "sweep-8-thread-2",
    "sweep-8-overhead",
    "hand-small",
    "hand-middle",
    "hand-large",
    "hand-read",
    "alignment",
    "half",
    "order",
    "digests",
    "lists",
    "bound",
    "models",
    "rows",
    "rows-dense",
    "codecs",
    "goals",
    "peers",
    "peers-goals",
    "peers-dist",
    "dist-one-1K",
    "dist-one-64K",
    "dist-one-1M",
    "dist-one-16M",
    "dist-resnet",
    "dist-many-1000x1K",
    "dist-resnet-momentum",
    "dist-many-1000x1K-momentum",
];

const PAGE: &str = "docs/use/performance.md";
/// Where benchmarks write everything but the page.
const FOLDER: &str = "target/bench";
const COPY: &str = "target/bench/performance.md";
const END: &str = "<!-- end -->";

/// Whether the benchmark has this flag: `--page`, `--quick` or `--peers`.
pub fn flag(name: &str) -> bool {
    env::args().any(|argument| argument == name)
}

/// The words of the command line that choose what is measured.
pub fn words() -> Vec<String> {
    env::args().skip(1).filter(|word| !word.starts_with('-')).collect()
}

/// Too few and too short turns for figures, to see that everything runs.
pub fn quick() -> bool {
    flag("--quick")
}

/// An error for a name that [`TABLES`] does not have, so that no table loses its place unseen.
pub fn check(table: &str) -> io::Result<()> {
    let known = TABLES.contains(&table);
    let error = || io::Error::other(format!("benches/common/page.rs has no table {table:?}"));
    known.then_some(()).ok_or_else(error)
}

/// Writes a measured table, in Markdown, into its place on the page, if `--page` asks for it.
pub fn write(table: &str, text: &str) -> io::Result<()> {
    check(table)?;
    if !flag("--page") {
        return Ok(());
    }
    let file = if quick() { COPY } else { PAGE };
    let from = if Path::new(file).exists() { file } else { PAGE };
    let Some(page) = replaced(&fs::read_to_string(from)?, table, text) else {
        println!("{file} has no place for table {table}");
        return Ok(());
    };
    println!("wrote table {table} of {file}");
    fs::create_dir_all(FOLDER)?;
    fs::write(file, page)
}

/// The page with another text in the place of a table; nothing if it has no such place.
pub fn replaced(page: &str, table: &str, text: &str) -> Option<String> {
    let begin = format!("<!-- table: {table} -->\n");
    let start = page.find(&begin)? + begin.len();
    let end = start + page[start..].find(END)?;
    Some(format!("{}{}\n\n{}", &page[..start], text.trim(), &page[end..]))
}
