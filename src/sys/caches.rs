//! The sizes of this machine's caches, read from the system once.

use std::fs;
use std::sync::OnceLock;

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheSizes {
    /// The second level, which each core has for itself.
    pub(crate) own: usize,
    /// The last level, which cores share.
    pub(crate) last: usize,
}

/// Where the system does not tell: a small server.
const FALLBACK: CacheSizes = CacheSizes { own: 1 << 20, last: 32 << 20 };

/// Size of a second level beyond which a processor has many cores on a mesh, whose last level is
/// slower than stores past it (measured on a Xeon with 2 MiB and 260 MiB).
const SMALL_OWN: usize = 1 << 20;

impl CacheSizes {
    pub(crate) fn get() -> Self {
        static SIZES: OnceLock<CacheSizes> = OnceLock::new();
        *SIZES.get_or_init(|| Self::read().unwrap_or(FALLBACK))
    }

    /// Bytes that a step on so many threads may touch and find in the caches again.
    ///
    /// Half of the last level, which others use too. With a large second level, seven eighths of
    /// those of the threads.
    pub(crate) fn usable(self, threads: usize) -> usize {
        if self.own > SMALL_OWN {
            return self.own / 8 * 7 * threads;
        }
        (self.last / 2).max(self.own)
    }

    /// The caches of the first processor, as Linux tells them.
    fn read() -> Option<Self> {
        if cfg!(any(miri, not(target_os = "linux"))) {
            return None;
        }
        let sizes = (0..8).filter_map(|index| {
            let file = |name| {
                let path = format!("/sys/devices/system/cpu/cpu0/cache/index{index}/{name}");
                fs::read_to_string(path).ok()
            };
            let level: u32 = file("level")?.trim().parse().ok()?;
            Some((level, parse(&file("size")?)?))
        });
        Self::of(&sizes.collect::<Vec<_>>())
    }

    /// From levels and sizes.
    fn of(caches: &[(u32, usize)]) -> Option<Self> {
        let own = caches.iter().find(|(level, _)| *level == 2)?.1;
        let last = caches.iter().max_by_key(|(level, _)| *level)?.1;
        Some(Self { own, last })
    }
}

/// `32768K` in bytes.
fn parse(size: &str) -> Option<usize> {
    let size = size.trim();
    let unit =
        [('K', 10), ('M', 20), ('G', 30)].into_iter().find(|(unit, _)| size.ends_with(*unit));
    let (digits, shift) =
        unit.map_or((size, 0), |(unit, shift)| (size.trim_end_matches(unit), shift));
    digits.parse::<usize>().ok()?.checked_mul(1 << shift)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_the_system_writes_them() {
        assert_eq!(parse("32768K\n"), Some(32 << 20));
        assert_eq!(parse("260M"), Some(260 << 20));
        assert_eq!(parse("512"), Some(512));
        assert_eq!([parse(""), parse("K"), parse("x1K")], [None; 3]);
        let caches = [(1, 32 << 10), (1, 32 << 10), (2, 512 << 10), (3, 32 << 20)];
        let sizes = CacheSizes { own: 512 << 10, last: 32 << 20 };
        assert_eq!(CacheSizes::of(&caches), Some(sizes));
        assert_eq!(CacheSizes::of(&caches[..2]), None);
    }

    #[test]
    fn a_step_may_fill_half_of_the_last_level_or_the_second_levels_of_its_threads() {
        assert_eq!(CacheSizes { own: 512 << 10, last: 32 << 20 }.usable(2), 16 << 20);
        assert_eq!(CacheSizes { own: 2 << 20, last: 260 << 20 }.usable(1), 7 << 18);
        assert_eq!(CacheSizes { own: 2 << 20, last: 260 << 20 }.usable(2), 7 << 19);
    }
}
