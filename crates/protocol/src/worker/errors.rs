//! Texts of failures: the call, the key, the round, and the members that it waits for.

use super::keys::WorkerKey;
use super::operation::{CatchUpTarget, Operation, OperationKind, PullDependency, RemovalRollback};
use crate::job::{Failure, MS, Peer, Reason, Role, TextPart, Time, list, naming, words};
use crate::message::COLLECTIVE;

/// `push: key 7, round 3`; a push that has not begun has no round yet.
fn name<D>(op: &Operation<D>) -> Vec<TextPart> {
    let call = op.kind().name();
    let which = match op.what {
        OperationKind::Set { version, .. } if version > COLLECTIVE => {
            return words(format!("agreement {}", version - COLLECTIVE));
        }
        OperationKind::Set { version: number, .. }
        | OperationKind::Learn(CatchUpTarget::Setting(number))
        | OperationKind::Barrier { number, .. }
        | OperationKind::Resume { number } => return words(format!("{call} {number}")),
        OperationKind::Learn(CatchUpTarget::Key(_))
        | OperationKind::Done
        | OperationKind::Meet { .. }
        | OperationKind::Form
        | OperationKind::Close => return words(call),
        OperationKind::Pull { after: PullDependency::All, .. } => ", behind all pushes".into(),
        _ if op.round() == 0 => String::new(),
        _ => format!(", round {}", op.round()),
    };
    naming(&format!("{call}: "), op.key, which)
}

/// The words before the first key.
fn beginning(text: &[TextPart]) -> &str {
    if let Some(TextPart::Words(words)) = text.first() { words } else { "" }
}

/// A failure from elsewhere, with the name of the call that it ended.
pub(super) fn during<D>(op: &Operation<D>, failure: Failure) -> Failure {
    let name = name(op);
    let call = beginning(&name).trim_end_matches(": ");
    match beginning(&failure.text).strip_prefix(call) {
        Some(rest) if rest.starts_with(": ") => failure,
        _ => Failure { text: [name, words(": "), failure.text].concat(), ..failure },
    }
}

/// `an earlier call of this worker, pull: key 7, round 3, of 1200 ms ago`
pub(super) fn earlier<D>(op: &Operation<D>, now: Time) -> Vec<TextPart> {
    let age = now.saturating_sub(op.began) / MS;
    let (call, when) = ("an earlier call of this worker, ", format!(", of {age} ms ago"));
    [words(call), name(op), words(when)].concat()
}

/// Failure of a passed deadline; `earlier` is the operation that this one waits for before it starts.
pub(super) fn overdue<D>(
    op: &Operation<D>,
    key: Option<&WorkerKey>,
    earlier: Option<Vec<TextPart>>,
) -> Failure {
    let waited = (op.deadline.saturating_sub(op.began)) / MS;
    let awaited = op.awaited.as_ref().filter(|peers| !peers.is_empty());
    let member = || match (awaited, op.started) {
        (Some(peers), true) => list(peers),
        (None, true) => silent(op, key).to_string(),
        (Some(peers), false) => format!("the init of {}", list(peers)),
        (None, false) => "the init of its key".into(),
    };
    let for_what = earlier.unwrap_or_else(|| words(member()));
    let kept = match op.what {
        OperationKind::Remove { back: RemovalRollback::No | RemovalRollback::Asked }
            if op.started =>
        {
            "; server 0 has not said yet whether the key is kept"
        }
        OperationKind::Remove { .. } => "; the key is kept",
        _ => "",
    };
    let late = words(format!(": not done within {waited} ms, waiting for "));
    let remedy = if waits_for_a_round(op) { ORDERS } else { "" };
    let text = [name(op), late, for_what, words(kept), words(remedy)].concat();
    Failure { reason: Reason::Timeout, text }
}

/// The likely cause where a round waits for workers of the job, none of which is lost.
const ORDERS: &str = "; workers that call keys in different orders wait for each other: call keys in the \
                      same order, in one list, or with tickets";

/// Whether an operation of a key has begun and waits for the pushes of other workers.
fn waits_for_a_round<D>(op: &Operation<D>) -> bool {
    let of_round = match op.what {
        OperationKind::Push { .. } => true,
        OperationKind::Pull { after, .. } => !matches!(after, PullDependency::All),
        _ => false,
    };
    let mut awaited = op.awaited.iter().flat_map(|peers| peers.iter());
    of_round && op.started && awaited.any(|peer| peer.role == Role::Worker)
}

/// Without an answer to the query: the member that did not answer.
pub(super) fn silent<D>(op: &Operation<D>, key: Option<&WorkerKey>) -> Peer {
    match &op.what {
        OperationKind::Barrier { .. }
        | OperationKind::Resume { .. }
        | OperationKind::Done
        | OperationKind::Meet { .. }
        | OperationKind::Close => Peer::SCHEDULER,
        OperationKind::Form => Peer::server(op.unanswered.first().unwrap_or(0)),
        OperationKind::Push { .. } | OperationKind::Pull { .. } => {
            let slice = op.unanswered.first().or(op.unsent.first());
            let server = slice.zip(key).and_then(|(slice, key)| key.server_of(slice));
            Peer::server(server.unwrap_or(0))
        }
        _ => Peer::server(0),
    }
}
