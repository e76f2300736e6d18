//! The locks: the standard library's, or `loom`'s when a model checks who uses them.
//!
//! They are futexes without shared state. Locks with a process-wide table of parked threads
//! (`parking_lot`) would let the child of a `fork()` hang on threads of its parent.

#[cfg(loom)]
use loom::sync as base;
use std::ops::{Deref, DerefMut};
#[cfg(not(loom))]
use std::sync as base;
use std::sync::PoisonError;
use std::time::Instant;

pub(crate) use base::Arc;
pub(crate) use base::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

use crate::deadline::Deadline;
use crate::interrupt;

/// A lock that ignores poisoning: a panic of ours poisons the whole store, which then reports it.
pub(crate) struct Mutex<T>(base::Mutex<T>);

/// Holds a [`Mutex`]; empty only inside [`Condvar::wait`] and [`Mutex::unlocked`].
pub(crate) struct MutexGuard<'a, T>(Option<base::MutexGuard<'a, T>>);

pub(crate) struct Condvar(base::Condvar);

/// As [`Mutex`], for many readers or one writer.
#[derive(Default)]
pub(crate) struct RwLock<T>(std::sync::RwLock<T>);

pub(crate) type RwLockReadGuard<'a, T> = std::sync::RwLockReadGuard<'a, T>;
pub(crate) type RwLockWriteGuard<'a, T> = std::sync::RwLockWriteGuard<'a, T>;

const HELD: &str = "a guard holds its lock except inside wait()";

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(base::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        MutexGuard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// None while another thread holds the lock.
    #[cfg(feature = "dist")]
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        match self.0.try_lock() {
            Ok(held) => Some(MutexGuard(Some(held))),
            Err(std::sync::TryLockError::Poisoned(held)) => {
                Some(MutexGuard(Some(held.into_inner())))
            }
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    /// The value, which no other thread uses.
    #[cfg(feature = "dist")]
    pub(crate) fn get_mut(&mut self) -> &mut T {
        self.0.get_mut().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a closure while the lock is released.
    pub(crate) fn unlocked<'a, R>(
        &'a self,
        guard: &mut MutexGuard<'a, T>,
        work: impl FnOnce() -> R,
    ) -> R {
        drop(guard.0.take());
        let result = work();
        *guard = self.lock();
        result
    }
}

impl<T: Default> Default for Mutex<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> RwLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, T> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_ref().expect(HELD)
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.as_mut().expect(HELD)
    }
}

impl Condvar {
    pub(crate) fn new() -> Self {
        Self(base::Condvar::new())
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        let held = guard.0.take().expect(HELD);
        guard.0 = Some(self.0.wait(held).unwrap_or_else(PoisonError::into_inner));
    }

    /// Waits until notified or `end`; returns whether `end` has passed. Models have no clock: in
    /// them a wait ends by notification, or at once if `end` has passed before it begins.
    pub(crate) fn wait_until<T>(&self, guard: &mut MutexGuard<'_, T>, end: Instant) -> bool {
        #[cfg(loom)]
        {
            let late = Instant::now() >= end;
            if !late {
                self.wait(guard);
            }
            late
        }
        #[cfg(not(loom))]
        {
            let held = guard.0.take().expect(HELD);
            let left = end.saturating_duration_since(Instant::now());
            let woken = self.0.wait_timeout(held, left);
            guard.0 = Some(woken.unwrap_or_else(PoisonError::into_inner).0);
            Instant::now() >= end
        }
    }

    /// Waits for a change of what `lock` protects; true if the deadline has passed, or this thread was
    /// interrupted.
    pub(crate) fn pause<'a, T>(
        &self,
        lock: &'a Mutex<T>,
        guard: &mut MutexGuard<'a, T>,
        deadline: Deadline,
    ) -> bool {
        match interrupt::next(deadline.moment()) {
            None => {
                self.wait(guard);
                false
            }
            Some(end) => self.wait_until(guard, end) && lock.unlocked(guard, || deadline.is_over()),
        }
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
