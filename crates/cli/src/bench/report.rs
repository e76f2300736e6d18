//! Results of a benchmark, as a table, as an object, and as a chart.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::agree::BenchGroup;
use super::asked::{BenchWork, size_name};
use super::case::{BenchCase, BenchOp, name};
use super::limit::Limit;
use super::measure::{Measured, Times};
use crate::plot::{ChartFrame, ChartLine, lines};

/// Prints the report of the first worker; other workers print nothing.
pub(crate) struct BenchReport<'a> {
    work: &'a BenchWork,
    is_first: bool,
    kind: &'static str,
    workers: usize,
    servers: Option<u32>,
    limit: &'static str,
    all: Vec<Measured>,
}

/// The columns of the table behind the first one: titles, and how wide they are.
const COLUMNS: [(&str, usize); 8] = [
    ("keys", 6),
    ("size", 6),
    ("rounds", 6),
    ("p50 ms", 9),
    ("p99 ms", 9),
    ("GB/s", 8),
    ("limit", 8),
    ("ratio", 7),
];

impl<'a> BenchReport<'a> {
    pub(crate) fn new(
        work: &'a BenchWork,
        group: &BenchGroup<'_>,
        limit: &Limit,
        servers: Option<u32>,
    ) -> Result<Self> {
        let report = Self {
            work,
            is_first: group.rank == 0,
            kind: group.store.kind().name(),
            workers: group.workers,
            servers,
            limit: limit.name(),
            all: Vec::new(),
        };
        report.check_file()?;
        report.table(|| format!("{}; the limit is {}\n", report.about(), report.limit))?;
        report.table(|| row("op", &titles()))?;
        Ok(report)
    }

