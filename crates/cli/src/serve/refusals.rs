//! Logs rejected peers, with the reason: the engine reports them to its own log only.

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tracing::field::Field;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::messages::say;

/// Minimum interval of log lines: a peer that retries again and again must not fill a disk.
const PAUSE: Duration = Duration::from_millis(200);

/// The engine modules of the TLS handshake, and of the token check.
const TLS: &str = "zenoh_link_tls";
const TOKENS: &str = "zenoh_transport::unicast::establishment::accept";

struct Refusals {
    command: &'static str,
    last: Mutex<Option<Instant>>,
}

/// From now on this process logs the peers that it rejects.
pub(crate) fn announce(command: &'static str) {
    // This program has no other subscriber.
    let _ = tracing::subscriber::set_global_default(Refusals { command, last: Mutex::new(None) });
}

impl Subscriber for Refusals {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let wanted = match metadata.target() {
            target if target.starts_with(TLS) => Level::WARN,
            target if target.starts_with(TOKENS) => Level::DEBUG,
            _ => return false,
        };
        *metadata.level() <= wanted
    }

    fn event(&self, event: &Event<'_>) {
        let mut text = String::new();
        event.record(&mut |field: &Field, value: &dyn Debug| {
            if field.name() == "message" {
                text = format!("{value:?}");
            }
        });
        let Some(reason) = reason_in(event.metadata().target(), &text) else { return };
        let Ok(mut last) = self.last.lock() else { return };
        if last.is_none_or(|last| last.elapsed() >= PAUSE) {
            *last = Some(Instant::now());
            drop(last);
            say(self.command, format_args!("refused a connection: {reason}"));
        }
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// The readable part of an engine's log line; None for other lines.
fn reason_in(target: &str, line: &str) -> Option<String> {
    if target.starts_with(TLS) {
        return Some(line.split(". Hint:").next().unwrap_or(line).to_owned());
    }
    if let Some((_, told)) = line.split_once("UsrPwd extension") {
        let invalid = told.contains("Invalid");
        return Some(if invalid { "its token is another one" } else { "it has no token" }.into());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::reason_in as reason;

    #[test]
    fn lines_of_the_engine_become_reasons() {
        let said = |target: &str, line: &str| reason(target, line).unwrap_or_default();
        let token = "UsrPwd extension - Recv OpenSyn. Invalid password. at a.rs:7";
        assert_eq!(said(super::TOKENS, token), "its token is another one");
        let token = "UsrPwd extension - Recv InitSyn. Expected extension.";
        assert_eq!(said(super::TOKENS, token), "it has no token");
        assert_eq!(said(super::TOKENS, "Received a close message"), "");
        let tls = "invalid peer certificate: UnknownIssuer. Hint: increase the limit.";
        assert_eq!(said(super::TLS, tls), "invalid peer certificate: UnknownIssuer");
    }
}
