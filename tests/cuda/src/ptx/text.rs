//! The text of a module: directives, declarations, labels.

use std::collections::{BTreeSet, HashMap};

use super::decode;
use super::instruction::{Instruction, Operation, Type};
use super::names::{ALWAYS, Names};
use super::{Kernel, Module, ParseError};

type Result<T> = std::result::Result<T, String>;

/// A kernel whose text is being read.
enum Part {
    /// Outside of kernels.
    Module,
    /// From the name to the bracket behind the parameters.
    Header(String),
    /// Between parameters and body.
    Directives(Builder),
    Body(Builder),
}

struct Builder {
    name: String,
    parameters: Vec<usize>,
    max_threads: Option<u32>,
    names: Names,
    code: Vec<Instruction>,
    labels: HashMap<String, u32>,
    /// Branches whose label may stand further down: instruction, label.
    branches: Vec<(usize, String)>,
    forms: BTreeSet<String>,
}

struct Parser {
    version: Option<(u32, u32)>,
    target: Option<u32>,
    kernels: Vec<Kernel>,
    part: Part,
}

pub(super) fn parse(text: &str) -> std::result::Result<Module, ParseError> {
    let mut parser =
        Parser { version: None, target: None, kernels: Vec::new(), part: Part::Module };
    let mut last = 0;
    for (index, line) in text.lines().enumerate() {
        last = index + 1;
        let line = line.split("//").next().unwrap_or_default().trim();
        let error = |message| ParseError { line: last, message };
        parser.line(line, last).map_err(error)?;
    }
    parser.finish().map_err(|message| ParseError { line: last, message })
}

impl Parser {
    fn line(&mut self, line: &str, number: usize) -> Result<()> {
        if line.is_empty() {
            return Ok(());
        }
        match std::mem::replace(&mut self.part, Part::Module) {
            Part::Module => self.directive(line)?,
            Part::Header(text) => self.part = header(text + " " + line)?,
            Part::Directives(mut builder) => {
                self.part = if line == "{" {
                    Part::Body(builder)
                } else {
                    builder.bound(line)?;
                    Part::Directives(builder)
                }
            }
            Part::Body(builder) if line == "}" => self.kernels.push(builder.finish()?),
            Part::Body(mut builder) => {
                builder.line(line, number)?;
                self.part = Part::Body(builder);
            }
        }
        Ok(())
    }

