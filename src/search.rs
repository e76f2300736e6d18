//! Counts the steps of searches and the round trips of calls, for tests that bound how they grow with the
//! length of a list.

#[cfg(test)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    #[cfg(feature = "dist")]
    static TRIPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts a step: a look-up of a key, or a comparison of two keys or tensors. Outside of tests it is
/// nothing.
#[inline(always)]
#[allow(clippy::inline_always, reason = "it is empty")]
pub(crate) fn step() {
    #[cfg(test)]
    STEPS.with(|steps| steps.set(steps.get() + 1));
}

/// Counts a wait of a call for the answers of other processes. Outside of tests it is nothing.
#[cfg(feature = "dist")]
#[inline(always)]
#[allow(clippy::inline_always, reason = "it is empty")]
pub(crate) fn trip() {
    #[cfg(test)]
    TRIPS.with(|trips| trips.set(trips.get() + 1));
}

/// Counts the round trips of a closure on this thread, one after the other.
#[cfg(all(test, feature = "dist"))]
pub(crate) fn trips_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = TRIPS.with(std::cell::Cell::get);
    let result = work();
    (TRIPS.with(std::cell::Cell::get) - before, result)
}

/// Counts the search steps of a closure on this thread.
#[cfg(test)]
pub(crate) fn steps_of<T>(work: impl FnOnce() -> T) -> (u64, T) {
    let before = STEPS.with(std::cell::Cell::get);
    let result = work();
    (STEPS.with(std::cell::Cell::get) - before, result)
}
