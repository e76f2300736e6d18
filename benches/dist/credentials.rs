//! Certificates of a job over TLS, made by the program `kvstore`.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Not in a build without the program.
const KVSTORE: Option<&str> = option_env!("CARGO_BIN_EXE_kvstore");

/// Gone with this.
pub struct Credentials(PathBuf);

/// TLS needs other threads of the engine, which all subjects then have.
pub fn can_be_made() -> bool {
    KVSTORE.is_some() && std::env::var_os("ZENOH_RUNTIME").is_some()
}

/// Where those of the job at this address are.
pub fn folder(root: &str) -> PathBuf {
    std::env::temp_dir().join(format!("kvstore-bench-{}", root.replace(':', "-")))
}

impl Credentials {
    pub fn make(root: &str) -> io::Result<Self> {
        let made = Self(folder(root));
        let program = KVSTORE.ok_or(io::ErrorKind::NotFound)?;
        for what in ["init", "scheduler", "server", "worker"] {
            let mut command = Command::new(program);
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