    /// A line outside of kernels.
    fn directive(&mut self, line: &str) -> Result<()> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        let unknown = || format!("unknown directive {line}");
        match name {
            ".version" => {
                let (major, minor) = rest.split_once('.').ok_or_else(unknown)?;
                let part = |text: &str| text.parse::<u32>().map_err(|_| unknown());
                self.version = Some((part(major)?, part(minor)?));
            }
            ".target" => {
                let target = rest.strip_prefix("sm_").and_then(|it| it.parse().ok());
                self.target = Some(target.ok_or_else(unknown)?);
            }
            ".address_size" if rest == "64" => {}
            // Variables may be declared; no known form of instruction can use them.
            ".global" if rest.ends_with(';') => {}
            ".visible" if rest.starts_with(".entry") => return self.directive(rest),
            ".entry" => self.part = header(rest.to_owned())?,
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn finish(self) -> Result<Module> {
        let Part::Module = self.part else { return Err("a kernel without an end".into()) };
        let version = self.version.ok_or("no .version")?;
        let target = self.target.ok_or("no .target")?;
        Ok(Module { version, target, kernels: self.kernels })
    }
}

/// `name( .param .u64 a, .param .u32 b )`, on one line or several.
fn header(text: String) -> Result<Part> {
    let Some((before, behind)) = text.split_once(')') else { return Ok(Part::Header(text)) };
    let (name, list) = before.split_once('(').ok_or("an entry without parameters")?;
    let mut parameters = Vec::new();
    for parameter in list.split(',').map(str::trim).filter(|it| !it.is_empty()) {
        let words: Vec<&str> = parameter.split_whitespace().collect();
        let (kind, name) = match words[..] {
            [".param", kind, name] => (kind.strip_prefix('.').and_then(Type::of), name),
            _ => (None, ""),
        };
        let kind = kind.filter(|_| !name.ends_with(']'));
        let kind = kind.ok_or_else(|| format!("unknown parameter {parameter}"))?;
        parameters.push((name.to_owned(), kind.bytes as usize));
    }
    let mut builder = Builder {
        name: name.trim().to_owned(),
        parameters: parameters.iter().map(|(_, bytes)| *bytes).collect(),
        max_threads: None,
        names: Names::new(parameters),
        code: Vec::new(),
        labels: HashMap::new(),
        branches: Vec::new(),
        forms: BTreeSet::new(),
    };
    match behind.trim() {
        "" => Ok(Part::Directives(builder)),
        "{" => Ok(Part::Body(builder)),
        rest => {
            builder.bound(rest)?;
            Ok(Part::Directives(builder))
        }
    }
}

impl Builder {
    /// A directive between the parameters and the body.
    fn bound(&mut self, line: &str) -> Result<()> {
        let (name, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        match name {
            ".maxntid" => {
                let sides = rest.split(',').map(|side| side.trim().parse::<u32>());
                let threads = sides.product::<std::result::Result<u32, _>>();
                self.max_threads = Some(threads.map_err(|_| format!("unknown bound {line}"))?);
            }
            ".minnctapersm" => {}
            _ => return Err(format!("unknown directive {line}")),
        }
        Ok(())
    }

    /// A line of the body: labels, declarations and instructions.
    fn line(&mut self, line: &str, number: usize) -> Result<()> {
        if line.starts_with(".loc") {
            return Ok(());
        }
        let mut rest = line;
        while let Some((label, behind)) = rest.split_once(':').filter(|(label, _)| is_label(label))
        {
            let here = self.code.len() as u32;
            if self.labels.insert(label.to_owned(), here).is_some() {
                return Err(format!("label {label} is there twice"));
            }
            rest = behind.trim();
        }
        while !rest.is_empty() {
            let (statement, behind) =
                rest.split_once(';').ok_or_else(|| format!("no semicolon behind {rest}"))?;
            self.statement(statement.trim(), number)?;
            rest = behind.trim();
        }
        Ok(())
    }

    fn statement(&mut self, statement: &str, line: usize) -> Result<()> {
        if let Some(declaration) = statement.strip_prefix(".reg") {
            return self.names.declare(declaration);
        }
        if statement.starts_with(".pragma") {
            return Ok(());
        }
        let (guard, statement) = self.guard(statement)?;
        let (mnemonic, operands) =
            statement.split_once(char::is_whitespace).unwrap_or((statement, ""));
        let operands = split(operands);
        let mut instruction = if matches!(mnemonic, "bra" | "bra.uni") {
            let [label] = operands[..] else { return Err("a branch has one label".into()) };
            self.branches.push((self.code.len(), label.to_owned()));
            decode::without_operands(Operation::Branch(0))
        } else {
            decode::decode(mnemonic, &operands, &mut self.names)?
        };
        (instruction.guard, instruction.skipped_if) = guard;
        instruction.line = line as u32;
        self.code.push(instruction);
        self.forms.insert(mnemonic.to_owned());
        Ok(())
    }

    /// The guard predicate of a statement, and the rest of the statement.
    fn guard<'a>(&mut self, statement: &'a str) -> Result<((u32, u64), &'a str)> {
        let Some(rest) = statement.strip_prefix('@') else { return Ok(((ALWAYS, 0), statement)) };
        let (name, rest) = rest.split_once(char::is_whitespace).ok_or("a guard of nothing")?;
        let (name, skipped_if) = name.strip_prefix('!').map_or((name, 0), |name| (name, 1));
        let (slot, _) = self.names.typed_register(name, Type::PREDICATE, false)?;
        Ok(((slot, skipped_if), rest.trim()))
    }

    fn finish(mut self) -> Result<Kernel> {
        for (index, label) in &self.branches {
            let target = self.labels.get(label).ok_or_else(|| format!("no label {label}"))?;
            self.code[*index].operation = Operation::Branch(*target);
        }
        Ok(Kernel {
            name: self.name,
            parameters: self.parameters,
            max_threads: self.max_threads,
            frame: self.names.frame,
            code: self.code,
            vectors: self.names.vectors,
            forms: self.forms,
        })
    }
}

fn is_label(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "$_".contains(c))
}

/// Operands, at commas that are not inside of braces.
fn split(operands: &str) -> Vec<&str> {
    let mut depth = 0;
    let parts = operands.split(|c| {
        depth += i32::from(c == '{') - i32::from(c == '}');
        c == ',' && depth == 0
    });
    parts.map(str::trim).filter(|part| !part.is_empty()).collect()
}
