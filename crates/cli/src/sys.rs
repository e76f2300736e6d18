//! System calls that have no safe form in the standard library.
#![allow(unsafe_code, reason = "calls of the system")]

use std::fs::File;
use std::io::{self, PipeWriter, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::process::{CommandExt, parent_id};
use std::process::{self, Command};
use std::sync::OnceLock;
use std::time::Duration;
use std::{mem, ptr};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
#[cfg(target_os = "linux")]
use rustix::process::set_parent_process_death_signal;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpgrp, getrlimit, kill_process_group,
    setrlimit, setsid, waitid,
};
use rustix::termios::tcgetpgrp;

use crate::ending::ExitReason;

/// The original limit of open files, if it was raised.
static FILES: OnceLock<Rlimit> = OnceLock::new();

/// Raises the limit of open files to its maximum: pipes take several for each process of a job.
/// Children that are tied to this process get the original limit.
pub(crate) fn raise_file_limit() {
    let before = FILES.get_or_init(|| getrlimit(Resource::Nofile));
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..*before });
}

/// So many random bytes, in hexadecimal digits.
pub(crate) fn random<const BYTES: usize>() -> io::Result<String> {
    let mut bytes = [0; BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |text, byte| format!("{text}{byte:02x}"))
}

/// Sends a signal to all processes of a group; no effect without any.
pub(crate) fn signal_group(group: u32, signal: i32) {
    // 0 would be our own group, and 1 all processes.
    let group = i32::try_from(group).ok().filter(|&group| group > 1).and_then(Pid::from_raw);
    if let (Some(group), Some(signal)) = (group, Signal::from_named_raw(signal)) {
        let _ = kill_process_group(group, signal);
    }
}

/// The exit of a child, None while it lives. The child is not reaped, so that its number, which is
/// its group's too, is not reused meanwhile.
pub(crate) fn ending(child: u32) -> Option<ExitReason> {
    let child = Pid::from_raw(i32::try_from(child).ok()?)?;
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let status = waitid(WaitId::Pid(child), options).ok()??;
    let exited = status.exit_status().map(ExitReason::Status);
    exited.or_else(|| status.terminating_signal().map(ExitReason::Signal))
}

/// Makes the process of a command end with this one, and send its number through `keeper` before
/// exec. So it cannot have started a process that the keeper does not know of.
///
/// It ends with the thread that starts it: that must be the main one.
pub(crate) fn tie_to_us(command: &mut Command, keeper: PipeWriter) {
    let launcher = process::id();
    let tie = move || {
        // On other systems the keeper does this alone.
        #[cfg(target_os = "linux")]
        set_parent_process_death_signal(Some(Signal::KILL))?;
        if let Some(files) = FILES.get() {
            let _ = setrlimit(Resource::Nofile, *files);
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

/// Makes the process of a command leave our session, and ignore the signals that end this program.
pub(crate) fn set_apart(command: &mut Command) {
    let apart = || {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
            // SAFETY: touches no memory of ours.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        setsid()?;
        Ok(())
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
    let entries = files.iter().map(|file| PollFd::from_borrowed_fd(*file, PollFlags::IN));
    let mut entries: Vec<PollFd<'_>> = entries.collect();
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    poll(&mut entries, limit.as_ref())?;
    Ok(entries.iter().map(|entry| !entry.revents().is_empty()).collect())
}

/// Whether our group is the foreground group of the terminal at standard input.
pub(crate) fn is_in_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
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
