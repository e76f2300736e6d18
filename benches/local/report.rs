//! What the benchmark says: tables in the terminal and in Markdown, facts in JSON, plots.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use serde_json::Value;

use crate::timing::{disturbed, rounds};
use crate::{machine, page};

const FOLDER: &str = "target/bench";
/// The charts of docs/use/performance.md.
const CHARTS: &str = "benches/charts";

pub struct Report {
    stem: String,
    json: BufWriter<File>,
    markdown: BufWriter<File>,
    /// What the figures were measured on, above each table.
    header: String,
    columns: Vec<usize>,
    table: Option<Table>,
}

/// A table that may still get rows.
struct Table {
    name: String,
    head: String,
    rows: String,
}

impl Report {
    /// Writes `target/bench/<stem>.jsonl` and `.md`; `cargo bench` runs in the package's root.
    pub fn create(stem: &str) -> io::Result<Self> {
        fs::create_dir_all(FOLDER)?;
        let file = |extension| File::create(format!("{FOLDER}/{stem}.{extension}"));
        Ok(Self {
            stem: stem.to_owned(),
            json: BufWriter::new(file("jsonl")?),
            markdown: BufWriter::new(file("md")?),
            header: String::new(),
            columns: Vec::new(),
            table: None,
        })
    }

    /// Says what is measured, and on what.
    pub fn machine(&mut self, command: &str) -> io::Result<()> {
        self.header = machine::header(command, &format!("medians of {} rounds", rounds()));
        self.text(&self.header.clone())
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        println!("\n{text}");
        writeln!(self.markdown, "\n{text}")
    }

    /// Begins a table: its name on the page, a title, and columns with their widths in the terminal.
    pub fn table(&mut self, name: &str, title: &str, columns: &[(&str, usize)]) -> io::Result<()> {
        self.end_table()?;
        page::check(name)?;
        println!("\n{title}");
        self.columns = columns.iter().map(|(name, width)| (*width).max(name.len())).collect();
        let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        show(&self.columns, &names);
        let head = format!("| {} |\n|{}\n", names.join(" | "), "---|".repeat(columns.len()));
        write!(self.markdown, "\n### {title}\n\n{head}")?;
        self.table = Some(Table { name: name.to_owned(), head, rows: String::new() });
        Ok(())
    }

    /// Writes the table into its place on the page, unless nothing of it was measured.
    fn end_table(&mut self) -> io::Result<()> {
        match self.table.take() {
            Some(Table { name, head, rows }) if !rows.is_empty() => {
                page::write(&name, &format!("{}\n\n{head}{rows}", self.header))
            }
            _ => Ok(()),
        }
    }

    /// Lets the page keep the table that it has.
    pub fn keep_from_page(&mut self) {
        self.table = None;
    }

    /// The first column is for names, the others are for numbers.
    pub fn row(&mut self, cells: &[String]) -> io::Result<()> {
        show(&self.columns, cells);
        let row = format!("| {} |\n", cells.join(" | "));
        self.markdown.write_all(row.as_bytes())?;
        if let Some(table) = &mut self.table {
            table.rows.push_str(&row);
        }
        self.markdown.flush()
    }

    /// A line for programs.
    pub fn fact(&mut self, fact: &Value) -> io::Result<()> {
        writeln!(self.json, "{fact}")?;
        self.json.flush()
    }

    pub fn plot(&mut self, name: &str, title: &str, svg: &str) -> io::Result<()> {
        let file = format!("{name}.svg");
        fs::write(format!("{FOLDER}/{file}"), svg)?;
        if page::flag("--page") && !page::quick() {
            fs::write(format!("{CHARTS}/{file}"), svg)?;
        }
        println!("drew {FOLDER}/{file}");
        write!(self.markdown, "\n![{title}]({file})\n")
    }

    pub fn finish(mut self) -> io::Result<()> {
        let share = number(100.0 * disturbed(), 1);
        let disturbed = format!("Other programs disturbed {share} % of the turns.");
        if let Some(table) = self.table.as_mut().filter(|table| !table.rows.is_empty()) {
            let _ = writeln!(table.rows, "\n{disturbed}");
        }
        self.end_table()?;
        self.text(&disturbed)?;
        self.json.flush()?;
        self.markdown.flush()?;
        println!("wrote {FOLDER}/{0}.jsonl and {FOLDER}/{0}.md", self.stem);
        Ok(())
    }
}

/// Prints a row for the terminal.
fn show(widths: &[usize], cells: &[String]) {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let _ = match index {
            0 => write!(line, "  {cell:width$}"),
            _ => write!(line, "  {cell:>width$}"),
        };
    }
    println!("{}", line.trim_end());
}

/// "1 value", "4 values".
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn number(number: f64, digits: usize) -> String {
    format!("{number:.digits$}")
}
