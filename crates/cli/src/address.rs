//! Addresses on command lines: a host, and a port if there is one.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::{Context, anyhow};

/// A host, and a port if there is one.
pub(crate) fn split_root(text: &str) -> anyhow::Result<(String, Option<u16>)> {
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Ok((address.ip().to_string(), Some(address.port())));
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => {
            let port = port.parse().map_err(|_| anyhow!("{port:?} is no port"))?;
            Ok((host.to_owned(), Some(port)))
        }
        _ => Ok((text.trim_matches(['[', ']']).to_owned(), None)),
    }
}

/// The host of an address, without port and brackets.
pub(crate) fn host_of(address: &str) -> &str {
    if address.parse::<IpAddr>().is_ok() {
        return address;
    }
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Own address of this machine on the route to another one; no packet is sent.
pub(crate) fn local_address(remote: SocketAddr) -> io::Result<IpAddr> {
    let socket = UdpSocket::bind(if remote.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" })?;
    socket.connect(remote)?;
    Ok(socket.local_addr()?.ip())
}

/// Own address of this machine on the route to a host, which may stand behind the name of a user.
pub(crate) fn local_address_of(host: &str) -> anyhow::Result<IpAddr> {
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    let first = (host, 9).to_socket_addrs()?.next().context("the host is unknown")?;
    Ok(local_address(first)?)
}

#[cfg(test)]
mod tests {
    use super::split_root;

    #[test]
    fn the_port_of_an_address_may_be_missing() {
        for (text, host, port) in [
            ("node1", "node1", None),
            ("node1:9091", "node1", Some(9091)),
            ("10.0.0.1", "10.0.0.1", None),
            ("fe80::1", "fe80::1", None),
            ("[fe80::1]:9091", "fe80::1", Some(9091)),
        ] {
            assert_eq!(split_root(text).unwrap(), (host.to_owned(), port));
        }
        assert!(split_root("node1:x").is_err());
    }
}
