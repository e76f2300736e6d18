//! System information: interfaces and listening sockets.

use std::fs;
use std::net::IpAddr;

/// One address of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) ip: IpAddr,
    pub(crate) is_up: bool,
    /// Its link speed, if the driver reports it.
    pub(crate) megabits: Option<u32>,
}

pub(crate) fn interfaces() -> Vec<Interface> {
    let mut all = Vec::new();
    for found in pnet_datalink::interfaces() {
        let (is_up, megabits) = (found.is_up() && found.is_running(), speed_of(&found.name));
        for network in &found.ips {
            let name = found.name.clone();
            all.push(Interface { name, ip: network.ip(), is_up, megabits });
        }
    }
    all
}

fn speed_of(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    // Drivers without a link speed report -1, or nothing.
    text.trim().parse().ok()
}

/// The process that listens at a port of this machine: its number and name, if visible to this
/// user.
pub(crate) fn listener(port: u16) -> Option<(u32, String)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(fs::read_to_string);
    let inode = tables.iter().flatten().find_map(|table| inode_of(table, port))?;
    let socket = format!("socket:[{inode}]");
    for process in fs::read_dir("/proc").ok()?.flatten() {
        let Ok(number) = process.file_name().to_string_lossy().parse::<u32>() else { continue };
        let Ok(files) = fs::read_dir(process.path().join("fd")) else { continue };
        let mut links = files.flatten().filter_map(|file| fs::read_link(file.path()).ok());
        if links.any(|link| link.as_os_str() == socket.as_str()) {
            let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
            return Some((number, name.trim().to_owned()));
        }
    }
    None
}

/// The socket that listens at a port, in a table of the system.
fn inode_of(table: &str, port: u16) -> Option<&str> {
    const LISTENS: &str = "0A";
    table.lines().skip(1).find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (_, local) = words.get(1)?.rsplit_once(':')?;
        let here = u16::from_str_radix(local, 16) == Ok(port) && *words.get(3)? == LISTENS;
        if here { words.get(9).copied() } else { None }
    })
}