    /// Whether the chart file can be written, before hours are spent.
    fn check_file(&self) -> Result<()> {
        if let Some(file) = self.work.svg.as_ref().filter(|_| self.is_first) {
            let opened = OpenOptions::new().create(true).append(true).open(file);
            opened.with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    /// The measured work, in a line.
    fn about(&self) -> String {
        let plural = |count: usize, what: &str| {
            format!(", {count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let mut text = self.kind.to_owned();
        if self.kind.starts_with("dist") {
            text += &plural(self.workers, "worker");
            let servers = self.servers.and_then(|count| usize::try_from(count).ok());
            text += &servers.map_or(String::new(), |count| plural(count, "server"));
        }
        let (dtype, optimizer) = (self.work.dtype.name(), name(&self.work.optimizer));
        format!("{text}, {dtype}, optimizer {optimizer}")
    }

    /// Prints a line of the table, if enabled on this worker.
    fn table(&self, text: impl FnOnce() -> String) -> Result<()> {
        if self.is_first && !self.work.json { print(&text()) } else { Ok(()) }
    }

    pub(crate) fn add(&mut self, measured: Measured) -> Result<()> {
        self.table(|| {
            let (case, rounds) = (measured.case, measured.rounds.to_string());
            let cells = cells(&measured, &measured.overall()).to_vec();
            let first = vec![case.keys.to_string(), size_name(case.size), rounds];
            row(name(&case.op), &[first, cells].concat())
        })?;
        self.all.push(measured);
        Ok(())
    }

    pub(crate) fn end(&self, left_out: &[(usize, usize)]) -> Result<()> {
        if !self.is_first {
            return Ok(());
        }
        if self.work.json {
            print(&serde_json::to_string_pretty(&self.object(left_out))?)?;
        }
        let largest = self.all.iter().max_by_key(|it| it.case.bytes());
        if let Some(measured) = largest.filter(|_| self.workers > 1) {
            self.table(|| each_worker(measured))?;
        }
        if !left_out.is_empty() {
            self.table(|| {
                let name = |&(keys, size): &(usize, usize)| format!("{keys} x {}", size_name(size));
                let names: Vec<String> = left_out.iter().map(name).collect();
                format!("\nleft out, see --most: {}", names.join(", "))
            })?;
        }
        if let Some(file) = &self.work.svg {
            fs::write(file, self.picture()).with_context(|| file.display().to_string())?;
        }
        Ok(())
    }

    fn object(&self, left_out: &[(usize, usize)]) -> Value {
        let left_out: Vec<Value> =
            left_out.iter().map(|(keys, size)| json!({"keys": keys, "size": size})).collect();
        json!({
            "version": kvstore::VERSION,
            "type": self.kind,
            "num_workers": self.workers,
            "num_servers": self.servers.filter(|_| self.kind.starts_with("dist")),
            "dtype": self.work.dtype.name(),
            "optimizer": name(&self.work.optimizer),
            "limit": self.limit,
            "cases": self.all.iter().map(case_object).collect::<Vec<Value>>(),
            "left_out": left_out,
        })
    }

    /// Throughput over size, a line for each call and each number of keys.
    fn picture(&self) -> String {
        let of = |it: &Measured| (it.case.keys, it.case.op as usize);
        let sizes: BTreeSet<usize> = self.all.iter().map(|it| it.case.size).collect();
        let counts: BTreeSet<usize> = self.all.iter().map(|it| it.case.keys).collect();
        let kinds: BTreeMap<_, _> = self.all.iter().map(|it| (of(it), it.case.op)).collect();
        let line = |(&kind, &op): (&(usize, usize), &BenchOp)| {
            let (keys, colour) = kind;
            let at = |size: &usize| {
                let is_it = |it: &&Measured| of(it) == kind && it.case.size == *size;
                let found = self.all.iter().find(is_it)?;
                Some(found.gb_per_s(found.median(|times| times.p50)))
            };
            ChartLine {
                name: format!("{}, {keys} {}", name(&op), if keys == 1 { "key" } else { "keys" }),
                colour,
                mark: counts.range(..keys).count(),
                values: sizes.iter().map(at).collect(),
            }
        };
        let drawn: Vec<ChartLine> = kinds.iter().map(line).collect();
        let frame = ChartFrame {
            title: "Throughput of pushes and pulls",
            subtitle: &format!("{}; medians of kvstore bench", self.about()),
            x: "size of the value of one key, bytes",
            y: "GB/s of each worker",
        };
        let places: Vec<String> = sizes.iter().map(|size| size_name(*size)).collect();
        lines(&frame, &places, None, &drawn)
    }
}

/// Prints a line. A closed standard output ends the command.
fn print(text: &str) -> Result<()> {
    writeln!(io::stdout(), "{text}").context("no process reads this")
}

/// Times in milliseconds, rates, and their ratio.
fn cells(measured: &Measured, times: &Times) -> [String; 5] {
    let (rate, limit) = (measured.gb_per_s(times.p50), measured.gb_per_s(times.limit));
    [
        figure(times.p50 * 1e3),
        figure(times.p99 * 1e3),
        figure(rate),
        figure(limit),
        format!("{:.2}", times.limit / times.p50),
    ]
}

/// A time or a rate, shown as more than 0 wherever it is positive.
fn figure(number: f64) -> String {
    if number < 0.1 { format!("{number:.6}") } else { format!("{number:.3}") }
}

fn titles() -> [String; 8] {
    COLUMNS.map(|(title, _)| title.to_owned())
}

/// A row: the first cell, and those of the last columns.
fn row(first: impl Display, cells: &[String]) -> String {
    let columns = &COLUMNS[COLUMNS.len() - cells.len()..];
    let put = |row, (cell, (_, width)): (&String, &(&str, usize))| format!("{row}  {cell:>width$}");
    cells.iter().zip(columns).fold(format!("{first:<8}"), put)
}

/// The workers one by one: a slow network card shows in the limit of its worker.
fn each_worker(measured: &Measured) -> String {
    let BenchCase { op, keys, size } = measured.case;
    let title = format!("\neach worker, {} of {keys} x {}:\n", name(&op), size_name(size));
    let mut text = title + &row("worker", &titles()[3..]);
    for (rank, times) in measured.workers.iter().enumerate() {
        text += "\n";
        text += &row(rank, &cells(measured, times));
    }
    text
}

fn case_object(measured: &Measured) -> Value {
    let all = measured.overall();
    let worker = |times: &Times| {
        json!({
            "p50_ms": times.p50 * 1e3,
            "p99_ms": times.p99 * 1e3,
            "gb_per_s": measured.gb_per_s(times.p50),
            "limit_gb_per_s": measured.gb_per_s(times.limit),
        })
    };
    json!({
        "op": name(&measured.case.op),
        "keys": measured.case.keys,
        "size": measured.case.size,
        "rounds": measured.rounds,
        "p50_ms": all.p50 * 1e3,
        "p99_ms": all.p99 * 1e3,
        "gb_per_s": measured.gb_per_s(all.p50),
        "limit_gb_per_s": measured.gb_per_s(all.limit),
        "ratio": all.limit / all.p50,
        "workers": measured.workers.iter().map(worker).collect::<Vec<Value>>(),
    })
}
