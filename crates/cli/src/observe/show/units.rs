//! Numbers in readable units: at most six characters.

/// Bytes, such as `1.2 MB`; of a thousand.
pub(crate) fn bytes(count: f64) -> String {
    scaled(count, &["B", "KB", "MB", "GB", "TB", "PB"])
}

/// A count, such as `812` or `1.2 M`.
pub(crate) fn count(count: f64) -> String {
    scaled(count, &["", "K", "M", "G", "T", "P"])
}

fn scaled(count: f64, units: &[&str]) -> String {
    let (mut number, mut at) = (count, 0);
    while number >= 999.5 && at + 1 < units.len() {
        number /= 1_000.0;
        at += 1;
    }
    let digits = usize::from(at > 0 && number < 9.95);
    format!("{number:.digits$} {}", units[at]).trim_end().into()
}

/// Microseconds, such as `830us`, `1.2ms` or `3.4s`.
pub(crate) fn micros(time: u64) -> String {
    #[allow(clippy::cast_precision_loss, reason = "for people")]
    let time = time as f64;
    match time {
        _ if time < 1e3 => format!("{time:.0}us"),
        _ if time < 9.95e3 => format!("{:.1}ms", time / 1e3),
        _ if time < 999.5e3 => format!("{:.0}ms", time / 1e3),
        _ if time < 9.95e6 => format!("{:.1}s", time / 1e6),
        _ => age(time / 1e6),
    }
}

/// Seconds, such as `42s`, `3m12s`, `5h07m` or `12d03h`.
pub(crate) fn age(seconds: f64) -> String {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative")]
    let whole = seconds.max(0.0) as u64;
    let (minutes, hours, days) = (whole / 60, whole / 3_600, whole / 86_400);
    match whole {
        0..60 => format!("{whole}s"),
        60..3_600 => format!("{minutes}m{:02}s", whole % 60),
        3_600..86_400 => format!("{hours}h{:02}m", minutes % 60),
        _ => format!("{days}d{:02}h", hours % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::{age, bytes, count, micros};

    #[test]
    fn numbers_are_short_and_right() {
        for (number, text) in [
            (0.0, "0 B"),
            (999.0, "999 B"),
            (999.6, "1.0 KB"),
            (1_234.0, "1.2 KB"),
            (99_500.0, "100 KB"),
            (1.25e9, "1.2 GB"),
        ] {
            assert_eq!(bytes(number), text);
        }
        assert_eq!([count(7.0), count(12_345.0)], ["7", "12 K"]);
        let times = [830, 1_200, 9_960, 99_000, 999_600, 3_400_000, 12_000_000, 75_000_000];
        let texts = ["830us", "1.2ms", "10ms", "99ms", "1.0s", "3.4s", "12s", "1m15s"];
        assert_eq!(times.map(micros), texts);
        assert_eq!([age(42.9), age(192.0), age(18_420.0)], ["42s", "3m12s", "5h07m"]);
        assert_eq!(age(1_047_600.0), "12d03h");
    }
}
