//! Two network namespaces of the kernel with a link between them that has a round-trip time, loses packets, or
//! has a rate: a thread of this process for each direction carries the packets.
#![allow(unsafe_code, reason = "devices of the system, in a chosen network namespace")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use super::network::{FAR, NEAR, ip};
use super::random::{self, Random};
use super::wait::soon;

/// Within this the far machine is there.
const LIMIT: Duration = Duration::from_secs(60);

/// What a link does to the packets of each direction.
#[derive(Debug, Clone, Copy)]
pub struct LinkProperties {
    pub round_trip: Duration,
    /// How many of a thousand packets are lost.
    pub loss: usize,
    /// Bytes per second, if there is a limit. Packets wait, and none is dropped for that.
    pub rate: Option<f64>,
    /// Longest packet in bytes.
    pub packet: usize,
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// A network device whose packets this process reads and writes.
fn device(name: &str) -> io::Result<File> {
    let device = OpenOptions::new().read(true).write(true).open("/dev/net/tun")?;
    // SAFETY: zeros are a request without a name and without flags.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (place, byte) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *place = byte as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI) as libc::c_short;
    // SAFETY: the request is an `ifreq`, as this call takes.
    check(unsafe { libc::ioctl(device.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request) })?;
    Ok(device)
}

/// A device in the network namespace of another process.
fn device_at(process: u32, name: &'static str) -> io::Result<File> {
    let work = move || {
        let namespace = File::open(format!("/proc/{process}/ns/net"))?;
        // SAFETY: touches no memory; this thread ends with the namespace.
        check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) })?;
        device(name)
    };
    thread::spawn(work).join().expect("a thread")
}

/// Carries packets in one direction.
fn relay(mut from: File, mut to: File, link: LinkProperties, mut random: Random) {
    let (sender, packets) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        for (due, packet) in packets {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // A device that is not up yet takes none.
            let _ = to.write(&packet);
        }
    });
    thread::spawn(move || {
        let (mut packet, mut free) = (vec![0; link.packet], Instant::now());
        while let Ok(count) = from.read(&mut packet) {
            let time = link.rate.map_or(0.0, |rate| count as f64 / rate);
            free = free.max(Instant::now()) + Duration::from_secs_f64(time);
            let due = free + link.round_trip / 2;
            let is_lost = random.index(1_000) < link.loss;
            if !is_lost && sender.send((due, packet[..count].into())).is_err() {
                return;
            }
        }
    });
}

/// Two machines with a link between them, as long as this process lives.
pub struct LongLink {
    /// Is on the far machine, and keeps it.
    keeper: Child,
}

impl LongLink {
    pub fn new(link: LinkProperties) -> io::Result<Self> {
        let keeper = Command::new("unshare").args(["-n", "sleep", "3600"]).spawn()?;
        let machines = Self { keeper };
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let name = format!("/proc/{}/ns/net", machines.keeper.id());
        assert!(soon(LIMIT, || std::fs::read_link(&name).is_ok_and(|it| it != own)));
        let (near, far) = (device("near")?, device_at(machines.keeper.id(), "far")?);
        let random = || random::from_environment("long links");
        relay(near.try_clone()?, far.try_clone()?, link, random());
        relay(far, near, link, random());
        let mtu = link.packet.to_string();
        for (device, own, other, is_far) in [("near", NEAR, FAR, false), ("far", FAR, NEAR, true)] {
            for arguments in [
                &["addr", "add", own, "peer", other, "dev", device][..],
                &["link", "set", device, "mtu", &mtu, "up"],
                &["link", "set", "lo", "up"],
            ] {
                if is_far {
                    let mut command = machines.far("ip");
                    let status = command.args(arguments).status()?;
                    assert!(status.success(), "ip {arguments:?} on the far machine");
                } else {
                    ip(arguments);
                }
            }
        }
        Ok(machines)
    }

    /// What starts a command on the far machine.
    pub fn way(&self) -> [String; 4] {
        ["nsenter".into(), "-t".into(), self.keeper.id().to_string(), "-n".into()]
    }

    /// A command on the far machine.
    pub fn far(&self, program: &str) -> Command {
        let [first, rest @ ..] = self.way();
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }
}

impl Drop for LongLink {
    fn drop(&mut self) {
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

/// Whether this machine lets us make such links.
pub fn can_be_made() -> bool {
    OpenOptions::new().read(true).write(true).open("/dev/net/tun").is_ok()
        && Command::new("nsenter").arg("--version").stdout(Stdio::null()).status().is_ok()
}
