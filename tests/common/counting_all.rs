//! The system's allocator, with a count of the allocations of all threads, and of where they are made.
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// Maximum number of allocations of one measurement whose callers are recorded.
const MOST: usize = 2_000;
/// Functions of this project that a site shows.
const FRAMES: usize = 6;

static IS_ON: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
static TRACES: Mutex<Vec<Backtrace>> = Mutex::new(Vec::new());

thread_local! {
    /// The thread records an allocation, which allocates.
    static IS_BUSY: Cell<bool> = const { Cell::new(false) };
}

struct CountingAll;

impl CountingAll {
    fn count() {
        if !IS_ON.load(Ordering::Relaxed) {
            return;
        }
        // While a thread ends its flag may be gone already.
        if IS_BUSY.try_with(|busy| busy.replace(true)) != Ok(false) {
            return;
        }
        if COUNT.fetch_add(1, Ordering::SeqCst) < MOST {
            let trace = Backtrace::force_capture();
            TRACES.lock().unwrap_or_else(PoisonError::into_inner).push(trace);
        }
        IS_BUSY.set(false);
    }
}

// SAFETY: passes everything on to the system's allocator.
unsafe impl GlobalAlloc for CountingAll {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(start, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::count();
        // SAFETY: the caller's promise.
        unsafe { System.realloc(start, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAll = CountingAll;

/// Begins to count the allocations of all threads.
pub fn begin() {
    IS_ON.store(true, Ordering::SeqCst);
}

/// Ends the count, and gives it with the sites, the most frequent one first.
pub fn end() -> (usize, String) {
    IS_ON.store(false, Ordering::SeqCst);
    let count = COUNT.swap(0, Ordering::SeqCst);
    let traces = std::mem::take(&mut *TRACES.lock().unwrap_or_else(PoisonError::into_inner));
    let mut sites = BTreeMap::<String, usize>::new();
    for trace in &traces {
        *sites.entry(site(&trace.to_string())).or_default() += 1;
    }
    let mut sites: Vec<_> = sites.into_iter().collect();
    sites.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let mut text = String::new();
    for (site, count) in sites {
        let _ = writeln!(text, "{count} times\n{site}");
    }
    (count, text)
}

/// The functions of this project in a backtrace, the innermost first, with the lines that call.
fn site(trace: &str) -> String {
    let lines: Vec<_> = trace.lines().map(str::trim).collect();
    let is_ours = |place: &str| place.starts_with("at ./") && !place.contains("counting_all");
    let frames = lines.windows(2).filter(|pair| is_ours(pair[1]));
    let frame = |pair: &[&str]| format!("    {} {}\n", pair[0], pair[1]);
    frames.take(FRAMES).map(frame).collect()
}
