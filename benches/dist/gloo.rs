//! Gloo, as PyTorch has it, in processes of its own: `gloo.py`.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::cases::Case;
use crate::common::wait::free_address;
use crate::python::PythonPeer;

const PYTHON: &str = "target/bench/torch/bin/python";

/// None where PyTorch is not installed, or for a rule, which gloo does not have.
pub fn start(case: &Case) -> io::Result<Option<PythonPeer>> {
    if !Path::new(PYTHON).exists() {
        println!("gloo: left out; `make bench-python` installs PyTorch.");
        return Ok(None);
    }
    if !case.rule.is_empty() {
        return Ok(None);
    }
    let root = free_address();
    let commands = ["1", "0"].into_iter().map(|rank| {
        let mut command = Command::new(PYTHON);
        command.args(["benches/dist/gloo.py", rank, &root]).env("GLOO_SOCKET_IFNAME", "lo");
        command
    });
    PythonPeer::start("gloo, send + receive", case, commands).map(Some)
}
