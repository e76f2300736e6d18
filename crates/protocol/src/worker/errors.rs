//! Texts of failures: the call, the key, the round, and the members that it waits for.

use super::keys::WorkerKey;
use super::operation::{CatchUpTarget, Operation, OperationKind, PullDependency, RemovalRollback};
use crate::job::{Failure, MS, Peer, Reason, Time, label, list};

/// `push: key 7, round 3`; a push that has not begun has no round yet.
fn name<D>(op: &Operation<D>) -> String {
    let key = label(op.key);
    let round = match op.round() {
        0 => String::new(),
        round => format!(", round {round}"),
    };
    match &op.what {
        OperationKind::Init { .. } => format!("init: {key}"),
        OperationKind::Push { answer: false, .. } => format!("push: {key}{round}"),
        OperationKind::Push { .. } => format!("pushpull: {key}{round}"),
        OperationKind::Pull { after: PullDependency::All, .. } => {
            format!("pull: {key}, behind all pushes")
        }
        OperationKind::Pull { .. } => format!("pull: {key}{round}"),
        OperationKind::Restore { .. } => format!("load: {key}"),
        OperationKind::Find => format!("find: {key}"),
        OperationKind::Remove { .. } => format!("remove: {key}"),
        OperationKind::Set { version, .. }
        | OperationKind::Learn(CatchUpTarget::Setting(version)) => {
            format!("setting {version}")
        }
        OperationKind::Learn(CatchUpTarget::Key(_)) => "find".into(),
        OperationKind::Barrier { number, .. } => format!("barrier {number}"),
        OperationKind::Done => "done".into(),
        OperationKind::Close => "close".into(),
    }
}

/// A failure from elsewhere, with the name of the call that it ended.
pub(super) fn during<D>(op: &Operation<D>, failure: Failure) -> Failure {
    let name = name(op);
    let call = name.split(':').next().unwrap_or(&name);
    match failure.text.strip_prefix(call).and_then(|rest| rest.strip_prefix(": ")) {
        Some(_) => failure,
        None => Failure { text: format!("{name}: {}", failure.text), ..failure },
    }
}

/// `an earlier call of this worker, pull: key 7, round 3, of 1200 ms ago`
pub(super) fn earlier<D>(op: &Operation<D>, now: Time) -> String {
    let age = now.saturating_sub(op.began) / MS;
    format!("an earlier call of this worker, {}, of {age} ms ago", name(op))
}

/// Failure of a passed deadline; `earlier` is the operation that this one waits for before it starts.
pub(super) fn overdue<D>(
    op: &Operation<D>,
    key: Option<&WorkerKey>,
    earlier: Option<String>,
) -> Failure {
    let waited = (op.deadline.saturating_sub(op.began)) / MS;
    let awaited = op.awaited.as_deref().filter(|peers| !peers.is_empty());
    let for_what = match (earlier, awaited, op.started) {
        (Some(earlier), _, _) => earlier,
        (None, Some(peers), true) => list(peers),
        (None, None, true) => silent(op, key).to_string(),
        (None, Some(peers), false) => format!("the init of {}", list(peers)),
        (None, None, false) => "the init of its key".into(),
    };
    let kept = match op.what {
        OperationKind::Remove { back: RemovalRollback::No | RemovalRollback::Asked }
            if op.started =>
        {
            "; server 0 has not said yet whether the key is kept"
        }
        OperationKind::Remove { .. } => "; the key is kept",
        _ => "",
    };
    let text = format!("{}: not done within {waited} ms, waiting for {for_what}{kept}", name(op));
    Failure::new(Reason::Timeout, text)
}

/// Without an answer to the query: the member that did not answer.
pub(super) fn silent<D>(op: &Operation<D>, key: Option<&WorkerKey>) -> Peer {
    match &op.what {
        OperationKind::Barrier { .. } | OperationKind::Done | OperationKind::Close => {
            Peer::SCHEDULER
        }
        OperationKind::Push { .. } | OperationKind::Pull { .. } => {
            let slice = op.unanswered.first().or(op.unsent.first());
            let server = slice.zip(key).and_then(|(slice, key)| key.server_of(slice));
            Peer::server(server.unwrap_or(0))
        }
        _ => Peer::server(0),
    }
}
