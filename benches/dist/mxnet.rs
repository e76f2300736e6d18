//! MXNet 1.9.1's distributed store, in processes of its own: `mxnet.py`.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::cases::Case;
use crate::common::wait::free_address;
use crate::python::PythonPeer;

const PYTHON: &str = "target/bench/venv/bin/python";
/// The subject's name.
pub const NAME: &str = "MXNet, push + pull";

/// None where it is not installed.
pub fn start(case: &Case) -> io::Result<Option<PythonPeer>> {
    if !Path::new(PYTHON).exists() {
        println!("MXNet: left out; `make bench-peers` installs it.");
        return Ok(None);
    }
    let root = free_address();
    let (host, port) = root.rsplit_once(':').unwrap_or(("127.0.0.1", "0"));
    let commands = ["scheduler", "server", "worker"].into_iter().map(|role| {
        let mut command = Command::new(PYTHON);
        command
            .arg("benches/dist/mxnet.py")
            .env("DMLC_ROLE", role)
            .env("DMLC_PS_ROOT_URI", host)
            .env("DMLC_PS_ROOT_PORT", port)
            .env("DMLC_NUM_WORKER", "1")
            .env("DMLC_NUM_SERVER", "1")
            .env("DMLC_INTERFACE", "lo");
        command
    });
    PythonPeer::start(NAME, case, commands).map(Some)
}
