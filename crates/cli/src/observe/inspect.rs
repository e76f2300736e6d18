//! `kvstore inspect`: the contents of a checkpoint, and whether it is damaged.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use kvstore::{InspectedTensor, Inspection, TensorState};
use kvstore_checksum::crc64::combine;
use serde::Serialize;

use crate::messages::say;

/// Shows what a checkpoint has: keys, dtypes, shapes, the optimizer and its state, and whether any
/// byte of it is damaged.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print one object of JSON
    #[arg(long)]
    json: bool,

    /// A file that a store has saved
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// Texts of the header that are printed before the table.
const OPTIMIZER: (&str, &str) = ("kvstore.optimizer", "kvstore.options");
const CODEC: (&str, &str) = ("kvstore.codec", "kvstore.codec_options");
const WORKERS: &str = "kvstore.workers";
const VERSION: &str = "kvstore.version";

pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let found = match Inspection::read(&arguments.file) {
        Ok(found) => found,
        Err(error) => {
            say("inspect", format_args!("{}: {}", arguments.file.display(), error.message()));
            return ExitCode::FAILURE;
        }
    };
    let mut out = io::stdout().lock();
    // A reader may close the pipe early.
    let _ =
        if arguments.json { print_json(&found, &mut out) } else { print_table(&found, &mut out) };
    if found.is_intact() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A key with all its tensors.
#[derive(Serialize)]
struct InspectedKey<'a> {
    #[serde(flatten)]
    value: InspectedPart<'a>,
    /// Pushes under the optimizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    updates: Option<i64>,
    /// Digest of the states and the master.
    #[serde(skip_serializing_if = "Option::is_none")]
    state_digest: Option<String>,
    /// States, masters and residuals.
    parts: Vec<InspectedPart<'a>>,
}

#[derive(Serialize)]
struct InspectedPart<'a> {
    name: &'a str,
    dtype: &'static str,
    shape: &'a [i64],
    bytes: u64,
    checksum: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    digest: Option<String>,
}

