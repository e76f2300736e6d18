//! Charts as SVG, 800 by 500: lines over sizes, and groups of bars.

use std::fmt::{Display, Write};

const WIDTH: f64 = 800.0;
const HEIGHT: f64 = 500.0;
const COLOURS: [&str; 5] = ["#1d4ed8", "#c2410c", "#047857", "#7c3aed", "#64748b"];
/// Two that belong together, and two others.
const BARS: [&str; 4] = ["#1d4ed8", "#93c5fd", "#c2410c", "#94a3b8"];
const HEAD: &str = "<style>
text { font: 12px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #475569; }
text.title { font-size: 16px; font-weight: bold; fill: #0f172a; }
text.note { font-weight: bold; fill: #0f172a; }
text.figure { font-size: 11px; paint-order: stroke; stroke: #ffffff; stroke-width: 3px; }
.axis { stroke: #475569; fill: none; }
.grid { stroke: #e2e8f0; fill: none; }
.goal { stroke: #0f172a; stroke-width: 1.5; stroke-dasharray: 5 4; }
.line { stroke-width: 2.5; fill: none; stroke-linejoin: round; }
</style>";

/// What a chart says around its figures.
pub struct Frame<'a> {
    pub title: &'a str,
    pub subtitle: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

pub struct Line<'a> {
    pub name: &'a str,
    /// One for each place on the x axis, where there is one.
    pub values: Vec<Option<f64>>,
}

pub struct Group {
    /// Under the axis, one below the other; the last one stands out.
    pub labels: Vec<String>,
    /// One for each name of the legend.
    pub values: Vec<Option<f64>>,
    pub limit: f64,
}

/// The chart as it grows: where its field is, and what has been drawn.
struct Chart {
    svg: String,
    left: f64,
    right: f64,
    top: f64,
    bottom: f64,
    most: f64,
}

impl Chart {
    /// Axes with about five steps from 0 to `most` or a little more.
    fn new(frame: &Frame<'_>, right: f64, bottom: f64, most: f64) -> Self {
        let step = step(most);
        let most = (most / step).ceil() * step;
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n<title>{}</title>\n{HEAD}\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"#ffffff\"/>\n",
            escape(frame.title)
        );
        let mut chart = Self { svg, left: 76.0, right, top: 84.0, bottom, most };
        chart.text(24.0, 30.0, "class=\"title\"", frame.title);
        chart.text(24.0, 52.0, "", frame.subtitle);
        let steps = (most / step).round() as usize;
        for value in (0..=steps).map(|index| index as f64 * step) {
            let y = chart.y(value);
            chart.path("grid", chart.left, y, &format!("H{:.1}", chart.right));
            let digits = usize::from(step < 1.0);
            chart.text(chart.left - 9.0, y + 4.0, END, format!("{value:.digits$}"));
        }
        let middle = f64::midpoint(chart.top, chart.bottom);
        let turned = format!("transform=\"rotate(-90 26 {middle})\" text-anchor=\"middle\"");
        chart.text(26.0, middle, &turned, frame.y);
        let middle = f64::midpoint(chart.left, chart.right);
        chart.text(middle, HEIGHT - 16.0, MIDDLE, frame.x);
        chart.path("axis", chart.left, chart.top, &format!("V{bottom:.1}H{right:.1}"));
        chart
    }

    fn y(&self, value: f64) -> f64 {
        self.bottom - value / self.most * (self.bottom - self.top)
    }

    fn path(&mut self, class: &str, x: f64, y: f64, rest: &str) {
        self.put(format_args!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}{rest}\"/>"));
    }

    fn block(&mut self, x: f64, y: f64, width: f64, height: f64, colour: &str) {
        self.put(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" \
             fill=\"{colour}\"/>"
        ));
    }

    fn text(&mut self, x: f64, y: f64, attributes: &str, text: impl Display) {
        let text = escape(&text.to_string());
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>"));
    }

    /// A mark whose form tells the lines apart without colours.
    fn mark(&mut self, x: f64, y: f64, kind: usize) {
        let colour = COLOURS[kind % COLOURS.len()];
        let form = match kind % COLOURS.len() {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\""),
            1 => format!("<path d=\"M{x:.1} {y:.1}m-4 -4h8v8h-8z\""),
            2 => format!("<path d=\"M{x:.1} {y:.1}m0 -6l5.5 9.5h-11z\""),
            3 => format!("<path d=\"M{x:.1} {y:.1}m0 -6l6 6l-6 6l-6 -6z\""),
            _ => format!("<path d=\"M{x:.1} {y:.1}m0 6l5.5 -9.5h-11z\""),
        };
        self.put(format_args!("{form} fill=\"{colour}\" stroke=\"#ffffff\"/>"));
    }

    fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.svg, "{element}");
    }

    fn end(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

const MIDDLE: &str = "text-anchor=\"middle\"";
const END: &str = "text-anchor=\"end\"";

/// Lines over places on the x axis, and a dashed one at 1.
pub fn lines(frame: &Frame<'_>, places: &[String], lines: &[Line<'_>]) -> String {
    let values = lines.iter().flat_map(|line| line.values.iter().flatten());
    let most = values.fold(1.1, |most: f64, value| most.max(*value));
    let mut chart = Chart::new(frame, WIDTH - 142.0, HEIGHT - 62.0, most);
    let gap = (chart.right - chart.left) / places.len() as f64;
    let x = |index: usize| 76.0 + gap * (index as f64 + 0.5);
    for (index, place) in places.iter().enumerate() {
        chart.path("axis", x(index), chart.bottom, "v5");
        chart.text(x(index), chart.bottom + 20.0, MIDDLE, place);
    }
    chart.path("goal", chart.left, chart.y(1.0), &format!("H{:.1}", chart.right));
    chart.text(chart.right + 12.0, chart.y(1.0) + 4.0, "class=\"note\"", "the limit");
    for (kind, line) in lines.iter().enumerate() {
        draw(&mut chart, kind, line, &x);
        let y = chart.bottom - 22.0 * (lines.len() - 1 - kind) as f64 - 8.0;
        chart.mark(chart.right + 18.0, y - 4.0, kind);
        chart.text(chart.right + 32.0, y, "", line.name);
    }
    chart.end()
}

