//! Checks, before a process joins a job, that it may open enough files and start enough threads. A job
//! meets these limits later, where it can only drop connections.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Builder;

use crate::error::{Result, fail};
use crate::sys;

/// Files in any job: the port and those of the greeter, and connections of observers.
const FILES: u64 = 16;
/// Files of a thread that reads from connections: those of its event loop, and of its sleep.
const FILES_EACH_READER: u64 = 4;
/// Files for each peer: its connection, another while one of them ends, and two rings of shared memory.
const FILES_EACH: u64 = 4;
/// Threads in any job beside those that read from connections: timer, greeter, and spare ones.
const THREADS: u64 = 6;
/// Threads for each peer: one for its ring.
const THREADS_EACH: u64 = 1;
/// Stack size of a thread that only proves that it can be started, in bytes.
const STACK: usize = 16 << 10;

/// Fails if this process has too few files or threads for this many peers; `about` names its job.
pub(crate) fn check(peers: u32, about: &str) -> Result<()> {
    let peers = u64::from(peers);
    let readers = sys::processors() as u64;
    files(FILES + FILES_EACH_READER * readers.min(peers) + FILES_EACH * peers, about)?;
    threads(THREADS + readers + THREADS_EACH * peers, about)
}

fn files(needed: u64, about: &str) -> Result<()> {
    let Some(limit) = sys::file_limit() else { return Ok(()) };
    let open = match fs::read_dir("/proc/self/fd") {
        // One of the entries is the directory itself.
        Ok(files) => u64::try_from(files.count()).unwrap_or(u64::MAX).saturating_sub(1),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => limit,
        Err(_) => return Ok(()),
    };
    let needed = open.saturating_add(needed);
    if needed <= limit {
        return Ok(());
    }
    Err(fail!(
        Io,
        "this process may open {limit} files, has {open} open, and needs {needed} in {about}; raise the \
         limit in the shell or service that starts it, as with `ulimit -n {needed}`"
    ))
}

/// Starts as many threads as are needed, all at the same time. The limits are those of the user and of the
/// container, and the share of other processes is unknown.
fn threads(needed: u64, about: &str) -> Result<()> {
    let gate = Arc::new((Mutex::new(false), Condvar::new()));
    let mut started = Vec::new();
    let mut failure = None;
    for _ in 0..needed {
        let gate = Arc::clone(&gate);
        let wait = move || {
            let open = gate.0.lock().unwrap_or_else(PoisonError::into_inner);
            drop(gate.1.wait_while(open, |open| !*open));
        };
        let thread = Builder::new().stack_size(STACK);
        match crate::pool::without_signals(|| thread.spawn(wait)) {
            Ok(thread) => started.push(thread),
            Err(error) => {
                failure = Some(error);
                break;
            }
        }
    }
    *gate.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
    gate.1.notify_all();
    let possible = started.len();
    for thread in started {
        // The closure does not panic.
        let _ = thread.join();
    }
    let Some(error) = failure else { return Ok(()) };
    Err(fail!(
        OutOfMemory,
        "this process needs {needed} threads in {about}, and only {possible} can be started ({error}); \
         raise the limit of processes of its user (`ulimit -u`) or of its container"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_there_is_enough_for_a_small_job_and_not_for_any() {
        check(3, "a job").unwrap();
        let text = files(1 << 40, "a job of many").unwrap_err().to_string();
        assert!(text.contains("in a job of many") && text.contains("`ulimit -n "), "{text}");
    }
}
