//! The names of processes in Zenoh (key expressions).
//!
//! An address is `host:port` for a process that listens, or the name of one that does not. The identity
//! precedes such a name, as in `worker.3@`, if the process has a credential. A Zenoh name has two parts for
//! the receiver, with `-` for every process that listens. It has two parts for the sender: the identity on
//! the credential, or `-` without one, and the name.

use std::sync::Arc;

use crate::config::address::has_port;
use crate::credentials::Identity;
use crate::transport::TransportConfig;

/// There is one scheduler, whatever its address is called.
const SCHEDULER: &str = "scheduler";
const NOBODY: &str = "-";

/// Names of one process and of its peers.
#[derive(Debug, Clone)]
pub(super) struct ProcessNames {
    own: Arc<str>,
    who: Option<Identity>,
    root: Arc<str>,
}

impl ProcessNames {
    pub(super) fn new(own: &Arc<str>, place: &TransportConfig) -> Self {
        let who = place.credentials.as_ref().map(|credentials| credentials.identity);
        Self { own: Arc::clone(own), who, root: Arc::clone(&place.root) }
    }

    pub(super) fn is_root(&self, address: &str) -> bool {
        *self.root == *address
    }

    /// Two parts that name a receiver.
    pub(super) fn place(&self, address: &str) -> String {
        match address.split_once('@') {
            _ if self.is_root(address) => format!("{NOBODY}/{SCHEDULER}"),
            Some((who, name)) if !has_port(address) => format!("{who}/{name}"),
            _ => format!("{NOBODY}/{address}"),
        }
    }

    pub(super) fn place_of_own(&self) -> String {
        self.place(&self.own)
    }

    /// Two parts that name this process as the sender.
    pub(super) fn speaker(&self) -> String {
        let place = self.place_of_own();
        let name = place.split_once('/').map_or("", |(_, name)| name);
        match self.who {
            Some(who) => format!("{who}/{name}"),
            None => format!("{NOBODY}/{name}"),
        }
    }

    /// The address of the sender at the end of a name, with the identity in front of it.
    pub(super) fn from(&self, name: &str) -> String {
        let mut parts = name.rsplit('/');
        let (own, who) = (parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        let own = if own == SCHEDULER { &*self.root } else { own };
        if who == NOBODY { own.into() } else { format!("{who}@{own}") }
    }

    /// The address of an ended process, from its liveliness token. None if the identity on the token may not
    /// own that address.
    pub(super) fn gone(&self, name: &str) -> Option<String> {
        let from = self.from(name);
        let (who, address) = who_and_address(&from);
        let may =
            who.is_none_or(|who| who.listens() == (has_port(address) || self.is_root(address)));
        may.then(|| address.into())
    }
}

/// The identity in front of an address, and the address at which the process is reached.
pub(crate) fn who_and_address(from: &str) -> (Option<Identity>, &str) {
    let Some((who, name)) = from.split_once('@') else { return (None, from) };
    let Some(who) = Identity::parse(who) else { return (None, from) };
    (Some(who), if who.listens() { name } else { from })
}

/// Whether a process that does not listen may be on this machine, judged by its name.
pub(super) fn is_of_this_host(address: &str) -> bool {
    let name = address.split_once('@').map_or(address, |(_, name)| name);
    let host = crate::sys::host_name();
    name.strip_prefix(&*host).is_some_and(|rest| rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_says_who_speaks_and_how_to_answer() {
        let root: Arc<str> = "10.0.0.1:9".into();
        let names = |own: &str, who: Option<&str>| ProcessNames {
            own: own.into(),
            who: who.map(|who| Identity::parse(who).unwrap()),
            root: Arc::clone(&root),
        };
        let worker = names("worker.3@host.1.a", Some("worker.3"));
        assert_eq!(worker.place("10.0.0.1:9"), "-/scheduler");
        assert_eq!(worker.place("10.0.0.2:7"), "-/10.0.0.2:7");
        assert_eq!(worker.place_of_own(), "worker.3/host.1.a");
        assert_eq!(worker.speaker(), "worker.3/host.1.a");
        let server = names("10.0.0.2:7", Some("server"));
        assert_eq!(server.place_of_own(), "-/10.0.0.2:7");
        assert_eq!(server.speaker(), "server/10.0.0.2:7");
        let from = server.from("kvstore/-/10.0.0.2:7/worker.3/host.1.a");
        let expected = (Identity::parse("worker.3"), "worker.3@host.1.a");
        assert_eq!(who_and_address(&from), expected);
        let from = worker.from("kvstore/worker.3/host.1.a/server/10.0.0.2:7");
        assert_eq!(who_and_address(&from), (Identity::parse("server"), "10.0.0.2:7"));
        let open = names("host.1.a", None);
        assert_eq!(
            (open.place_of_own().as_str(), open.speaker().as_str()),
            ("-/host.1.a", "-/host.1.a")
        );
        assert_eq!(open.from("kvstore/-/host.1.a/-/scheduler"), "10.0.0.1:9");
    }

    #[test]
    fn a_name_tells_the_host() {
        let name = crate::transport::name_of_this_process();
        assert!(is_of_this_host(&name) && is_of_this_host(&format!("worker.3@{name}")));
        assert!(!is_of_this_host(&format!("x{name}")) && !is_of_this_host("127.0.0.1:9091"));
    }

    #[test]
    fn nobody_says_that_another_kind_of_process_is_gone() {
        let root: Arc<str> = "10.0.0.1:9".into();
        let names = ProcessNames { own: "10.0.0.2:7".into(), who: None, root };
        for (name, gone) in [
            ("kvstore-alive/worker.3/10.0.0.2:7", None),
            ("kvstore-alive/worker/scheduler", None),
            ("kvstore-alive/server.0/host.1.a", None),
            ("kvstore-alive/worker.3/host.1.a", Some("worker.3@host.1.a")),
            ("kvstore-alive/server/10.0.0.2:7", Some("10.0.0.2:7")),
            ("kvstore-alive/-/10.0.0.2:7", Some("10.0.0.2:7")),
        ] {
            assert_eq!(names.gone(name).as_deref(), gone, "{name}");
        }
    }
}