impl<'a> InspectedPart<'a> {
    fn new(tensor: &'a InspectedTensor, name: &'a str) -> Self {
        let InspectedTensor { dtype, shape, bytes, state, digest, .. } = tensor;
        let digest = digest.map(|digest| format!("{digest:016x}"));
        Self { name, dtype: dtype.name(), shape, bytes: *bytes, checksum: state.name(), digest }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    bytes: u64,
    intact: bool,
    damage: &'a [String],
    texts: &'a BTreeMap<String, String>,
    keys: Vec<InspectedKey<'a>>,
    /// Tensors that belong to no single key.
    others: Vec<InspectedPart<'a>>,
}

/// The keys in the order of the file, and the tensors that belong to none.
fn sorted(found: &Inspection) -> (Vec<InspectedKey<'_>>, Vec<InspectedPart<'_>>) {
    let (mut keys, mut others): (Vec<InspectedKey<'_>>, _) = (Vec::new(), Vec::new());
    for tensor in &found.tensors {
        let InspectedTensor { name, key, part, .. } = tensor;
        // The parts of a key stand behind its value.
        let owner = keys.last_mut().filter(|last| Some(last.value.name) == key.as_deref());
        match (key, part, owner) {
            (Some(name), None, _) => {
                let updates = found.updates.get(keys.len()).copied();
                let value = InspectedPart::new(tensor, name);
                let state_digest = state_digest(found, name);
                keys.push(InspectedKey { value, updates, state_digest, parts: Vec::new() });
            }
            (Some(_), Some(part), Some(owner)) => {
                owner.parts.push(InspectedPart::new(tensor, part));
            }
            _ => others.push(InspectedPart::new(tensor, name)),
        }
    }
    (keys, others)
}

/// The digest of the states of a key and its master; None if there are none, or one of them is missing.
fn state_digest(found: &Inspection, key: &str) -> Option<String> {
    let is_state = |part: &str| part == "master" || part.starts_with("state.");
    let mut parts = found.tensors.iter().filter(|tensor| {
        tensor.key.as_deref() == Some(key) && tensor.part.as_deref().is_some_and(is_state)
    });
    let first = parts.next()?.digest?;
    let joined = parts.try_fold(first, |sum, part| Some(combine(sum, part.digest?, part.bytes)))?;
    Some(format!("{joined:016x}"))
}

fn print_json(found: &Inspection, out: &mut impl Write) -> io::Result<()> {
    let (keys, others) = sorted(found);
    let document = Document {
        bytes: found.bytes,
        intact: found.is_intact(),
        damage: &found.damage,
        texts: &found.texts,
        keys,
        others,
    };
    serde_json::to_writer_pretty(&mut *out, &document)?;
    writeln!(out)
}

fn print_table(found: &Inspection, out: &mut impl Write) -> io::Result<()> {
    let (keys, others) = sorted(found);
    let text = |name: &str| found.texts.get(name).map(|text| plain(text));
    let with = |(name, options): (&str, &str)| {
        let options = text(options).filter(|options| !options.is_empty());
        text(name).map(|name| format!("{name} {}", options.unwrap_or_default()))
    };
    writeln!(out, "saved by   {}", text(VERSION).unwrap_or_default())?;
    writeln!(out, "optimizer  {}", with(OPTIMIZER).unwrap_or("none".into()).trim_end())?;
    writeln!(out, "codec      {}", with(CODEC).unwrap_or("none".into()).trim_end())?;
    if let Some(workers) = text(WORKERS) {
        writeln!(out, "workers    {workers}, each with what its codec has left")?;
    }
    let said = [VERSION, OPTIMIZER.0, OPTIMIZER.1, CODEC.0, CODEC.1, WORKERS, "kvstore.format"];
    for (name, text) in found.texts.iter().filter(|(name, _)| !said.contains(&name.as_str())) {
        writeln!(out, "{} {}", plain(name), plain(text))?;
    }
    let bytes: u64 = keys.iter().map(|key| key.value.bytes).sum();
    writeln!(out, "size       {} bytes; {} keys with {bytes}\n", found.bytes, keys.len())?;
    let head = ["key", "dtype", "shape", "bytes", "updates", "belongs to it", "checksum"];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(keys.iter().map(|key| row(&key.value, key.updates, &key.parts)));
    // Every optimizer has them: printed only if something is wrong.
    let wrong = others.iter().filter(|part| part.checksum != TensorState::Intact.name());
    rows.extend(wrong.map(|part| row(part, None, &[])));
    print_rows(&rows, out)?;
    print_verdict(found, out)
}

fn row(
    value: &InspectedPart<'_>,
    updates: Option<i64>,
    parts: &[InspectedPart<'_>],
) -> [String; 7] {
    let names: Vec<String> = parts.iter().map(|part| plain(part.name)).collect();
    let wrong: Vec<String> = std::iter::once(("", value.checksum))
        .chain(parts.iter().map(|part| (part.name, part.checksum)))
        .filter(|(_, checksum)| *checksum != TensorState::Intact.name())
        .map(|(name, checksum)| format!("{} {checksum}", plain(name)).trim().to_owned())
        .collect();
    let checksum =
        if wrong.is_empty() { TensorState::Intact.name().into() } else { wrong.join(", ") };
    [
        plain(value.name),
        value.dtype.into(),
        extents(value.shape),
        value.bytes.to_string(),
        updates.map_or(String::new(), |updates| updates.to_string()),
        names.join(" "),
        checksum,
    ]
}

fn print_rows(rows: &[[String; 7]], out: &mut impl Write) -> io::Result<()> {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..7).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cell = |(text, width): (&String, &usize)| format!("{text:width$}");
        let cells: Vec<String> = row.iter().zip(&widths).map(cell).collect();
        writeln!(out, "{}", cells.join("  ").trim_end())?;
    }
    Ok(())
}

fn print_verdict(found: &Inspection, out: &mut impl Write) -> io::Result<()> {
    writeln!(out)?;
    for damage in &found.damage {
        writeln!(out, "DAMAGED: {}", plain(damage))?;
    }
    for tensor in found.tensors.iter().filter(|tensor| tensor.state == TensorState::Altered) {
        let end = tensor.offset + tensor.bytes;
        let name = plain(&tensor.name);
        writeln!(out, "DAMAGED: {name}, somewhere from byte {} to {end}", tensor.offset)?;
    }
    if found.is_intact() {
        writeln!(out, "All checksums are right.")?;
    }
    Ok(())
}

fn extents(shape: &[i64]) -> String {
    let extents: Vec<String> = shape.iter().map(ToString::to_string).collect();
    format!("[{}]", extents.join(","))
}

/// Text from a file, without terminal control characters.
fn plain(text: &str) -> String {
    let escape = |letter: char| {
        if letter.is_control() { letter.escape_default().collect() } else { letter.to_string() }
    };
    text.chars().map(escape).collect()
}
