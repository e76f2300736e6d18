//! `kvstore run --role-env`: the environment of each process of a job, for other launchers.

use std::collections::BTreeMap;
use std::io::{self, Write};

use anyhow::{Context, Result};
use serde::Serialize;

use crate::launch::hosts::placement::ProcessPlacement;
use crate::launch::hosts::shell::quote;
use crate::launch::plan::{LaunchPlan, Process};

/// The JSON form of a process.
#[derive(Serialize)]
struct ProcessJson<'a> {
    role: &'static str,
    rank: u32,
    /// Missing on the machine of the launcher.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<&'a str>,
    environment: BTreeMap<&'a str, &'a str>,
    /// Missing if no program was given.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
}

/// The words of a process; none if it runs a program that was not given.
fn words(process: &Process, plan: &LaunchPlan) -> Result<Vec<String>> {
    if plan.program.is_empty() && plan.has_program(process.name.role) {
        return Ok(Vec::new());
    }
    let program = process.program.clone().unwrap_or_else(|| "kvstore".into());
    let words = std::iter::once(&program).chain(&process.arguments);
    let texts: Option<Vec<String>> = words.map(|word| Some(word.to_str()?.to_owned())).collect();
    texts.context("PROGRAM is not UTF-8")
}

/// The environment variables of a process.
fn environment(process: &Process) -> impl Iterator<Item = (&str, &str)> {
    process.environment.iter().filter_map(|(name, value)| Some((name.as_str(), value.as_deref()?)))
}

/// A line for each process, which a shell on its machine can run.
pub(crate) fn print_shell(plan: &LaunchPlan, site: &ProcessPlacement) -> Result<()> {
    let mut out = io::stdout().lock();
    for process in plan.processes() {
        let host = site.host(&process).map_or(String::new(), |host| format!(" on {host}"));
        writeln!(out, "# {}{host}", process.name)?;
        let variables =
            environment(&process).map(|(name, value)| format!("{name}={}", quote(value)));
        let command = words(&process, plan)?;
        let line: Vec<String> = variables.chain(command.iter().map(|word| quote(word))).collect();
        writeln!(out, "{}", line.join(" "))?;
    }
    Ok(out.flush()?)
}

/// One object, `{"processes": [...]}`.
pub(crate) fn print_json(plan: &LaunchPlan, site: &ProcessPlacement) -> Result<()> {
    let processes = plan.processes();
    let mut entries = Vec::new();
    for process in &processes {
        entries.push(ProcessJson {
            role: process.name.role.name(),
            rank: process.name.rank,
            host: site.host(process),
            environment: environment(process).collect(),
            command: words(process, plan)?,
        });
    }
    let mut out = io::stdout().lock();
    serde_json::to_writer_pretty(&mut out, &BTreeMap::from([("processes", entries)]))?;
    writeln!(out)?;
    Ok(out.flush()?)
}
