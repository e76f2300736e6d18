//! The sizes of this machine's caches, read from the system once, and how it fills them.

use std::fs;
use std::sync::OnceLock;

/// Sizes in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CacheSizes {
    /// The second level, which each core has for itself.
    pub(crate) own: usize,
    /// The last level, which cores share.
    pub(crate) last: usize,
    /// Whether the processor is AMD's Zen 5 or a later one.
    zen_5: bool,
}

/// Where the system does not tell: a small server.
const FALLBACK: CacheSizes = CacheSizes { own: 1 << 20, last: 32 << 20, zen_5: false };

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
    /// Half of the last level, which others use too; on Zen 5 seven eighths. With a large second
    /// level, seven eighths of those of the threads.
    pub(crate) fn usable(self, threads: usize) -> usize {
        if self.own > SMALL_OWN {
            return self.own / 8 * 7 * threads;
        }
        let last = if self.zen_5 { self.last / 8 * 7 } else { self.last / 2 };
        last.max(self.own)
    }

    /// Whether a step that touches so many bytes prefetches what it loads: where they are more than
    /// half of the last level, but not on Zen 5, which loads in time by itself.
    pub(crate) fn looks_ahead(self, touched: usize) -> bool {
        !self.zen_5 && touched > self.last / 2
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
        Some(Self { own, last, zen_5: is_zen_5() })
    }
}

/// Whether the processor is AMD's, of the family of Zen 5 or a later one. Miri has no processor.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn is_zen_5() -> bool {
    use std::arch::x86_64::__cpuid;

    const ZEN_5: u32 = 0x1a;
    let (maker, version) = (__cpuid(0), __cpuid(1).eax);
    let name = [maker.ebx, maker.edx, maker.ecx].map(u32::to_le_bytes);
    let base = version >> 8 & 0xf;
    let family = if base == 0xf { base + (version >> 20 & 0xff) } else { base };
    name.as_flattened() == b"AuthenticAMD" && family >= ZEN_5
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn is_zen_5() -> bool {
    false
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
        let found = CacheSizes::of(&caches).map(|it| (it.own, it.last));
        assert_eq!(found, Some((512 << 10, 32 << 20)));
        assert_eq!(CacheSizes::of(&caches[..2]), None);
    }

    #[test]
    fn a_step_may_fill_a_part_of_the_last_level_or_the_second_levels_of_its_threads() {
        let usable = |own, last, threads| CacheSizes { own, last, ..FALLBACK }.usable(threads);
        assert_eq!(usable(512 << 10, 32 << 20, 2), 16 << 20);
        assert_eq!(usable(2 << 20, 260 << 20, 1), 7 << 18);
        assert_eq!(usable(2 << 20, 260 << 20, 2), 7 << 19);
        assert_eq!(CacheSizes { zen_5: true, ..FALLBACK }.usable(1), 28 << 20);
    }

    #[test]
    fn a_step_looks_ahead_beyond_half_of_the_last_level_but_on_zen_5() {
        for zen_5 in [true, false] {
            let caches = CacheSizes { zen_5, ..FALLBACK };
            assert_eq!(caches.looks_ahead((16 << 20) + 1), !zen_5);
            assert!(!caches.looks_ahead(16 << 20));
        }
    }
}
