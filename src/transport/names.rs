//! Addresses of processes with the identity in front, as in `worker.3@`.
//!
//! An address is `host:port` for a process that listens, or the name of one that does not. The identity
//! precedes such a name if the process has a credential. Workers listen for each other alone.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use crate::config::address::has_port;
use crate::credentials::Identity;

/// The identity in front of an address, and the address at which the process is reached.
pub(crate) fn who_and_address(from: &str) -> (Option<Identity>, &str) {
    let Some((who, name)) = from.split_once('@') else { return (None, from) };
    let Some(who) = Identity::parse(who) else { return (None, from) };
    (Some(who), if who.listens() || has_port(name) { name } else { from })
}

/// An address, or a name, with the identity of its process in front.
pub(super) fn with_identity(who: Option<Identity>, name: &str) -> String {
    who.map_or_else(|| name.into(), |who| format!("{who}@{name}"))
}

/// Name of a process that does not listen: its host, its process id, and a random number.
pub(super) fn name_of_this_process() -> String {
    let host = crate::sys::host_name();
    // Each `RandomState` has new random keys.
    let chance = RandomState::new().build_hasher().finish() >> 32;
    format!("{host}.{}.{chance:08x}", std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_leads_to_the_address() {
        let known = |who: &str| Identity::parse(who);
        assert_eq!(who_and_address("worker.3@host.1.a"), (known("worker.3"), "worker.3@host.1.a"));
        assert_eq!(who_and_address("server@10.0.0.2:7"), (known("server"), "10.0.0.2:7"));
        assert_eq!(who_and_address("worker.1@10.0.0.2:7"), (known("worker.1"), "10.0.0.2:7"));
        assert_eq!(who_and_address("host.1.a"), (None, "host.1.a"));
        assert_eq!(who_and_address("a user@host"), (None, "a user@host"));
        assert_eq!(with_identity(known("worker"), "host.1.a"), "worker@host.1.a");
        assert_eq!(with_identity(None, "host.1.a"), "host.1.a");
    }
}
