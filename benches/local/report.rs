//! What the benchmark says: tables in the terminal and in Markdown, facts in JSON, plots.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};

use serde_json::Value;

use crate::timing::{ROUNDS, disturbed};

const FOLDER: &str = "target/bench";

pub struct Report {
    stem: String,
    json: BufWriter<File>,
    markdown: BufWriter<File>,
    columns: Vec<usize>,
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
            columns: Vec::new(),
        })
    }

    /// What was measured on, and with what; a figure means nothing without it.
    pub fn machine(&mut self, command: &str) -> io::Result<()> {
        self.text(&format!(
            "{}; library {}; `{command}`, medians of {ROUNDS} rounds.",
            machine(),
            env!("CARGO_PKG_VERSION")
        ))
    }

    pub fn text(&mut self, text: &str) -> io::Result<()> {
        println!("\n{text}");
        writeln!(self.markdown, "\n{text}")
    }

    /// Begins a table: a title, and columns with their widths in the terminal.
    pub fn table(&mut self, title: &str, columns: &[(&str, usize)]) -> io::Result<()> {
        println!("\n{title}");
        write!(self.markdown, "\n### {title}\n\n")?;
        self.columns = columns.iter().map(|(name, width)| (*width).max(name.len())).collect();
        let names: Vec<String> = columns.iter().map(|(name, _)| (*name).to_owned()).collect();
        self.row(&names)?;
        writeln!(self.markdown, "|{}", "---|".repeat(columns.len()))
    }

    /// The first column is for names, the others are for numbers.
    pub fn row(&mut self, cells: &[String]) -> io::Result<()> {
        let mut line = String::new();
        for (index, (cell, width)) in cells.iter().zip(&self.columns).enumerate() {
            let _ = match index {
                0 => write!(line, "  {cell:width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        println!("{}", line.trim_end());
        writeln!(self.markdown, "| {} |", cells.join(" | "))?;
        self.markdown.flush()
    }

    /// A line for programs.
    pub fn fact(&mut self, fact: &Value) -> io::Result<()> {
        writeln!(self.json, "{fact}")?;
        self.json.flush()
    }

    pub fn plot(&mut self, name: &str, title: &str, svg: &str) -> io::Result<()> {
        let file = format!("{}-{name}.svg", self.stem);
        fs::write(format!("{FOLDER}/{file}"), svg)?;
        println!("drew {FOLDER}/{file}");
        write!(self.markdown, "\n![{title}]({file})\n")
    }

    pub fn finish(mut self) -> io::Result<()> {
        let share = number(100.0 * disturbed(), 1);
        self.text(&format!("Other programs disturbed {share} % of the turns."))?;
        self.json.flush()?;
        self.markdown.flush()?;
        println!("wrote {FOLDER}/{0}.jsonl and {FOLDER}/{0}.md", self.stem);
        Ok(())
    }
}

/// "1 value", "4 values".
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

pub fn number(number: f64, digits: usize) -> String {
    format!("{number:.digits$}")
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let widest = ["avx512f", "avx2"].into_iter().find(|name| cpus.contains(name));
    let caches: Vec<String> = (0..4)
        .map(|index| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")))
        .map(|size| size.trim().to_owned())
        .collect();
    let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let pages = pages.split(['[', ']']).nth(1).unwrap_or("unknown");
    format!(
        "{}, {} processors ({}), caches {}, huge pages: {pages}",
        model.unwrap_or("unknown processor"),
        std::thread::available_parallelism().map_or(1, usize::from),
        widest.unwrap_or(std::env::consts::ARCH),
        caches.join(" ").trim(),
    )
}
