//! What was measured, as tables in Markdown.

use std::fmt::Write;

use crate::Figures;
use crate::cases::Case;

/// Whose times are compared with MXNet's: names of subjects, and the titles of their columns.
const BESIDE_MXNET: [(&str, &str); 6] = [
    ("ours, TCP: push + pull", "TCP"),
    ("ours, TCP: pushpull", "TCP, pushpull"),
    ("ours, shared memory: push + pull", "shared memory"),
    ("ours, shared memory: pushpull", "shared memory, pushpull"),
    ("raw TCP", "plain sockets"),
    ("raw TCP, both ways at once", "both ways at once"),
];

/// The name of a case's table on the page.
pub fn name(case: &Case) -> String {
    format!("dist-{}", case.name)
}

pub fn title(case: &Case) -> String {
    format!("{}: {} keys, {:.1} MB", case.name, case.keys.len(), case.bytes() as f64 / 1e6)
}

/// A row for each subject.
pub fn of_case(case: &Case, all: &[Figures]) -> String {
    let bytes = case.bytes() as f64;
    let mut text = "| who | median | best | GB/s | CPU s per GB | over ours |\n\
                    |---|---:|---:|---:|---:|---:|\n"
        .to_owned();
    let ours = all[0].median();
    for figures in all {
        let median = figures.median();
        let moved = 2.0 * bytes * figures.rounds as f64 / 1e9;
        // Not counted for processes that end with each turn.
        let cpu =
            if figures.cpu_s > 0.0 { format!("{:.2}", figures.cpu_s / moved) } else { "-".into() };
        let _ = writeln!(
            text,
            "| {} | {} | {} | {:.2} | {cpu} | {:.2} |",
            figures.name,
            time(median),
            time(figures.seconds[0]),
            2.0 * bytes / median / 1e9,
            median / ours,
        );
    }
    text
}

/// Time and processor time of all others over those of the first.
pub fn ratios(all: &[Figures]) -> String {
    let cpu = |figures: &Figures| figures.cpu_s / figures.rounds as f64;
    let ratio = |figures: &Figures| {
        let (time, cpu) = (figures.median() / all[0].median(), cpu(figures) / cpu(&all[0]));
        format!("{} over {}: time {time:.2}, processor time {cpu:.2}\n", figures.name, all[0].name)
    };
    all[1..].iter().map(ratio).collect()
}

/// A row for each case: MXNet's time, and how many times as fast others are. Nothing without MXNet.
pub fn beside_mxnet(all: &[(&Case, Vec<Figures>)]) -> Option<String> {
    let mut text = "| case | MXNet |".to_owned();
    BESIDE_MXNET.iter().for_each(|(_, title)| _ = write!(text, " {title} |"));
    let _ = writeln!(text, "\n|---|---:|{}", "---:|".repeat(BESIDE_MXNET.len()));
    for (case, figures) in all {
        let of = |name: &str| figures.iter().find(|it| it.name == name).map(Figures::median);
        let mxnet = of(crate::mxnet::NAME)?;
        let _ = write!(text, "| {} | {} |", case.name, time(mxnet));
        for (name, _) in BESIDE_MXNET {
            let times = of(name).map_or(f64::NAN, |seconds| mxnet / seconds);
            let digits = usize::from(times < 9.95);
            let _ = write!(text, " {times:.digits$} |");
        }
        text.push('\n');
    }
    (!all.is_empty()).then_some(text)
}

fn time(seconds: f64) -> String {
    if seconds < 2e-3 {
        format!("{:.0} us", seconds * 1e6)
    } else {
        format!("{:.2} ms", seconds * 1e3)
    }
}
