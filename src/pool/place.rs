//! Where threads run: a helper on the processor of the thread that it helps takes turns with it.

/// The processor that this thread runs on, where that can be known.
pub(super) fn processor() -> Option<usize> {
    // A model must be deterministic, and Miri has no processors.
    if cfg!(any(loom, miri)) {
        return None;
    }
    #[cfg(target_os = "linux")]
    // SAFETY: a plain call.
    return usize::try_from(unsafe { libc::sched_getcpu() }).ok();
    #[cfg(not(target_os = "linux"))]
    None
}

/// Moves this thread, which belongs to the library, to another processor that it may use; false where there is none.
/// Afterwards it may use the same ones as before.
///
/// The scheduler wakes a thread where it has slept, and often looks for no idle processor: a helper that sleeps where
/// its owner runs is woken there each time.
#[cfg(target_os = "linux")]
pub(super) fn leave(processor: usize) -> bool {
    let size = size_of::<libc::cpu_set_t>();
    // SAFETY: plain calls with sets of our own, in which the number has a place.
    unsafe {
        let mut allowed = std::mem::zeroed::<libc::cpu_set_t>();
        let known = libc::sched_getaffinity(0, size, &raw mut allowed) == 0;
        if !known || processor >= 8 * size || libc::CPU_COUNT(&allowed) < 2 {
            return false;
        }
        let mut others = allowed;
        libc::CPU_CLR(processor, &mut others);
        if libc::sched_setaffinity(0, size, &raw const others) != 0 {
            return false;
        }
        libc::sched_setaffinity(0, size, &raw const allowed);
    }
    true
}

#[cfg(not(target_os = "linux"))]
pub(super) fn leave(_processor: usize) -> bool {
    false
}

#[cfg(all(test, target_os = "linux", not(any(loom, miri))))]
mod tests {
    use super::*;

    fn allowed() -> Vec<usize> {
        // SAFETY: plain calls with a set of this function.
        unsafe {
            let mut set = std::mem::zeroed::<libc::cpu_set_t>();
            let size = size_of::<libc::cpu_set_t>();
            assert_eq!(libc::sched_getaffinity(0, size, &raw mut set), 0);
            (0..8 * size).filter(|index| libc::CPU_ISSET(*index, &set)).collect()
        }
    }

    #[test]
    fn a_thread_leaves_a_processor_and_may_return() {
        let work = || {
            let before = allowed();
            for left in before.iter().copied().chain([usize::MAX]) {
                let is_known = before.len() > 1 && left != usize::MAX;
                assert_eq!(leave(left), is_known);
                assert_eq!(allowed(), before);
            }
        };
        std::thread::spawn(work).join().unwrap();
    }

    #[test]
    fn it_goes_where_the_other_thread_is_not() {
        let moved = || {
            let here = processor().unwrap();
            // The scheduler may bring it back at any moment, but hardly each time.
            !leave(here) || processor() != Some(here)
        };
        let once = std::thread::spawn(move || (0..100).any(|_| moved()));
        assert!(once.join().unwrap());
    }
}
