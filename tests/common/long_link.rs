//! Two network namespaces of the kernel with a link between them that has a round-trip time, loses packets, or
//! has a rate: a thread of this process for each direction carries the packets.
#![allow(unsafe_code, reason = "devices of the system, in a chosen network namespace")]
#![allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, reason = "sizes that fit")]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
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
    /// Of so many packets with content, one has a bit changed, and a checksum that fits; 0 for none.
    pub altered: usize,
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

/// Changes a bit in the content of a packet of TCP over IPv4, and its checksum with it (RFC 1624); false if it has
/// none.
fn alter(packet: &mut [u8], random: &mut Random) -> bool {
    const TCP: u8 = 6;
    if packet.len() < 20 || packet[0] >> 4 != 4 || packet[9] != TCP {
        return false;
    }
    let front = usize::from(packet[0] & 15) * 4;
    let segment = &mut packet[front..];
    let content = usize::from(segment[12] >> 4) * 4;
    if segment.len() <= content {
        return false;
    }
    let at = content + random.index(segment.len() - content);
    let word = |segment: &[u8]| {
        let low = segment.get(at | 1).copied().unwrap_or(0);
        u16::from_le_bytes([segment[at & !1], low])
    };
    let before = word(segment);
    segment[at] ^= 1 << random.index(8);
    let sum = u32::from(!u16::from_le_bytes([segment[16], segment[17]]))
        + u32::from(!before)
        + u32::from(word(segment));
    let folded = (sum & 0xffff) + (sum >> 16);
    let checksum = !((folded & 0xffff) as u16 + (folded >> 16) as u16);
    segment[16..18].copy_from_slice(&checksum.to_le_bytes());
    true
}

/// Carries packets in one direction; alters some while it is told to.
fn relay(
    mut from: File,
    mut to: File,
    link: LinkProperties,
    (alters, altered): (Arc<AtomicBool>, Arc<AtomicUsize>),
    mut random: Random,
) {
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
            let is_altered = link.altered > 0 && random.index(link.altered) == 0;
            if is_altered && alters.load(Ordering::Relaxed) {
                let changed = alter(&mut packet[..count], &mut random);
                altered.fetch_add(usize::from(changed), Ordering::Relaxed);
            }
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
    /// Whether packets are altered now, and how many were.
    pub alters: Arc<AtomicBool>,
    pub altered: Arc<AtomicUsize>,
}

impl LongLink {
    pub fn new(link: LinkProperties) -> io::Result<Self> {
        let keeper = Command::new("unshare").args(["-n", "sleep", "3600"]).spawn()?;
        let (alters, altered) = Default::default();
        let machines = Self { keeper, alters, altered };
        let own = std::fs::read_link("/proc/self/ns/net")?;
        let name = format!("/proc/{}/ns/net", machines.keeper.id());
        assert!(soon(LIMIT, || std::fs::read_link(&name).is_ok_and(|it| it != own)));
        let (near, far) = (device("near")?, device_at(machines.keeper.id(), "far")?);
        let random = || random::from_environment("long links");
        let alters = || (Arc::clone(&machines.alters), Arc::clone(&machines.altered));
        relay(near.try_clone()?, far.try_clone()?, link, alters(), random());
        relay(far, near, link, alters(), random());
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
