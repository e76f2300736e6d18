//! Limits of this machine.

use rustix::fs::statvfs;
use rustix::process::{Resource, getrlimit};

use super::case::DoctorContext;
use super::{CheckResult, bad, skipped};
use crate::observe::show::units;

/// Open files for each process that one has a connection to, and for everything else.
const FILES_EACH: u64 = 4;
const FILES_BESIDE: u64 = 64;
/// Minimum for most training programs.
const LEAST_SHARED: u64 = 64 << 20;

/// Whether the limit on open files allows a connection to every process of the job.
pub(crate) fn files(case: &mut DoctorContext) -> CheckResult {
    let limit = getrlimit(Resource::Nofile);
    let [soft, hard] = [limit.current, limit.maximum].map(|limit| limit.unwrap_or(u64::MAX));
    let others = ["num_workers", "num_servers"].map(|name| case.number(name).unwrap_or(1));
    let others = others.into_iter().map(u64::from).sum::<u64>() + 1;
    let needed = FILES_BESIDE + FILES_EACH * others;
    if soft >= needed {
        return Ok(format!("{soft} are allowed, about {needed} are needed"));
    }
    let todo = if hard >= needed {
        format!("ulimit -n {needed}, in the shell that starts the process")
    } else {
        format!("the hard limit is {hard}: raise it in /etc/security/limits.conf or in the service")
    };
    Err(bad(format!("{soft} open files are allowed, about {needed} are needed"), todo))
}

/// What could carry the frames of the process, and why the rest could not.
pub(crate) fn transports(case: &mut DoctorContext) -> CheckResult {
    let all = kvstore::examine_transports(&case.config);
    let all = all.map_err(|error| skipped(error.message()))?;
    let line = |(name, state): (&str, Result<String, String>)| match state {
        Ok(text) => format!("{name}: {text}"),
        Err(reason) => format!("{name}: not used: {reason}"),
    };
    Ok(all.into_iter().map(line).collect::<Vec<_>>().join("\n      "))
}

/// Whether there is room in /dev/shm. The library's own shared memory has no name there, but counts
/// as memory; data loaders and other libraries of a training do use it.
pub(crate) fn shared_memory(_: &mut DoctorContext) -> CheckResult {
    let space = statvfs("/dev/shm").map_err(|_| skipped("there is no /dev/shm"))?;
    let [size, free] = [space.f_blocks, space.f_bavail].map(|blocks| blocks * space.f_frsize);
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let text = |bytes: u64| units::bytes(bytes as f64);
    if size < LEAST_SHARED {
        return Err(bad(
            format!("/dev/shm is too small: it has {} in all", text(size)),
            "in a container give it more, as with docker's --shm-size=1g; or mount it larger",
        ));
    }
    if free < LEAST_SHARED {
        return Err(bad(
            format!("/dev/shm is full: {} of {} are free", text(free), text(size)),
            "look at its files: programs that were killed leave theirs behind; remove what no process uses",
        ));
    }
    Ok(format!("{} of {} are free in /dev/shm", text(free), text(size)))
}
