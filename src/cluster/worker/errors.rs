//! What the texts of failures say: the call, the key, the round, and whom it waits for.

use super::keys::Key;
use super::operation::{After, Of, Operation, What};
use crate::cluster::common::{Failure, MS, Peer, Reason, label, list};

/// `push: key 7, round 3`; a push that has not begun has no round yet.
fn name<D>(op: &Operation<D>) -> String {
    let key = label(op.key);
    let round = match op.round() {
        0 => String::new(),
        round => format!(", round {round}"),
    };
    match &op.what {
        What::Init { .. } => format!("init: {key}"),
        What::Push { answer: false, .. } => format!("push: {key}{round}"),
        What::Push { .. } => format!("pushpull: {key}{round}"),
        What::Pull { after: After::All, .. } => format!("pull: {key}, behind all pushes"),
        What::Pull { .. } => format!("pull: {key}{round}"),
        What::Restore { .. } => format!("load: {key}"),
        What::Find => format!("find: {key}"),
        What::Remove { .. } => format!("remove: {key}"),
        What::Set { version, .. } | What::Learn(Of::Setting(version)) => {
            format!("setting {version}")
        }
        What::Learn(Of::Key(_)) => "find".into(),
        What::Barrier { number } => format!("barrier {number}"),
        What::Done => "done".into(),
        What::Close => "close".into(),
    }
}

/// A failure that came from elsewhere, with what it ended.
pub(super) fn during<D>(op: &Operation<D>, failure: Failure) -> Failure {
    let name = name(op);
    let call = name.split(':').next().unwrap_or(&name);
    match failure.text.strip_prefix(call).and_then(|rest| rest.strip_prefix(": ")) {
        Some(_) => failure,
        None => Failure { text: format!("{name}: {}", failure.text), ..failure },
    }
}

/// The deadline passed.
pub(super) fn overdue<D>(op: &Operation<D>, key: Option<&Key>) -> Failure {
    let waited = (op.deadline.saturating_sub(op.began)) / MS;
    let state = match (&op.awaited, op.started) {
        (Some(peers), true) if !peers.is_empty() => format!("waiting for {}", list(peers)),
        (_, true) => format!("waiting for {}", silent(op, key)),
        (_, false) => "waiting for earlier calls of this worker".into(),
    };
    Failure::new(Reason::Timeout, format!("{}: not done within {waited} ms, {state}", name(op)))
}

/// Nobody said who is missing: those that did not answer.
pub(super) fn silent<D>(op: &Operation<D>, key: Option<&Key>) -> Peer {
    match &op.what {
        What::Barrier { .. } | What::Done | What::Close => Peer::SCHEDULER,
        What::Push { .. } | What::Pull { .. } => {
            let slice = op.unanswered.first().or(op.unsent.first());
            let server = slice.zip(key).and_then(|(slice, key)| key.server_of(slice));
            Peer::server(server.unwrap_or(0))
        }
        _ => Peer::server(0),
    }
}
