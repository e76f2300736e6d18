//! How the threads of a pool find work: a task queue, and splits published for helpers (work
//! sharing).
//!
//! A helper that runs out of work spins for a short while, then parks. A thread that publishes work
//! wakes a parked helper only if no helper is searching. A helper that finds work leaves the count
//! of searchers, and wakes a successor for any work left. So no work stays unclaimed while a helper
//! is parked, and no thread pays for more than two wake-ups.

use std::collections::VecDeque;
use std::sync::Weak;

use super::split::{Post, Split};
use super::{Task, place};
use crate::sys::spin::Spin;
use crate::sys::sync::{AtomicUsize, Condvar, Mutex, Ordering, fence};

/// Maximum number of splits with helpers at a time; owners of further splits work alone.
const POSTS: usize = if cfg!(loom) { 1 } else { 16 };

/// Parked helpers that one thread wakes at a time. Woken helpers wake further ones, so all start
/// soon.
const WAKES: usize = 2;

pub(super) struct ThreadCrew {
    posts: [Post; POSTS],
    counts: Counts,
    queued: QueuedTasks,
    state: Mutex<CrewState>,
    /// Signalled with each wake-up.
    wakeup: Condvar,
    /// Signalled when the last helper has left a split whose owner sleeps.
    left: Condvar,
    /// Processors that the process may use.
    processors: usize,
}

/// On its own cache line, apart from the posts.
#[repr(align(128))]
struct Counts {
    /// Helpers that search for work, or were woken to search.
    looking: AtomicUsize,
    /// Helpers that sleep. Changes under the lock.
    parked: AtomicUsize,
    /// Threads that compute something large, helpers and their owners.
    working: AtomicUsize,
}

/// Tasks in the queue; changes under the lock. Helpers that search read it all the time, so it is
/// apart from what each split changes.
#[repr(align(128))]
struct QueuedTasks(AtomicUsize);

struct CrewState {
    tasks: VecDeque<Weak<dyn Task>>,
    /// Wake-ups that no helper has taken yet.
    wakeups: usize,
}

/// Work that exactly one thread does.
enum ClaimedWork<'a> {
    /// A seat.
    Split(&'a Post, *const Split),
    Task(Weak<dyn Task>),
}

impl ThreadCrew {
    pub(super) fn new(processors: usize) -> Self {
        let zero = || AtomicUsize::new(0);
        Self {
            posts: std::array::from_fn(|_| Post::new()),
            counts: Counts { looking: zero(), parked: zero(), working: zero() },
            queued: QueuedTasks(zero()),
            state: Mutex::new(CrewState { tasks: VecDeque::new(), wakeups: 0 }),
            wakeup: Condvar::new(),
            left: Condvar::new(),
            processors,
        }
    }

    /// Number of helpers that search for work.
    pub(super) fn looking(&self) -> usize {
        // Relaxed: a hint.
        self.counts.looking.load(Ordering::Relaxed)
    }

    /// Number of idle helpers, beyond what is queued.
    pub(super) fn idle(&self) -> usize {
        let Counts { looking, parked, .. } = &self.counts;
        // Relaxed: a hint.
        let idle = looking.load(Ordering::Relaxed) + parked.load(Ordering::Relaxed);
        idle.saturating_sub(self.queued.0.load(Ordering::Relaxed))
    }

    /// Counts the calling thread among those that compute; returns how many processors are left.
    pub(super) fn start_work(&self) -> usize {
        // Relaxed: a hint.
        let working = self.counts.working.fetch_add(1, Ordering::Relaxed) + 1;
        self.processors.saturating_sub(working)
    }

