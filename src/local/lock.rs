//! The lock of one key: many readers or one writer, with deadlines. It is fair enough to exclude
//! starvation: no thread takes it past a waiter. Also called: readers-writer lock.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{RwLock, RwLockReadGuard, RwLockWriteGuard, TryLockError, TryLockResult};
use std::time::{Duration, Instant};

use crate::sys::sync::{Condvar, Mutex};

/// Maximum sleep of a waiter before it checks the lock again. A wake-up is only missed when a lock
/// is released at the very moment at which a waiter begins to sleep.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

#[repr(C)]
pub(crate) struct KeyLock<T> {
    waiting: AtomicU32,
    lock: RwLock<T>,
}

/// Wakes waiters for any key of a store.
pub(crate) struct Released {
    lock: Mutex<()>,
    event: Condvar,
}

/// Holds a [`KeyLock`]. Its parts are dropped in this order.
pub(crate) struct KeyGuard<'a, G> {
    guard: G,
    _wake: Wake<'a>,
}

/// Wakes waiters for a key on drop.
struct Wake<'a> {
    waiting: &'a AtomicU32,
    released: &'a Released,
}

pub(crate) type ReadGuard<'a, T> = KeyGuard<'a, RwLockReadGuard<'a, T>>;
pub(crate) type WriteGuard<'a, T> = KeyGuard<'a, RwLockWriteGuard<'a, T>>;

impl<T> KeyLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { lock: RwLock::new(value), waiting: AtomicU32::new(0) }
    }

    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.lock.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Locks without a deadline a value that only a slice of a server has, whose threads take turns.
    #[cfg(feature = "dist")]
    pub(crate) fn own(&self) -> RwLockWriteGuard<'_, T> {
        self.lock.write().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[inline]
    pub(crate) fn try_read<'a>(&'a self, released: &'a Released) -> Option<ReadGuard<'a, T>> {
        self.in_passing(released, || self.lock.try_read())
    }

    #[inline]
    pub(crate) fn try_write<'a>(&'a self, released: &'a Released) -> Option<WriteGuard<'a, T>> {
        self.in_passing(released, || self.lock.try_write())
    }

    pub(crate) fn read_until<'a>(
        &'a self,
        released: &'a Released,
        end: Instant,
    ) -> Option<ReadGuard<'a, T>> {
        self.wait_until(released, end, || self.lock.try_read())
    }

    pub(crate) fn write_until<'a>(
        &'a self,
        released: &'a Released,
        end: Instant,
    ) -> Option<WriteGuard<'a, T>> {
        self.wait_until(released, end, || self.lock.try_write())
    }

    #[inline]
    fn in_passing<'a, G>(
        &'a self,
        released: &'a Released,
        attempt: impl Fn() -> TryLockResult<G>,
    ) -> Option<KeyGuard<'a, G>> {
        // Relaxed: only fairness depends on it.
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        Some(KeyGuard { guard: taken(attempt())?, _wake: self.wake(released) })
    }

    #[inline]
    fn wake<'a>(&'a self, released: &'a Released) -> Wake<'a> {
        Wake { waiting: &self.waiting, released }
    }

    fn wait_until<'a, G>(
        &'a self,
        released: &'a Released,
        end: Instant,
        attempt: impl Fn() -> TryLockResult<G>,
    ) -> Option<KeyGuard<'a, G>> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut guard = None;
        let mut watch = released.lock.lock();
        loop {
            guard = guard.or_else(|| taken(attempt()));
            let now = Instant::now();
            if guard.is_some() || now >= end {
                break;
            }
            released.event.wait_until(&mut watch, end.min(now + LOOK_AGAIN));
        }
        drop(watch);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        guard.map(|guard| KeyGuard { guard, _wake: self.wake(released) })
    }
}

/// A lock that was free. A panic while it was held poisons the whole store, not the lock.
#[inline]
fn taken<G>(attempt: TryLockResult<G>) -> Option<G> {
    match attempt {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poison)) => Some(poison.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}

impl Released {
    pub(crate) fn new() -> Self {
        Self { lock: Mutex::new(()), event: Condvar::new() }
    }

    #[cold]
    fn notify(&self) {
        let watch = self.lock.lock();
        self.event.notify_all();
        drop(watch);
    }
}

impl<G: Deref> Deref for KeyGuard<'_, G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for KeyGuard<'_, G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl Drop for Wake<'_> {
    fn drop(&mut self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.released.notify();
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn waiters_get_their_turn_and_deadlines_end_waits() {
        let (lock, released) = (KeyLock::new(0u32), Released::new());
        let soon = || Instant::now() + Duration::from_secs(60);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        *lock.write_until(&released, soon()).unwrap() += 1;
                    }
                });
            }
        });
        let held = lock.try_read(&released).unwrap();
        assert_eq!(*held, 8000);
        assert!(lock.try_read(&released).is_some(), "readers share");
        let late = Instant::now() + Duration::from_millis(5);
        assert!(lock.write_until(&released, late).is_none());
        drop(held);
        assert!(lock.try_write(&released).is_some());
    }
}