fn draw(chart: &mut Chart, kind: usize, line: &Line<'_>, x: &impl Fn(usize) -> f64) {
    let places = line.values.iter().enumerate();
    let points: Vec<(f64, f64)> =
        places.filter_map(|(index, value)| Some((x(index), chart.y((*value)?)))).collect();
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let colour = COLOURS[kind % COLOURS.len()];
    let list = list.join("L");
    chart.put(format_args!("<path class=\"line\" stroke=\"{colour}\" d=\"M{list}\"/>"));
    points.into_iter().for_each(|(x, y)| chart.mark(x, y, kind));
}

/// Groups of bars with a figure on each, and a mark where the limit is, if that is in the chart.
pub fn bars(frame: &Frame<'_>, names: &[&str], groups: &[Group]) -> String {
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
        chart.block(x, y - 10.0, 12.0, 12.0, colour);
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
        chart.block(x, y, bar - 2.0, chart.bottom - y, colour);
    }
    if group.limit <= chart.most {
        chart.path("goal", left - 4.0, chart.y(group.limit), &format!("h{:.1}", width + 6.0));
    }
    for &(x, value, _) in &bars {
        let place = format!("{MIDDLE} class=\"figure\"");
        chart.text(x + bar / 2.0 - 1.0, chart.y(value) - 4.0, &place, figure(value));
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

/// 1, 2 or 5 times a power of ten: about five of them make `most`.
fn step(most: f64) -> f64 {
    let power = 10f64.powf((most / 5.0).log10().floor());
    let factors = [1.0, 2.0, 5.0, 10.0].into_iter();
    let mut steps = factors.map(|factor| factor * power);
    steps.find(|step| *step * 5.0 >= most * 0.999).unwrap_or(most)
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
