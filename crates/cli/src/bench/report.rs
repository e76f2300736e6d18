//! Results of a benchmark, as a table, as an object, and as a chart.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};

use serde_json::{Value, json};

use super::BenchResult;
use super::agree::BenchGroup;
use super::asked::{BenchWork, size_name};
use super::case::BenchOp;
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

/// The columns of the table: titles, and how wide they are.
const COLUMNS: [(&str, usize); 9] = [
    ("op", 8),
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
    ) -> BenchResult<Self> {
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
        report.table(|| row(&COLUMNS.map(|(title, _)| title.to_owned())))?;
        Ok(report)
    }

    /// Whether the chart file can be written, before hours are spent.
    fn check_file(&self) -> BenchResult<()> {
        if let Some(file) = self.work.svg.as_ref().filter(|_| self.is_first) {
            let opened = OpenOptions::new().create(true).append(true).open(file);
            opened.map_err(|error| format!("{}: {error}", file.display()))?;
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
        let (dtype, optimizer) = (self.work.dtype.name(), self.work.optimizer.name());
        format!("{text}, {dtype}, optimizer {optimizer}")
    }

    /// Prints a line of the table, if enabled on this worker.
    fn table(&self, text: impl FnOnce() -> String) -> BenchResult<()> {
        if self.is_first && !self.work.json { print(&text()) } else { Ok(()) }
    }

    pub(crate) fn add(&mut self, measured: Measured) -> BenchResult<()> {
        let times = Times {
            p50: measured.median(|times| times.p50),
            p99: measured.slowest(),
            limit: measured.median(|times| times.limit),
        };
        self.table(|| {
            let case = measured.case;
            let [p50, p99, rate, limit, ratio] = cells(&measured, &times);
            let (keys, rounds) = (case.keys.to_string(), measured.rounds.to_string());
            let name = case.op.name().to_owned();
            row(&[name, keys, size_name(case.size), rounds, p50, p99, rate, limit, ratio])
        })?;
        self.all.push(measured);
        Ok(())
    }

    pub(crate) fn end(&self, left_out: &[(usize, usize)]) -> BenchResult<()> {
        if !self.is_first {
            return Ok(());
        }
        if self.work.json {
            let text = serde_json::to_string_pretty(&self.object(left_out))?;
            print(&text)?;
        }
        let largest = self.all.iter().max_by_key(|it| it.case.bytes());
        if let Some(measured) = largest.filter(|_| self.workers > 1) {
            self.table(|| each_worker(measured))?;
        }
        if !left_out.is_empty() {
            self.table(|| {
                let name = |(keys, size): &(usize, usize)| format!("{keys} x {}", size_name(*size));
                let names: Vec<String> = left_out.iter().map(name).collect();
                format!("\nleft out, see --most: {}", names.join(", "))
            })?;
        }
        if let Some(file) = &self.work.svg {
            let at = |error: io::Error| format!("{}: {error}", file.display());
            fs::write(file, self.picture()).map_err(at)?;
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
            "optimizer": self.work.optimizer.name(),
            "limit": self.limit,
            "cases": self.all.iter().map(case_object).collect::<Vec<Value>>(),
            "left_out": left_out,
        })
    }

    /// Throughput over size, a line for each call and each number of keys.
    fn picture(&self) -> String {
        let mut sizes: Vec<usize> = self.all.iter().map(|it| it.case.size).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let mut kinds: Vec<(BenchOp, usize)> = Vec::new();
        for case in self.all.iter().map(|it| it.case) {
            if !kinds.contains(&(case.op, case.keys)) {
                kinds.push((case.op, case.keys));
            }
        }
        kinds.sort_by_key(|&(op, keys)| (keys, op as usize));
        let mut counts: Vec<usize> = kinds.iter().map(|(_, keys)| *keys).collect();
        counts.dedup();
        let name = |(op, keys): &(BenchOp, usize)| {
            format!("{}, {keys} {}", op.name(), if *keys == 1 { "key" } else { "keys" })
        };
        let names: Vec<String> = kinds.iter().map(name).collect();
        let line = |(&(op, keys), name)| {
            let at = |size: &usize| {
                let is_it = |it: &&Measured| {
                    it.case.op == op && it.case.keys == keys && it.case.size == *size
                };
                let found = self.all.iter().find(is_it)?;
                Some(found.gb_per_s(found.median(|times| times.p50)))
            };
            let values = sizes.iter().map(at).collect();
            let mark = counts.iter().position(|count| *count == keys).unwrap_or(0);
            ChartLine { name, colour: op as usize, mark, values }
        };
        let drawn: Vec<ChartLine<'_>> =
            kinds.iter().zip(names.iter().map(String::as_str)).map(line).collect();
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
fn print(text: &str) -> BenchResult<()> {
    writeln!(io::stdout(), "{text}").map_err(|error| format!("nobody reads this: {error}").into())
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

fn row(cells: &[String; 9]) -> String {
    let [first, others @ ..] = cells;
    let mut text = format!("{first:<0$}", COLUMNS[0].1);
    for (cell, (_, width)) in others.iter().zip(&COLUMNS[1..]) {
        let _ = write!(text, "  {cell:>width$}");
    }
    text
}

/// The workers one by one: a slow network card shows in the limit of its worker.
fn each_worker(measured: &Measured) -> String {
    let case = measured.case;
    let mut text = format!(
        "\neach worker, {} of {} x {}:\nworker       p50 ms     p99 ms      GB/s     limit    ratio",
        case.op.name(),
        case.keys,
        size_name(case.size)
    );
    for (rank, times) in measured.workers.iter().enumerate() {
        let [p50, p99, rate, limit, ratio] = cells(measured, times);
        let _ = write!(text, "\n{rank:<8}  {p50:>9}  {p99:>9}  {rate:>8}  {limit:>8}  {ratio:>7}");
    }
    text
}

fn case_object(measured: &Measured) -> Value {
    let p50 = measured.median(|times| times.p50);
    let worker = |times: &Times| {
        json!({
            "p50_ms": times.p50 * 1e3,
            "p99_ms": times.p99 * 1e3,
            "gb_per_s": measured.gb_per_s(times.p50),
            "limit_gb_per_s": measured.gb_per_s(times.limit),
        })
    };
    json!({
        "op": measured.case.op.name(),
        "keys": measured.case.keys,
        "size": measured.case.size,
        "rounds": measured.rounds,
        "p50_ms": p50 * 1e3,
        "p99_ms": measured.slowest() * 1e3,
        "gb_per_s": measured.gb_per_s(p50),
        "limit_gb_per_s": measured.gb_per_s(measured.median(|times| times.limit)),
        "ratio": measured.ratio(),
        "workers": measured.workers.iter().map(worker).collect::<Vec<Value>>(),
    })
}
