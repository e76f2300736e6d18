//! Identities: the processes that a credential stands for.

use std::fmt;

use crate::role::Role;

/// The role that a credential grants its holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CredentialKind {
    Scheduler,
    Server,
    Worker,
    /// A worker that only pulls.
    Reader,
}

/// The name on a credential: a kind and, if it is for one process only, its rank, as `worker.3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) kind: CredentialKind,
    pub(crate) rank: Option<u32>,
}

const KINDS: [(CredentialKind, &str); 4] = [
    (CredentialKind::Scheduler, "scheduler"),
    (CredentialKind::Server, "server"),
    (CredentialKind::Worker, "worker"),
    (CredentialKind::Reader, "reader"),
];

impl CredentialKind {
    pub(crate) fn role(self) -> Role {
        match self {
            CredentialKind::Scheduler => Role::Scheduler,
            CredentialKind::Server => Role::Server,
            CredentialKind::Worker | CredentialKind::Reader => Role::Worker,
        }
    }
}

impl Identity {
    pub(crate) const SCHEDULER: Self = Self { kind: CredentialKind::Scheduler, rank: None };

    /// Any process of a kind.
    pub(crate) fn any(kind: CredentialKind) -> Self {
        Self { kind, rank: None }
    }

    pub(crate) fn of_rank(kind: CredentialKind, rank: u32) -> Self {
        Self { kind, rank: Some(rank) }
    }

    /// None for a name that is no identity.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (name, rank) = match text.split_once('.') {
            Some((name, rank)) => (name, Some(rank)),
            None => (text, None),
        };
        let (kind, _) = KINDS.into_iter().find(|(_, known)| *known == name)?;
        let rank = match rank {
            None => None,
            Some(_) if kind == CredentialKind::Scheduler => return None,
            // Each identity has one spelling.
            Some(digits) => {
                let rank: u32 = digits.parse().ok()?;
                (rank.to_string() == digits).then_some(Some(rank))?
            }
        };
        Some(Self { kind, rank })
    }

    /// Whether its holder may be such a process; without a rank, one whose scheduler chooses the
    /// rank.
    pub(crate) fn allows(self, role: Role, rank: Option<u32>) -> bool {
        self.kind.role() == role && (self.rank.is_none() || self.rank == rank)
    }

    pub(crate) fn is_reader(self) -> bool {
        self.kind == CredentialKind::Reader
    }

    /// Whether peers dial it.
    pub(crate) fn listens(self) -> bool {
        matches!(self.kind, CredentialKind::Scheduler | CredentialKind::Server)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("", |(_, name)| name);
        f.write_str(name)?;
        self.rank.map_or(Ok(()), |rank| write!(f, ".{rank}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{CredentialKind, Identity};
    use crate::role::Role;

    #[test]
    fn names_are_read_as_they_are_written_and_no_others() {
        for name in ["scheduler", "server", "server.0", "worker.65535", "worker", "reader.2"] {
            assert_eq!(Identity::parse(name).unwrap().to_string(), name);
        }
        for name in
            ["", "boss", "worker.", "worker.01", "worker.+1", "worker.x", "worker.1.2", "Worker"]
        {
            assert_eq!(Identity::parse(name), None, "{name}");
        }
        assert_eq!(Identity::parse("scheduler.0"), None);
    }

    #[test]
    fn a_rank_is_one_process_and_none_is_any() {
        let (one, any) =
            (Identity::of_rank(CredentialKind::Worker, 3), Identity::any(CredentialKind::Worker));
        assert!(one.allows(Role::Worker, Some(3)) && any.allows(Role::Worker, Some(3)));
        assert!(any.allows(Role::Worker, None));
        for rank in [None, Some(2)] {
            assert!(!one.allows(Role::Worker, rank));
        }
        for role in [Role::Server, Role::Scheduler] {
            assert!(!one.allows(role, Some(3)) && !any.allows(role, None));
        }
        assert!(Identity::any(CredentialKind::Reader).allows(Role::Worker, Some(0)));
    }
}
