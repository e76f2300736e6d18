//! The TLS configuration of a listener, renewed from its files while the process runs.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustls::ServerConfig;

use super::Tls;
use crate::error::{Error, Result};
use crate::log::{Level, log};
use crate::sys::sync::Mutex;

/// Minimum interval between two readings of the files.
const INTERVAL: Duration = Duration::from_secs(1);

/// The TLS configuration of a listener. It follows its files within a second, so that certificates are
/// renewed by replacing the files. While the files cannot be read or do not match, the last good
/// configuration remains in use.
pub(crate) struct ListenerTls {
    tls: Tls,
    /// Held while the files are read: other threads then get the new configuration.
    last: Mutex<LastConfig>,
}

struct LastConfig {
    config: Arc<ServerConfig>,
    read_at: Instant,
    /// Why the last reading failed; each reason is logged once.
    failure: Option<String>,
}

impl ListenerTls {
    /// Reads the files; an error if they are not good at the start.
    pub(crate) fn new(tls: Tls) -> Result<Self> {
        Self::new_at(tls, Instant::now())
    }

    fn new_at(tls: Tls, now: Instant) -> Result<Self> {
        let config = tls.server()?;
        Ok(Self { tls, last: Mutex::new(LastConfig { config, read_at: now, failure: None }) })
    }

    /// The configuration for a connection that was accepted now.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        self.config_at(Instant::now())
    }

    fn config_at(&self, now: Instant) -> Arc<ServerConfig> {
        let mut last = self.last.lock();
        let mut failure = None;
        if now.saturating_duration_since(last.read_at) >= INTERVAL {
            last.read_at = now;
            failure = last.renew(self.tls.server());
        }
        let config = Arc::clone(&last.config);
        // The sink of the log is code of the host, which may block.
        drop(last);
        if let Some(reason) = failure {
            log(Level::Warn, || {
                format!("TLS keeps the certificates that it read before: {reason}")
            });
        }
        config
    }
}

impl LastConfig {
    /// Stores the result of a reading; returns a failure that has not been logged.
    fn renew(&mut self, read: Result<Arc<ServerConfig>>) -> Option<String> {
        match read {
            Ok(config) => {
                self.config = config;
                self.failure = None;
                None
            }
            Err(error) => {
                let reason = Error::message(&error).to_owned();
                let is_new = self.failure.as_ref() != Some(&reason);
                self.failure = Some(reason.clone());
                is_new.then_some(reason)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    const CERTS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/certs");

    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Self {
            let name = format!("kvstore-listener-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            let _ = fs::remove_dir_all(&path);
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        /// Replaces the certificate and the key.
        fn put(&self, certificate: &str, key: &str) {
            for (from, to) in [(certificate, "own.pem"), (key, "own.key")] {
                fs::copy(Path::new(CERTS).join(from), self.0.join(to)).unwrap();
            }
        }

        fn tls(&self) -> Tls {
            let of = |name: &str| self.0.join(name).display().to_string();
            Tls {
                ca_file: format!("{CERTS}/ca.pem"),
                cert_file: of("own.pem"),
                key_file: of("own.key"),
                verify_names: true,
            }
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_listener_reads_its_files_again_after_a_second_and_keeps_the_last_good_ones() {
        let folder = Folder::new("renews");
        let second = Duration::from_secs(1);
        let start = Instant::now();
        folder.put("server.pem", "server.key");
        let listener = ListenerTls::new_at(folder.tls(), start).unwrap();
        let first = listener.config_at(start);

        folder.put("scheduler.pem", "scheduler.key");
        let early = listener.config_at(start + second / 2);
        assert!(Arc::ptr_eq(&early, &first), "the files were read within a second");
        let renewed = listener.config_at(start + second);
        assert!(!Arc::ptr_eq(&renewed, &first));

        // A key of another certificate: the files are being replaced.
        folder.put("scheduler.pem", "server.key");
        assert!(Arc::ptr_eq(&listener.config_at(start + second * 2), &renewed));
        assert!(listener.last.lock().failure.as_ref().is_some_and(|it| it.contains("own.key")));
        fs::remove_file(folder.0.join("own.pem")).unwrap();
        assert!(Arc::ptr_eq(&listener.config_at(start + second * 3), &renewed));
        assert!(listener.last.lock().failure.as_ref().is_some_and(|it| it.contains("own.pem")));

        folder.put("server.pem", "server.key");
        assert!(Arc::ptr_eq(&listener.config_at(start + second * 7 / 2), &renewed));
        assert!(!Arc::ptr_eq(&listener.config_at(start + second * 4), &renewed));
        assert_eq!(listener.last.lock().failure, None);
    }

    #[test]
    fn each_reason_why_files_are_not_read_is_logged_once() {
        let folder = Folder::new("logs");
        folder.put("server.pem", "server.key");
        let listener = ListenerTls::new(folder.tls()).unwrap();
        let mut last = listener.last.lock();
        let failure = |text: &str| Err(crate::error::fail!(Io, "{text}"));
        assert_eq!(last.renew(failure("one")).as_deref(), Some("one"));
        assert_eq!(last.renew(failure("one")), None);
        assert_eq!(last.renew(failure("two")).as_deref(), Some("two"));
        assert_eq!(last.renew(folder.tls().server()), None);
        assert_eq!(last.renew(failure("two")).as_deref(), Some("two"));
    }

    #[test]
    fn a_listener_without_good_files_does_not_start() {
        let folder = Folder::new("starts");
        assert!(ListenerTls::new(folder.tls()).is_err());
        folder.put("server.pem", "worker.key");
        assert!(ListenerTls::new(folder.tls()).is_err());
    }
}
