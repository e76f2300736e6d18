//! Groups of bars as SVG.

use crate::plot::{Chart, ChartFrame, HEIGHT, MIDDLE, WIDTH};

/// Two that belong together, and two others.
const BARS: [&str; 4] = ["#1d4ed8", "#93c5fd", "#c2410c", "#94a3b8"];

pub struct Group {
    /// Under the axis, one below the other; the last one stands out.
    pub labels: Vec<String>,
    /// One for each name of the legend.
    pub values: Vec<Option<f64>>,
    pub limit: f64,
}

/// Groups of bars with a figure on each, and a mark where the limit is, if that is in the chart.
pub fn bars(frame: &ChartFrame<'_>, names: &[&str], groups: &[Group]) -> String {
    let values = groups.iter().flat_map(|group| group.values.iter().flatten());
    let most = values.fold(1.0, |most: f64, value| most.max(*value));
    let mut chart = Chart::new(frame, WIDTH - 24.0, HEIGHT - 108.0, most * 1.04);
    let width = (chart.right - chart.left) / groups.len() as f64;
    for (index, group) in groups.iter().enumerate() {
        let left = chart.left + width * (index as f64 + 0.1);
        group_of_bars(&mut chart, group, left, width * 0.8);
    }
    let (mut x, y) = (chart.left, chart.top - 14.0);
    for (name, colour) in names.iter().zip(BARS) {
        block(&mut chart, x, y - 10.0, (12.0, 12.0), colour);
        chart.text(x + 18.0, y, "", name);
        x += 46.0 + 6.0 * name.len() as f64;
    }
    chart.path("goal", x, y - 4.0, "h18");
    chart.text(x + 24.0, y, "", "the limit of the machine");
    chart.end()
}

fn group_of_bars(chart: &mut Chart, group: &Group, left: f64, width: f64) {
    let bar = width / group.values.len() as f64;
    let places = (0..).map(|index| left + bar * f64::from(index));
    let bars: Vec<(f64, f64, &str)> = places
        .zip(&group.values)
        .zip(BARS)
        .filter_map(|((x, value), colour)| Some((x, (*value)?, colour)))
        .collect();
    for &(x, value, colour) in &bars {
        let y = chart.y(value);
        let size = (bar - 2.0, chart.bottom - y);
        block(chart, x, y, size, colour);
    }
    if group.limit <= chart.most {
        chart.path("goal", left - 4.0, chart.y(group.limit), &format!("h{:.1}", width + 6.0));
    }
    for &(x, value, _) in &bars {
        // The halo is a text of its own: some renderers ignore `paint-order`, and would draw the
        // stroke over the figure.
        for class in ["halo", "figure"] {
            let place = format!("{MIDDLE} class=\"{class}\"");
            chart.text(x + bar / 2.0 - 1.0, chart.y(value) - 4.0, &place, figure(value));
        }
    }
    for (row, label) in group.labels.iter().enumerate() {
        let note = if row + 1 == group.labels.len() { "class=\"note\"" } else { "" };
        let y = chart.bottom + 18.0 + 17.0 * row as f64;
        chart.text(left + width / 2.0, y, &format!("{MIDDLE} {note}"), label);
    }
}

/// Two digits that count.
pub fn figure(value: f64) -> String {
    let digits = match value {
        _ if value < 0.1 => 2,
        _ if value < 9.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}")
}

fn block(chart: &mut Chart, x: f64, y: f64, (width, height): (f64, f64), colour: &str) {
    chart.put(format_args!(
        "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
         fill=\"{colour}\"/>"
    ));
}
