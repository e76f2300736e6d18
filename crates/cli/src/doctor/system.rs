//! System information: interfaces, limits, and listening sockets.
#![allow(unsafe_code, reason = "calls of the system")]

use std::ffi::{CStr, CString};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{mem, ptr};

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
    let mut first = ptr::null_mut();
    // SAFETY: `first` receives a list that is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let (mut found, mut next) = (Vec::new(), first);
    // SAFETY: each element is valid until the list is given back, and points to the next one.
    while let Some(one) = unsafe { next.as_ref() } {
        next = one.ifa_next;
        // SAFETY: the name is a string; the address is absent, or valid for its family.
        let (name, ip) = unsafe { (CStr::from_ptr(one.ifa_name), address_of(one.ifa_addr)) };
        let Some(ip) = ip else { continue };
        let name = name.to_string_lossy().into_owned();
        let up = libc::IFF_UP | libc::IFF_RUNNING;
        let is_up = one.ifa_flags & up.unsigned_abs() == up.unsigned_abs();
        let megabits = speed_of(&name);
        found.push(Interface { name, ip, is_up, megabits });
    }
    // SAFETY: the list from `getifaddrs`; no pointer into it is used any more.
    unsafe { libc::freeifaddrs(first) };
    found
}

/// # Safety
/// The address is null, or valid for its family.
unsafe fn address_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    // SAFETY: the caller's promise.
    let family = i32::from(unsafe { address.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: of this family it is one of these.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr))))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says that it is one of these.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(IpAddr::V6(Ipv6Addr::from(v6.sin6_addr.s6_addr)))
        }
        _ => None,
    }
}

fn speed_of(name: &str) -> Option<u32> {
    let text = fs::read_to_string(format!("/sys/class/net/{name}/speed")).ok()?;
    // Drivers without a link speed report -1, or nothing.
    text.trim().parse().ok()
}

/// The limit of open files, and its hard maximum.
pub(crate) fn file_limit() -> Option<(u64, u64)> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) };
    (result == 0).then_some((limit.rlim_cur, limit.rlim_max))
}

/// Size and free space of a file system, in bytes.
pub(crate) fn space(folder: &Path) -> Option<(u64, u64)> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all its fields are numbers, and may be zero.
    let mut found: libc::statvfs = unsafe { mem::zeroed() };
    // SAFETY: a string, and `found` is valid for writing.
    if unsafe { libc::statvfs(path.as_ptr(), &raw mut found) } != 0 {
        return None;
    }
    Some((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
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
