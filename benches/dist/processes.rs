//! Processes that a subject needs: ended with it, and their processor time.

use std::fs;
use std::io;
use std::process::{Child, Command};

#[derive(Default)]
pub struct Processes {
    children: Vec<Child>,
    /// Whether this process works for the subject as well.
    and_this: bool,
}

impl Processes {
    /// Those that are to come, and this one.
    pub fn and_this() -> Self {
        Self { children: Vec::new(), and_this: true }
    }

    pub fn spawn(&mut self, command: &mut Command) -> io::Result<&mut Child> {
        self.children.push(command.spawn()?);
        self.children.last_mut().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Processor seconds of all of them so far.
    pub fn cpu_s(&self) -> f64 {
        let this = self.and_this.then(std::process::id);
        this.into_iter().chain(self.children.iter().map(Child::id)).filter_map(cpu_s).sum()
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// User and system time of a process: proc(5), fields 14 and 15 of stat, in ticks of 10 ms.
fn cpu_s(process: u32) -> Option<f64> {
    let text = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(ticks as f64 / 100.0)
}

/// Resident bytes of a process: proc(5), `VmRSS` of status.
pub fn resident(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) << 10
}
