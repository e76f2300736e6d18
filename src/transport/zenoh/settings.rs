//! Settings of Zenoh sessions.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use zenoh::config::Config;
use zenoh::{Session, Wait};

use crate::config::address::has_port;
use crate::error::{Result, fail};
use crate::transport::zenoh::access::{self, AccessSettings};
use crate::transport::zenoh::names::ProcessNames;
use crate::transport::{SOCKET_BYTES, TransportConfig};

const RECEIVE_BYTES: usize = 2 << 20;
/// Batches that are queued for the socket.
const BATCHES: usize = 16;
/// Timeout of a peer's handshake, and maximum number of peers in the handshake.
const HANDSHAKE: Duration = Duration::from_secs(2);
const STRANGERS: usize = 1_000;
/// Timeout of a blocked put, which ends its session; the protocol has given up by then.
const BLOCKED: Duration = Duration::from_secs(60);

/// Opens a session. Its configuration stays out of Zenoh's logs.
pub(super) fn open(config: Config) -> zenoh::Result<Session> {
    use tracing::dispatcher::{Dispatch, with_default};
    // Not a subscriber that wants nothing: with one registered, `tracing` no longer knows that none listens.
    with_default(&Dispatch::none(), || zenoh::open(config).wait())
}

/// Opens the session of a process that listens. Returns the address that peers know it by, and the address at
/// which it listens.
pub(super) fn listen_at(
    listen: &str,
    place: &TransportConfig,
) -> Result<(Arc<str>, SocketAddr, Session)> {
    const TRIES: usize = 20;
    let name = |error: &dyn std::fmt::Display| fail!(Network, "cannot listen at {listen}: {error}");
    if !has_port(listen) {
        return Err(name(&"an address is a host and a port, such as 127.0.0.1:9091"));
    }
    let mut tries = 0;
    loop {
        // The system chooses a port, which is free again at once; another process may bind it first.
        let at = listen.to_socket_addrs().map_err(|error| name(&error))?.next();
        let at = at.ok_or_else(|| name(&"the host is unknown"))?;
        let found = TcpListener::bind(at).and_then(|listener| listener.local_addr());
        let found = found.map_err(|error| name(&error))?;
        let known: Arc<str> = match place.advertised {
            _ if place.is_scheduler => Arc::clone(&place.root),
            Some(ip) => SocketAddr::new(ip, found.port()).to_string().into(),
            None => found.to_string().into(),
        };
        let access = match &place.credentials {
            Some(credentials) => {
                access::of_listener(credentials, &ProcessNames::new(&known, place))
            }
            None => Ok(AccessSettings::default()),
        };
        let access = access.map_err(|error| name(&error))?;
        let opened = settings(place, &access).and_then(|mut config| {
            config.insert_json5("mode", "\"peer\"")?;
            let endpoints = format!("[\"{}/{found}\"]", place.protocol());
            config.insert_json5("listen/endpoints", &endpoints)?;
            open(config)
        });
        match opened {
            Ok(session) => return Ok((known, found, session)),
            Err(_) if at.port() == 0 && tries < TRIES => tries += 1,
            Err(error) => return Err(name(&error)),
        }
    }
}

/// Settings of all sessions: no discovery, large messages are not delayed, and pending handshakes cannot
/// block peers for long.
pub(super) fn settings(place: &TransportConfig, access: &AccessSettings) -> zenoh::Result<Config> {
    let mut config = Config::default();
    let lease = place.lease_ms.to_string();
    let blocked = BLOCKED.as_micros().to_string();
    let (socket, receive) = (SOCKET_BYTES.to_string(), RECEIVE_BYTES.to_string());
    let (batches, sessions) = (BATCHES.to_string(), place.most_sessions.to_string());
    let (handshake, strangers) = (HANDSHAKE.as_millis().to_string(), STRANGERS.to_string());
    for (name, value) in [
        ("scouting/multicast/enabled", "false"),
        ("scouting/gossip/enabled", "false"),
        ("transport/unicast/qos/enabled", "false"),
        ("transport/unicast/accept_timeout", &handshake),
        ("transport/unicast/accept_pending", &strangers),
        ("transport/unicast/max_sessions", &sessions),
        ("transport/shared_memory/enabled", "false"),
        ("transport/link/tx/lease", &lease),
        ("transport/link/tx/queue/size/data", &batches),
        ("transport/link/tx/queue/congestion_control/block/wait_before_close", &blocked),
        ("transport/link/rx/buffer_size", &receive),
        ("transport/link/tcp/so_sndbuf", &socket),
        ("transport/link/tcp/so_rcvbuf", &socket),
    ] {
        config.insert_json5(name, value)?;
    }
    for (name, value) in &access.settings {
        config.insert_json5(name, &value.to_string())?;
    }
    Ok(config)
}
