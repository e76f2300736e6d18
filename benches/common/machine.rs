//! What was measured, on what, and when; a figure means nothing without it.

use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};
use std::{env, fs};

/// One line for the head of a table: the machine, the date, the library, the command, and what the
/// figures are.
pub fn header(command: &str, figures: &str) -> String {
    format!(
        "{}; {}; {}{}; `{command}`, {figures}.",
        machine(),
        date(),
        env!("CARGO_PKG_VERSION"),
        commit().map_or(String::new(), |commit| format!(" ({commit})")),
    )
}

fn machine() -> String {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    let widest = ["avx512f", "avx2"].into_iter().find(|name| cpus.contains(name));
    let caches: Vec<String> = (0..4)
        .map(|index| read(&format!("/sys/devices/system/cpu/cpu0/cache/index{index}/size")))
        .map(|size| size.trim().to_owned())
        .collect();
    let pages = read("/sys/kernel/mm/transparent_hugepage/enabled");
    let pages = pages.split(['[', ']']).nth(1).unwrap_or("unknown");
    format!(
        "{}, {} processors, {}, caches {}, huge pages {pages}",
        model.unwrap_or("unknown processor"),
        std::thread::available_parallelism().map_or(1, usize::from),
        widest.unwrap_or(env::consts::ARCH),
        caches.join(" ").trim(),
    )
}

/// The day in UTC, as 2026-01-31.
fn date() -> String {
    let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
    // Years that begin in March, so that a leap day is the last one: 400 of them have 146,097 days.
    let days = seconds / 86_400 + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (month, next) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    format!("{}-{month:02}-{day:02}", 400 * era + year + next)
}

/// The commit of the checkout, and whether something but pages and charts differs from it.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| Command::new("git").args(arguments).output().ok();
    let output = git(&["rev-parse", "--short", "HEAD"])?;
    let hash = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    let product = ["diff", "--quiet", "HEAD", "--", ".", ":!docs", ":!benches/charts"];
    let changed = !git(&product)?.status.success();
    output.status.success().then(|| if changed { hash + ", changed" } else { hash })
}
