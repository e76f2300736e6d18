//! A round of raw TCP: a worker sends to a thread of a worker on another machine, or of its own if
//! there is none, which sends the bytes back. Also called: echo benchmark.

use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use kvstore::Config;
use socket2::{Domain, SockRef, Socket, Type};

use super::COMMAND;
use super::agree::{BenchGroup, number_of};
use super::case::BenchOp;
use crate::address::{local_address_of, split_root};
use crate::launch::plan::job_name;
use crate::messages::say;

/// Timeout of a connection, and of a silence on it.
const CONNECT: Duration = Duration::from_secs(5);
const SILENCE: Duration = Duration::from_secs(60);

/// Commands to the peer; a length follows the first.
const PREPARE: u8 = 0;
const TAKE: u8 = 1;
const GIVE: u8 = 2;

const LOOPBACK: &str = "raw TCP over the loopback";
const NETWORK: &str = "raw TCP to a worker on another machine";

pub(crate) struct Wire {
    /// Its name in the report.
    pub(crate) name: &'static str,
    stream: TcpStream,
    value: Vec<u8>,
    out: Vec<u8>,
}

impl Wire {
    /// `most` is the maximum size in bytes of one message.
    pub(crate) fn new(
        group: &mut BenchGroup<'_>,
        machines: &[u64],
        config: &Config,
        most: usize,
    ) -> Result<Self> {
        let partner = partner(group.rank, machines);
        let is_alone = machines.iter().all(|machine| *machine == machines[0]);
        let own = if is_alone { Ipv4Addr::LOCALHOST.into() } else { own_address(config)? };
        let (listener, password) = (TcpListener::bind((own, 0))?, number_of(&job_name()?));
        let address = listener.local_addr()?;
        do_not_pace(&SockRef::from(&listener), &address)?;
        let serve = move || serve_all(&listener, password, most);
        thread::Builder::new().name("wire".into()).spawn(serve)?;
        let all = group.exchange(&[&words(address)[..], &[password]].concat())?;
        let connect = |rank: usize| -> io::Result<TcpStream> {
            let (address, password) = all[rank].split_at(5);
            connect(address_of(address), password[0])
        };
        let (name, stream) = match partner.map(connect) {
            Some(Ok(stream)) => (NETWORK, stream),
            Some(Err(error)) => {
                let (rank, partner) = (group.rank, partner.unwrap_or(0));
                let text = format_args!(
                    "worker {rank} cannot connect to worker {partner}, and compares with its \
                     loopback: {error}"
                );
                say(COMMAND, text);
                (LOOPBACK, connect(rank)?)
            }
            None => (LOOPBACK, connect(group.rank)?),
        };
        Ok(Self { name, stream, value: Vec::new(), out: Vec::new() })
    }

    pub(crate) fn prepare(&mut self, bytes: usize) -> io::Result<()> {
        self.value.clear();
        self.out.clear();
        self.value.resize(bytes, 1);
        self.out.resize(bytes, 0);
        self.stream.write_all(&[PREPARE])?;
        self.stream.write_all(&(bytes as u64).to_le_bytes())?;
        self.stream.read_exact(&mut [0])
    }

    pub(crate) fn round(&mut self, op: BenchOp) -> io::Result<()> {
        if op != BenchOp::Pull {
            self.stream.write_all(&[TAKE])?;
            self.stream.write_all(&self.value)?;
            self.stream.read_exact(&mut [0])?;
        }
        if op != BenchOp::Push {
            self.stream.write_all(&[GIVE])?;
            self.stream.read_exact(&mut self.out)?;
        }
        Ok(())
    }
}

/// The next worker on another machine, chosen so that workers of one machine have different
/// partners if possible.
fn partner(rank: usize, machines: &[u64]) -> Option<usize> {
    let others = (1..machines.len()).map(|step| (rank + step) % machines.len());
    others.into_iter().find(|other| machines[*other] != machines[rank])
}

/// This machine's address on the way to the scheduler.
fn own_address(config: &Config) -> Result<IpAddr> {
    let root = config.get("root")?.unwrap_or_default();
    local_address_of(&split_root(&root)?.0)
}

/// As the library: a connection over the loopback has a congestion control that does not pace.
fn do_not_pace(socket: &Socket, address: &SocketAddr) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if address.ip().is_loopback() {
        return socket.set_tcp_congestion(b"reno");
    }
    Ok(())
}

fn connect(address: SocketAddr, password: f64) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    do_not_pace(&socket, &address)?;
    socket.connect_timeout(&address.into(), CONNECT)?;
    let mut stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    stream.set_write_timeout(Some(SILENCE))?;
    stream.write_all(&password.to_bits().to_le_bytes())?;
    Ok(stream)
}

/// Serves as long as this process lives.
fn serve_all(listener: &TcpListener, password: f64, most: usize) {
    for stream in listener.incoming().flatten() {
        // The thread of a partner ends when the partner leaves.
        let serve = move || serve(stream, password, most);
        let _ = thread::Builder::new().name("wire".into()).spawn(serve);
    }
}

fn serve(mut stream: TcpStream, password: f64, most: usize) -> io::Result<()> {
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(CONNECT))?;
    let mut word = [0; 8];
    stream.read_exact(&mut word)?;
    if u64::from_le_bytes(word) != password.to_bits() {
        return Ok(());
    }
    // Between two cases there may be a long time.
    stream.set_read_timeout(None)?;
    let mut stored = Vec::new();
    loop {
        let mut order = [0];
        stream.read_exact(&mut order)?;
        match order[0] {
            PREPARE => {
                stream.read_exact(&mut word)?;
                let bytes = usize::try_from(u64::from_le_bytes(word)).unwrap_or(most);
                stored.clear();
                stored.resize(bytes.min(most), 0);
                stream.write_all(&[PREPARE])?;
            }
            TAKE => {
                stream.read_exact(&mut stored)?;
                stream.write_all(&[TAKE])?;
            }
            _ => stream.write_all(&stored)?,
        }
    }
}

/// An address as numbers that a float64 has exactly.
fn words(address: SocketAddr) -> [f64; 5] {
    let bits = match address.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    let word = |shift: u32| f64::from(u32::try_from(bits >> shift & 0xFFFF_FFFF).unwrap_or(0));
    [word(96), word(64), word(32), word(0), f64::from(address.port())]
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "made of u32 and u16")]
fn address_of(words: &[f64]) -> SocketAddr {
    let bits = words[..4].iter().fold(0, |bits: u128, word| bits << 32 | u128::from(*word as u32));
    SocketAddr::new(Ipv6Addr::from_bits(bits).to_canonical(), words[4] as u16)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test")]
mod tests {
    use super::{address_of, partner, words};

    #[test]
    fn an_address_comes_back_from_its_numbers() {
        for text in ["10.0.0.1:9091", "255.255.255.255:65535", "[fe80::1:2]:1"] {
            let address = text.parse().unwrap();
            assert_eq!(address_of(&words(address)), address);
        }
    }

    #[test]
    fn the_partner_is_on_another_machine() {
        let machines = [1, 1, 2, 2];
        let partners: Vec<_> = (0..4).map(|rank| partner(rank, &machines)).collect();
        assert_eq!(partners, [Some(2), Some(2), Some(0), Some(0)]);
        assert_eq!(partner(1, &[1, 1]), None);
    }
}
