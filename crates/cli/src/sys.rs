//! System calls that have no safe form in the standard library.
#![allow(unsafe_code, reason = "calls of the system")]

use std::io::{self, PipeWriter, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::time::Duration;
use std::{mem, ptr};

use crate::ending::ExitReason;

/// The original limit of open files, if it was raised.
static FILES: OnceLock<libc::rlimit> = OnceLock::new();

/// Raises the limit of open files to its maximum: pipes take several for each process of a job.
/// Children that are tied to this process get the original limit.
pub(crate) fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0 {
        let before = FILES.get_or_init(|| limit);
        let raised = libc::rlimit { rlim_cur: before.rlim_max, ..*before };
        // SAFETY: `raised` is valid for reading.
        unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const raised) };
    }
}

/// Sends a signal to all processes of a group; no effect without any.
pub(crate) fn signal_group(group: u32, signal: i32) {
    // 0 would be our own group, and 1 all processes.
    let Some(group) = i32::try_from(group).ok().filter(|&group| group > 1) else { return };
    // SAFETY: touches no memory of ours.
    unsafe { libc::kill(-group, signal) };
}

/// The exit of a child, None while it lives. The child is not reaped, so that its number, which is
/// its group's too, is not reused meanwhile.
pub(crate) fn ending(child: u32) -> Option<ExitReason> {
    // SAFETY: all its fields are numbers or pointers, and may be zero.
    let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: `info` is valid for writing.
    let result = unsafe { libc::waitid(libc::P_PID, child, &raw mut info, options) };
    // SAFETY: the call fills these fields in, or leaves them zero.
    let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
    if result != 0 || pid == 0 {
        return None;
    }
    Some(if info.si_code == libc::CLD_EXITED {
        ExitReason::Status(status)
    } else {
        ExitReason::Signal(status)
    })
}

/// Whether options, or the environment, turn TLS on.
pub(crate) fn wants_tls(options: &[(String, String)]) -> bool {
    options.iter().any(|(name, _)| name == "tls_cert_file")
        || std::env::var_os("KV_TLS_CERT_FILE").is_some()
}

/// Prepares this process for TLS if it is wanted. To be called before any thread is started.
pub(crate) fn prepare_for_tls(options: &[(String, String)]) {
    let (variable, value) = kvstore::TLS_VARIABLE;
    if wants_tls(options) && std::env::var_os(variable).is_none() {
        // SAFETY: there is only this thread.
        unsafe { std::env::set_var(variable, value) };
    }
}

/// Makes the process of a command end with this one, and send its number through `keeper` before
/// exec. So it cannot have started a process that the keeper does not know of.
///
/// It ends with the thread that starts it: that must be the main one.
pub(crate) fn tie_to_us(command: &mut Command, keeper: PipeWriter) {
    let launcher = process::id();
    let tie = move || {
        die_with_parent()?;
        if let Some(files) = FILES.get() {
            // SAFETY: `files` is valid for reading.
            unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, files) };
        }
        // The parent may have ended before.
        if parent_id() != launcher {
            return Err(io::Error::from_raw_os_error(libc::ESRCH));
        }
        (&keeper).write_all(&process::id().to_le_bytes())
    };
    // SAFETY: between fork and exec it makes only calls of the system, and allocates nothing.
    unsafe { command.pre_exec(tie) };
}

#[cfg(target_os = "linux")]
fn die_with_parent() -> io::Result<()> {
    let signal = libc::c_ulong::from(libc::SIGKILL.unsigned_abs());
    // SAFETY: touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, signal) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// On other systems the keeper does this alone.
#[cfg(not(target_os = "linux"))]
fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// Makes the process of a command leave our session, and ignore the signals that end this program.
pub(crate) fn set_apart(command: &mut Command) {
    let apart = || {
        // SAFETY: calls that touch no memory of ours.
        let session = unsafe {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_IGN);
            }
            libc::setsid()
        };
        if session == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
    };
    // SAFETY: between fork and exec it makes only system calls, and allocates nothing.
    unsafe { command.pre_exec(apart) };
}

/// Whether a signal was to be ignored when this program was started, as `nohup` does.
pub(crate) fn is_ignored(signal: i32) -> bool {
    // SAFETY: all its fields are numbers or pointers, and may be zero.
    let mut action: libc::sigaction = unsafe { mem::zeroed() };
    // SAFETY: only asks; `action` is valid for writing.
    let result = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    result == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// Which of the files can be read without blocking, end of file included. Waits until one can, at
/// most for the given time; None is for ever.
pub(crate) fn readable(files: &[BorrowedFd<'_>], limit: Option<Duration>) -> io::Result<Vec<bool>> {
    let entry = |file: &BorrowedFd<'_>| libc::pollfd {
        fd: file.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let mut entries: Vec<libc::pollfd> = files.iter().map(entry).collect();
    let count = libc::nfds_t::try_from(entries.len()).unwrap_or(0);
    let ms = |limit: Duration| libc::c_int::try_from(limit.as_millis()).unwrap_or(libc::c_int::MAX);
    let timeout_ms = limit.map_or(-1, ms);
    // SAFETY: the entries are valid for reading and writing, and `count` of them exist.
    match unsafe { libc::poll(entries.as_mut_ptr(), count, timeout_ms) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(entries.iter().map(|entry| entry.revents != 0).collect()),
    }
}

/// Whether our group is the foreground group of the terminal at standard input.
pub(crate) fn is_in_foreground() -> bool {
    // SAFETY: touches no memory of ours.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) == libc::getpgrp() }
}

/// Makes reads of this thread from the terminal fail while in the background, instead of stopping
/// the whole program.
pub(crate) fn fail_background_reads() {
    // SAFETY: a set of signals is plain numbers, which `sigemptyset` makes valid; the thread's own
    // mask is changed.
    unsafe {
        let mut set: libc::sigset_t = mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGTTIN);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut());
    }
}
