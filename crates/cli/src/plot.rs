//! Charts as SVG, 800 by 500: lines over sizes. `benches/local` draws with it too.
#![allow(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "places in a picture"
)]

use std::fmt::{Display, Write};

pub const WIDTH: f64 = 800.0;
pub const HEIGHT: f64 = 500.0;
const COLOURS: [&str; 5] = ["#1d4ed8", "#c2410c", "#047857", "#7c3aed", "#64748b"];
const HEAD: &str = "<style>
text { font: 12px 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif; fill: #475569; }
text.title { font-size: 16px; font-weight: bold; fill: #0f172a; }
text.note { font-weight: bold; fill: #0f172a; }
text.figure, text.halo { font-size: 11px; }
text.halo { fill: #ffffff; stroke: #ffffff; stroke-width: 3px; }
.axis { stroke: #475569; fill: none; }
.grid { stroke: #e2e8f0; fill: none; }
.goal { stroke: #0f172a; stroke-width: 1.5; stroke-dasharray: 5 4; }
.line { stroke-width: 2.5; fill: none; stroke-linejoin: round; }
</style>";

/// The texts of a chart around its plot.
pub struct ChartFrame<'a> {
    pub title: &'a str,
    pub subtitle: &'a str,
    pub x: &'a str,
    pub y: &'a str,
}

pub struct ChartLine {
    pub name: String,
    /// Related lines may share one of the two.
    pub colour: usize,
    pub mark: usize,
    /// One for each place on the x axis, where there is one.
    pub values: Vec<Option<f64>>,
}

/// The chart under construction: its plot area, and the SVG so far.
pub struct Chart {
    svg: String,
    pub left: f64,
    pub right: f64,
    pub top: f64,
    pub bottom: f64,
    pub most: f64,
    /// Where a logarithmic axis begins.
    least: Option<f64>,
}

impl Chart {
    /// Axes with about five steps from 0 to `most` or a little more.
    pub fn new(frame: &ChartFrame<'_>, right: f64, bottom: f64, most: f64) -> Self {
        let step = step(most);
        let steps = (most / step).ceil();
        let digits = usize::from(step < 1.0);
        let ticks = (0..=steps as usize).map(|index| (index as f64 * step, digits));
        Self::with_ticks(frame, right, bottom, (None, steps * step), ticks)
    }

    /// Axes whose vertical one is logarithmic, from one power of ten to another.
    fn logarithmic(
        frame: &ChartFrame<'_>,
        right: f64,
        bottom: f64,
        (least, most): (f64, f64),
    ) -> Self {
        let first = least.log10().floor() as i32;
        let last = (most.log10().ceil() as i32).max(first + 1);
        let range = (Some(10f64.powi(first)), 10f64.powi(last));
        let digits = |power: i32| usize::try_from(-power).unwrap_or(0);
        let ticks = (first..=last).map(|power| (10f64.powi(power), digits(power)));
        Self::with_ticks(frame, right, bottom, range, ticks)
    }

    /// Axes and texts; the ticks of the vertical axis are values and their digits.
    fn with_ticks(
        frame: &ChartFrame<'_>,
        right: f64,
        bottom: f64,
        (least, most): (Option<f64>, f64),
        ticks: impl Iterator<Item = (f64, usize)>,
    ) -> Self {
        let svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             width=\"{WIDTH}\" height=\"{HEIGHT}\" role=\"img\">\n<title>{}</title>\n{HEAD}\n\
             <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\" fill=\"#ffffff\"/>\n",
            escape(frame.title)
        );
        let (left, top) = (76.0, 84.0);
        let mut chart = Self { svg, left, right, top, bottom, most, least };
        chart.text(24.0, 30.0, "class=\"title\"", frame.title);
        chart.text(24.0, 52.0, "", frame.subtitle);
        for (value, digits) in ticks {
            let y = chart.y(value);
            chart.path("grid", left, y, &format!("H{right:.1}"));
            chart.text(left - 9.0, y + 4.0, END, format_args!("{value:.digits$}"));
        }
        let middle = f64::midpoint(top, bottom);
        let turned = format!("transform=\"rotate(-90 26 {middle})\" text-anchor=\"middle\"");
        chart.text(26.0, middle, &turned, frame.y);
        chart.text(f64::midpoint(left, right), HEIGHT - 16.0, MIDDLE, frame.x);
        chart.path("axis", left, top, &format!("V{bottom:.1}H{right:.1}"));
        chart
    }

    pub fn y(&self, value: f64) -> f64 {
        let part = match self.least {
            Some(least) => (value / least).ln() / (self.most / least).ln(),
            None => value / self.most,
        };
        self.bottom - part * (self.bottom - self.top)
    }

    pub fn path(&mut self, class: &str, x: f64, y: f64, rest: &str) {
        self.put(format_args!("<path class=\"{class}\" d=\"M{x:.1} {y:.1}{rest}\"/>"));
    }

    pub fn text(&mut self, x: f64, y: f64, attributes: &str, text: impl Display) {
        let text = escape(&text.to_string());
        self.put(format_args!("<text x=\"{x:.1}\" y=\"{y:.1}\" {attributes}>{text}</text>"));
    }

    /// A mark whose form tells the lines apart without colours.
    fn mark(&mut self, x: f64, y: f64, line: &ChartLine) {
        let colour = COLOURS[line.colour % COLOURS.len()];
        let form = match line.mark % COLOURS.len() {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4.5\""),
            1 => format!("<path d=\"M{x:.1} {y:.1}m-4 -4h8v8h-8z\""),
            2 => format!("<path d=\"M{x:.1} {y:.1}m0 -6l5.5 9.5h-11z\""),
            3 => format!("<path d=\"M{x:.1} {y:.1}m0 -6l6 6l-6 6l-6 -6z\""),
            _ => format!("<path d=\"M{x:.1} {y:.1}m0 6l5.5 -9.5h-11z\""),
        };
        self.put(format_args!("{form} fill=\"{colour}\" stroke=\"#ffffff\"/>"));
    }

    pub fn put(&mut self, element: std::fmt::Arguments<'_>) {
        let _ = writeln!(self.svg, "{element}");
    }

    pub fn end(mut self) -> String {
        self.svg.push_str("</svg>\n");
        self.svg
    }
}

pub const MIDDLE: &str = "text-anchor=\"middle\"";
const END: &str = "text-anchor=\"end\"";

/// Lines over places on the x axis. With the name of a limit the vertical axis begins at 0, and the
/// limit is a dashed line at 1; without one it is logarithmic.
pub fn lines(
    frame: &ChartFrame<'_>,
    places: &[String],
    limit: Option<&str>,
    lines: &[ChartLine],
) -> String {
    let longest = lines.iter().map(|line| line.name.len()).max().unwrap_or(0);
    let right = WIDTH - (46.0 + 6.6 * longest as f64).max(142.0);
    let bottom = HEIGHT - 62.0;
    let values = || lines.iter().flat_map(|line| line.values.iter().flatten().copied());
    let most = values().fold(0.0, f64::max);
    let mut chart = if let Some(name) = limit {
        let mut chart = Chart::new(frame, right, bottom, most.max(1.1));
        chart.path("goal", chart.left, chart.y(1.0), &format!("H{right:.1}"));
        chart.text(right + 12.0, chart.y(1.0) + 4.0, "class=\"note\"", name);
        chart
    } else {
        let least = values().fold(f64::INFINITY, f64::min);
        let range = if least <= most { (least, most) } else { (1.0, 10.0) };
        Chart::logarithmic(frame, right, bottom, range)
    };
    let gap = (chart.right - chart.left) / places.len() as f64;
    let left = chart.left;
    let x = |index: usize| left + gap * (index as f64 + 0.5);
    for (index, place) in places.iter().enumerate() {
        chart.path("axis", x(index), chart.bottom, "v5");
        chart.text(x(index), chart.bottom + 20.0, MIDDLE, place);
    }
    let row = ((chart.bottom - chart.top) / lines.len() as f64).min(22.0);
    for (index, line) in lines.iter().enumerate() {
        draw(&mut chart, line, &x);
        let y = chart.bottom - row * (lines.len() - 1 - index) as f64 - 8.0;
        chart.mark(chart.right + 18.0, y - 4.0, line);
        chart.text(chart.right + 32.0, y, "", &line.name);
    }
    chart.end()
}

fn draw(chart: &mut Chart, line: &ChartLine, x: &impl Fn(usize) -> f64) {
    let places = line.values.iter().enumerate();
    let points: Vec<(f64, f64)> =
        places.filter_map(|(index, value)| Some((x(index), chart.y((*value)?)))).collect();
    let list: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
    let colour = COLOURS[line.colour % COLOURS.len()];
    let list = list.join("L");
    chart.put(format_args!("<path class=\"line\" stroke=\"{colour}\" d=\"M{list}\"/>"));
    points.into_iter().for_each(|(x, y)| chart.mark(x, y, line));
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
