//! Names, interfaces, ports, and whether the scheduler can be reached.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};

use super::case::DoctorContext;
use super::system::{self, Interface};
use super::{CheckResult, Finding, bad, skipped};
use crate::address::{host_of, local_address};

/// Whether the scheduler's host has an address.
pub(crate) fn address(case: &mut DoctorContext) -> CheckResult {
    let root = case.root().ok_or_else(|| skipped("no root is set"))?;
    let found = root.to_socket_addrs().map_err(|error| {
        bad(
            format!("{root:?} is no address: {error}"),
            "use a host and a port, such as 10.0.0.1:9091; check the name on this machine",
        )
    })?;
    case.addresses = found.collect();
    let texts: Vec<_> = case.addresses.iter().map(ToString::to_string).collect();
    let loopback = case.addresses.iter().all(|address| address.ip().is_loopback());
    let named = !root.starts_with("localhost")
        && root.rsplit_once(':').is_some_and(|(host, _)| host.parse::<IpAddr>().is_err());
    if loopback && named && !root.starts_with('[') {
        return Err(bad(
            format!("{root} is {}, the loopback of this machine alone", texts.join(", ")),
            "use an address that means the same on all machines; /etc/hosts may map the machine's \
             own name to the loopback",
        ));
    }
    Ok(format!("{root} is {}", texts.join(", ")))
}

/// The interface of the route to the scheduler, and whether this process listens on it.
pub(crate) fn interface(case: &mut DoctorContext) -> CheckResult {
    let root = case.addresses.first().copied();
    let root = root.ok_or_else(|| skipped("the address of the scheduler is not known"))?;
    let own = local_address(root).map_err(|error| {
        bad(
            format!("there is no way to {root}: {error}"),
            "this machine has no route there: is the interface up, is it the right network?",
        )
    })?;
    let bind = case.option("bind").filter(|_| case.role() != "worker");
    let bound = bind.as_deref().and_then(|bind| host_of(bind).parse().ok());
    let is_here = root.ip() == own;
    judge_interface(root, own, is_here, bound, &system::interfaces())
}

/// The address of the route, compared with the configured one.
pub(crate) fn judge_interface(
    root: SocketAddr,
    own: IpAddr,
    is_here: bool,
    bound: Option<IpAddr>,
    all: &[Interface],
) -> CheckResult {
    let find = |ip: IpAddr| all.iter().find(|it| it.ip == ip);
    let called = |ip: IpAddr| match find(ip) {
        Some(Interface { name, megabits: Some(speed), .. }) => {
            format!("{name} ({ip}, {speed} Mbit/s)")
        }
        Some(Interface { name, .. }) => format!("{name} ({ip})"),
        None => ip.to_string(),
    };
    let chosen = called(own);
    if let Some(bound) = bound.filter(|bound| !bound.is_unspecified() && *bound != own) {
        let listens = called(bound);
        let name_of = |ip| find(ip).map(|it| &it.name);
        if bound.is_loopback() && !root.ip().is_loopback() {
            return Err(bad(
                format!(
                    "this process would listen at {listens}, and {root} is reached over {chosen}: \
                     other machines cannot reach it"
                ),
                format!("set bind={own}, or leave it away"),
            ));
        }
        if name_of(bound).is_none() {
            return Err(bad(
                format!("bind is {bound}, which is no address of this machine"),
                format!("set bind={own}, or leave it away"),
            ));
        }
        if name_of(bound) != name_of(own) {
            return Err(bad(
                format!(
                    "this process would listen at {listens}, and {root} is reached over {chosen}: \
                     values take another way than you may think"
                ),
                format!("set bind={own}, or use the address of the scheduler in the other network"),
            ));
        }
    }
    let speed = find(own).and_then(|it| it.megabits);
    let faster = all.iter().filter(|it| it.is_up && it.megabits > speed);
    match faster.max_by_key(|it| it.megabits) {
        Some(other) if !is_here && speed.is_some() => Ok(format!(
            "{root} is reached over {chosen}; {} is faster: is the scheduler's address the one in \
             that network?",
            called(other.ip)
        )),
        _ => Ok(format!("{root} is reached over {chosen}")),
    }
}

/// Whether this process can listen at its configured address.
pub(crate) fn port(case: &mut DoctorContext) -> CheckResult {
    let role = case.role();
    let listens = match (role.as_str(), case.option("bind")) {
        ("worker", _) => None,
        (_, Some(bind)) if bind.to_socket_addrs().is_ok() => Some(bind),
        ("scheduler", _) => case.root(),
        _ => None,
    };
    let metrics = case.option("metrics").filter(|_| role == "scheduler");
    let wanted: Vec<String> = listens.into_iter().chain(metrics).collect();
    if wanted.is_empty() {
        let why = format!("a {role} needs no port of its own, or takes any free one");
        return Err(skipped(why));
    }
    for address in &wanted {
        TcpListener::bind(address).map_err(|error| refused(address, &error))?;
    }
    Ok(format!("free: {}", wanted.join(", ")))
}

fn refused(address: &str, error: &std::io::Error) -> Finding {
    let port = address.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    match error.kind() {
        ErrorKind::AddrInUse => {
            let who = port.and_then(system::listener).map_or_else(
                || "by a process that this user cannot see".into(),
                |(number, name)| format!("by {name}, process {number}"),
            );
            bad(
                format!("{address} is in use {who}"),
                "end that process if it is left from an earlier job, or take another port",
            )
        }
        ErrorKind::AddrNotAvailable => bad(
            format!("{address} is no address of this machine"),
            "run it on the machine that has this address, or set bind",
        ),
        ErrorKind::PermissionDenied => {
            bad(format!("{address}: this user may not listen there"), "take a port from 1024 on")
        }
        _ => bad(format!("cannot listen at {address}: {error}"), "take another address or port"),
    }
}

/// Whether a process listens at the scheduler's address.
pub(crate) fn scheduler(case: &mut DoctorContext) -> CheckResult {
    let root = case.addresses.first().copied();
    let root = root.ok_or_else(|| skipped("its address is not known"))?;
    match TcpStream::connect_timeout(&root, case.timeout) {
        Ok(_) => {
            case.reached = true;
            Ok(format!("something listens at {root}"))
        }
        Err(_) if case.role() == "scheduler" => {
            Err(skipped("this process would be the scheduler, and none runs yet"))
        }
        Err(error) => Err(unreachable_for(root, &error, case.timeout.as_millis())),
    }
}

fn unreachable_for(root: SocketAddr, error: &std::io::Error, waited_ms: u128) -> Finding {
    match error.kind() {
        ErrorKind::ConnectionRefused => bad(
            format!("nothing listens at {root}: the connection is refused"),
            "start the scheduler there, or correct root; a scheduler that listens on the loopback \
             (127.0.0.1) is not reached from other machines",
        ),
        ErrorKind::TimedOut | ErrorKind::WouldBlock => bad(
            format!("{root} does not answer within {waited_ms} ms: packets are dropped"),
            "a firewall drops them, or the machine is down: open the port of the scheduler, and those \
             of the servers (set bind to give them fixed ones)",
        ),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => bad(
            format!("there is no way to {root}: {error}"),
            "check the network of this machine, and the address",
        ),
        _ => bad(format!("{root} cannot be reached: {error}"), "check the address and the network"),
    }
}
