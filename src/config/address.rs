//! Addresses: a host, by name or number, and a port.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use crate::error::{Result, fail};

/// Whether an address is a host and a port, and not only a name of a process.
pub(crate) fn has_port(address: &str) -> bool {
    address.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok())
}

/// Adds a port to an address that may lack one.
pub(crate) fn with_port(address: &str, port: &str) -> String {
    let (host, own) = address.rsplit_once(':').unwrap_or((address, ""));
    // An IPv6 address needs brackets when a port follows.
    let whole = own.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']'));
    match address.parse::<IpAddr>() {
        Ok(ip) => format!("{}", SocketAddr::new(ip, port.parse().unwrap_or(0))),
        Err(_) if whole => address.into(),
        Err(_) => format!("{address}:{port}"),
    }
}

/// All addresses of a host and a port; names are looked up.
fn addresses(address: &str) -> Result<Vec<SocketAddr>> {
    let found = address.to_socket_addrs().map_err(|error| {
        fail!(
            Network,
            "create: {address:?} is no address: {error}; use a host and a port, such as 127.0.0.1:9091"
        )
    })?;
    Ok(found.collect())
}

/// Whether all addresses of a host and a port are those of the loopback.
pub(crate) fn is_loopback(address: &str) -> Result<bool> {
    Ok(addresses(address)?.iter().all(|address| address.ip().is_loopback()))
}

/// Whether one of them stands for all interfaces of this machine.
pub(crate) fn is_any(address: &str) -> Result<bool> {
    Ok(addresses(address)?.iter().any(|address| address.ip().is_unspecified()))
}

/// Own address of this machine on the route to another one; no packet is sent.
pub(crate) fn local_address(root: &str) -> Result<IpAddr> {
    let Some(root) = addresses(root)?.first().copied() else {
        return Err(fail!(Network, "create: the host of {root:?} is unknown"));
    };
    let any = if root.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    UdpSocket::bind(any)
        .and_then(|socket| socket.connect(root).and_then(|()| socket.local_addr()))
        .map(|address| address.ip())
        .map_err(|error| fail!(Network, "create: there is no way to {root}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::with_port;

    #[test]
    fn an_address_may_be_a_host_only() {
        for (given, address) in [
            ("127.0.0.1", "127.0.0.1:7"),
            ("127.0.0.1:9", "127.0.0.1:9"),
            ("::1", "[::1]:7"),
            ("[::1]:9", "[::1]:9"),
            ("node7", "node7:7"),
            ("node7:9", "node7:9"),
        ] {
            assert_eq!(with_port(given, "7"), address);
        }
    }
}
