//! The environment variables of the stand-in.

use std::env;

/// How the stand-in behaves.
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) devices: usize,
    pub(crate) seed: u64,
    /// Bytes of each device.
    pub(crate) memory: u64,
    /// As `cuDriverGetVersion` has it: 12090 is 12.9.
    pub(crate) version: u32,
    pub(crate) has_pools: bool,
    pub(crate) has_peers: bool,
    /// Whether threads that share an address are looked for.
    pub(crate) finds_races: bool,
    pub(crate) faults: String,
}

fn text(name: &str) -> Option<String> {
    env::var(format!("KV_CUDA_STAND_IN_{name}")).ok()
}

fn number(name: &str, default: u64) -> u64 {
    text(name).and_then(|text| text.trim().parse().ok()).unwrap_or(default)
}

fn is_on(name: &str) -> bool {
    text(name).is_none_or(|text| text != "no")
}

impl Settings {
    const MAX_DEVICES: u64 = 8;

    pub(crate) fn read() -> Self {
        let version = u32::try_from(number("VERSION", 12_090)).unwrap_or(u32::MAX);
        Self {
            devices: usize::try_from(number("DEVICES", 1).min(Self::MAX_DEVICES)).unwrap_or(1),
            seed: number("SEED", 1),
            memory: number("MEMORY", 1 << 30),
            version,
            has_pools: is_on("POOLS") && version >= 11_020,
            has_peers: is_on("PEERS"),
            finds_races: is_on("RACES"),
            faults: text("FAIL").unwrap_or_default(),
        }
    }
}
