//! Certificates of a job over TLS, made by the program `kvstore`.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Names the program that makes the certificates.
const PROGRAM: &str = "KVSTORE_PROGRAM";

/// Gone with this.
pub struct Credentials(PathBuf);

/// The path of the program.
pub fn program() -> io::Result<PathBuf> {
    let path = std::env::var_os(PROGRAM).map(PathBuf::from).filter(|path| path.is_file());
    path.ok_or_else(|| {
        io::Error::other(format!(
            "{PROGRAM} must be the path of the program kvstore, such as target/release/kvstore: it \
             makes the certificates of the jobs over TLS"
        ))
    })
}

/// Where those of the job at this address are.
pub fn folder(root: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-bench-{}", root.replace(':', "-")))
}

impl Credentials {
    pub fn make(root: &str) -> io::Result<Self> {
        let made = Self(folder(root));
        let program = program()?;
        for what in ["init", "scheduler", "server", "worker"] {
            let mut command = Command::new(&program);
            command.args(["certs", what, "--dir"]).arg(&made.0).stderr(Stdio::null());
            if !command.status()?.success() {
                return Err(io::Error::other(format!("kvstore certs {what} failed")));
            }
        }
        Ok(made)
    }
}

impl Drop for Credentials {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