    /// Takes back [`Self::start_work`].
    pub(super) fn stop_work(&self) {
        self.counts.working.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the searching helpers find a processor beside the computing threads.
    fn may_spin(&self) -> bool {
        let Counts { looking, working, .. } = &self.counts;
        // At least one thread publishes work.
        let others = working.load(Ordering::Relaxed).max(1);
        looking.load(Ordering::Relaxed) + others <= self.processors
    }

    /// Queues a task.
    pub(super) fn push(&self, task: Weak<dyn Task>) {
        let mut state = self.state.lock();
        state.tasks.push_back(task);
        self.queued.0.store(state.tasks.len(), Ordering::Relaxed);
        drop(state);
        self.wake();
    }

    /// Runs each piece once, here and on up to `helpers` helpers; returns whether none panicked.
    pub(super) fn split(&self, helpers: usize, pieces: u32, run: &(dyn Fn(usize) + Sync)) -> bool {
        // SAFETY: `run` lives longer than this call, and the split does not.
        let split = unsafe { Split::new(helpers, pieces, run) };
        let post = self.posts.iter().find(|post| post.open(&split, helpers));
        if post.is_some() {
            self.wake();
        }
        split.work(None);
        // `end` closes the post to new helpers; `wait` returns when the last helper has left.
        if let Some(post) = post {
            self.end(post);
        }
        split.finish()
    }

    /// Waits for the helpers of a split; for none that has not begun.
    fn end(&self, post: &Post) {
        post.close();
        let mut spin = Spin::default();
        while post.is_busy() {
            if self.processors > 1 && spin.wait() {
                continue;
            }
            let mut state = self.state.lock();
            post.fall_asleep();
            while post.is_busy() {
                self.left.wait(&mut state);
            }
        }
        post.free();
    }

    /// One iteration of a helper, of a number of its own: finds work, parked if need be, and does it.
    /// Returns whether it pays to spin in the next iteration.
    pub(super) fn serve(&self, helper: usize, spins: bool) -> bool {
        let found = self.look(spins);
        self.stop_looking();
        match found {
            // SAFETY: this helper has a seat, so the owner waits for it.
            ClaimedWork::Split(post, split) => self.help(helper, post, unsafe { &*split }),
            ClaimedWork::Task(task) => {
                if let Some(task) = task.upgrade() {
                    task.run();
                }
                self.start_looking();
                true
            }
        }
    }

    /// Works on a split from a seat, and leaves it; returns whether it pays to spin afterwards.
    fn help(&self, helper: usize, post: &Post, split: &Split) -> bool {
        self.start_work();
        split.work(Some(helper));
        self.stop_work();
        // All pieces have been claimed.
        if post.seats() > 0 {
            post.close();
        }
        let shared = split.processor().filter(|owners| place::processor() == Some(*owners));
        // Before the seat is released, so that the owner's next split finds this helper.
        self.start_looking();
        if post.leave() {
            // Under the lock, so that the owner is not between its check and its sleep.
            drop(self.state.lock());
            self.left.notify_all();
        }
        // No spinning where the owner runs.
        shared.is_none_or(place::leave)
    }

    /// Searches for work until there is some.
    fn look(&self, mut spins: bool) -> ClaimedWork<'_> {
        let mut spin = Spin::default();
        loop {
            if let Some(found) = self.find() {
                return found;
            }
            if !spins || !self.may_spin() || !spin.wait() {
                self.park();
                // It may have been woken elsewhere, and too late for the work that it was woken for.
                (spins, spin) = (true, Spin::default());
            }
        }
    }

    /// Tasks first: only helpers run them, while the owner of a split works itself.
    fn find(&self) -> Option<ClaimedWork<'_>> {
        // Relaxed: the lock decides, and a helper checks once more under it before it sleeps.
        if self.queued.0.load(Ordering::Relaxed) > 0 {
            let mut state = self.state.lock();
            if let Some(task) = state.tasks.pop_front() {
                self.queued.0.store(state.tasks.len(), Ordering::Relaxed);
                return Some(ClaimedWork::Task(task));
            }
        }
        self.posts.iter().find_map(|post| Some(ClaimedWork::Split(post, post.join()?)))
    }

    /// Joins the searching helpers; also on behalf of a helper that is about to start.
    pub(super) fn start_looking(&self) {
        self.counts.looking.fetch_add(1, Ordering::Relaxed);
    }

    /// Leaves the searching helpers, and wakes another one for work that relied on this one.
    pub(super) fn stop_looking(&self) {
        self.counts.looking.fetch_sub(1, Ordering::Relaxed);
        self.wake();
    }

    /// Whether there is unclaimed work.
    fn open_work(&self) -> usize {
        let seats: usize = self.posts.iter().map(Post::seats).sum();
        seats + self.queued.0.load(Ordering::Relaxed)
    }

    /// Parks until woken.
    fn park(&self) {
        let Counts { looking, parked, .. } = &self.counts;
        let mut state = self.state.lock();
        looking.fetch_sub(1, Ordering::Relaxed);
        parked.fetch_add(1, Ordering::Relaxed);
        // Every publisher that has not seen this helper leave the searchers published its work
        // before this check; see `wake`.
        fence(Ordering::SeqCst);
        if self.open_work() > 0 {
            parked.fetch_sub(1, Ordering::Relaxed);
            looking.fetch_add(1, Ordering::Relaxed);
            return;
        }
        while state.wakeups == 0 {
            self.wakeup.wait(&mut state);
        }
        state.wakeups -= 1;
    }

    /// Wakes parked helpers for published work, unless a helper is searching.
    fn wake(&self) {
        let Counts { looking, parked, .. } = &self.counts;
        // Either this thread sees that a helper has stopped searching, or the helper sees the work;
        // see `park`.
        fence(Ordering::SeqCst);
        if looking.load(Ordering::Relaxed) > 0 || parked.load(Ordering::Relaxed) == 0 {
            return;
        }
        let wakes = self.open_work().min(WAKES);
        if wakes == 0 {
            return;
        }
        let mut state = self.state.lock();
        let wakes = wakes.min(parked.load(Ordering::Relaxed));
        // On behalf of the woken helpers, so that no other thread wakes them too.
        parked.fetch_sub(wakes, Ordering::Relaxed);
        looking.fetch_add(wakes, Ordering::Relaxed);
        state.wakeups += wakes;
        drop(state);
        (0..wakes).for_each(|_| self.wakeup.notify_one());
    }
}
