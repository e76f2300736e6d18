//! The screen of `kvstore top`: a function of the views and of the keys pressed.

use std::cmp::Ordering;
use std::time::{Duration, Instant};

use kvstore::{Node, Result, State, View};
use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, Widget};

use crate::observe::show::cells::{self, Column, is_slowest, number};
use crate::observe::show::waits::{self, Wait};
use crate::observe::show::{table, transports, units};

/// Lines for calls that wait, at most.
const MOST_WAITS: usize = 8;

const GOOD: Style = Style::new().fg(Color::Green);
const CAREFUL: Style = Style::new().fg(Color::Yellow).add_modifier(Modifier::BOLD);
const BAD: Style = Style::new().fg(Color::LightRed).add_modifier(Modifier::BOLD);
const QUIET: Style = Style::new().fg(Color::DarkGray);
const STRONG: Style = Style::new().add_modifier(Modifier::BOLD);

/// Sort order of the rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Node,
    In,
    Out,
    Round,
    Latency,
}

impl Sort {
    const NAMES: [(Self, &str); 5] = [
        (Self::Node, "node"),
        (Self::In, "bytes in"),
        (Self::Out, "bytes out"),
        (Self::Round, "round"),
        (Self::Latency, "latency"),
    ];

    pub(crate) fn next(self) -> Self {
        Self::NAMES[(self as usize + 1) % Self::NAMES.len()].0
    }

    fn name(self) -> &'static str {
        Self::NAMES[self as usize].1
    }

    /// Most first; by node as they are.
    fn compare(self, one: &Node, other: &Node) -> Ordering {
        let key = |node: &Node| -> f64 {
            let Some(facts) = &node.facts else { return -1.0 };
            let slowest = [&facts.push, &facts.pull, &facts.pushpull].map(|call| call.p99_us);
            match self {
                Sort::Node => 0.0,
                Sort::In => facts.rates.map_or(-1.0, |rates| rates.bytes_in_per_s),
                Sort::Out => facts.rates.map_or(-1.0, |rates| rates.bytes_out_per_s),
                Sort::Round => number(facts.counters.round),
                Sort::Latency => slowest.into_iter().flatten().max().map_or(-1.0, number),
            }
        };
        key(other).total_cmp(&key(one))
    }
}

/// The displayed view.
pub(crate) struct Screen {
    view: View,
    /// Arrival time of the view, and why there is no newer one.
    seen: Instant,
    failure: Option<String>,
    interval: Duration,
    shown_age: u64,
    pub(crate) sort: Sort,
    pub(crate) reversed: bool,
    pub(crate) scroll: usize,
}

impl Screen {
    pub(crate) fn new(view: View, interval: Duration) -> Self {
        Self {
            view,
            seen: Instant::now(),
            failure: None,
            interval,
            shown_age: 0,
            sort: Sort::Node,
            reversed: false,
            scroll: 0,
        }
    }

    /// Stores a new view, or the error of a query.
    pub(crate) fn take(&mut self, view: Result<View>) {
        match view {
            Ok(view) => {
                self.view = view;
                self.seen = Instant::now();
                self.failure = None;
                self.shown_age = 0;
            }
            Err(error) => self.failure = Some(error.to_string()),
        }
    }

    /// Whether the view's age in seconds has changed, and matters.
    pub(crate) fn gets_older(&mut self) -> bool {
        let age = self.seen.elapsed().as_secs();
        let older = age > self.shown_age && age > self.interval.as_secs() + 2;
        self.shown_age = self.shown_age.max(age);
        older
    }

    pub(crate) fn draw(&mut self, area: Rect, to: &mut Buffer) {
        let waits = waits::of(&self.view);
        let lines = waits.len().clamp(1, MOST_WAITS);
        let wait_height = u16::try_from(lines + 2).unwrap_or(3);
        let rows = u16::try_from(self.view.nodes.len() + 2).unwrap_or(u16::MAX);
        let parts = [
            Constraint::Length(4),
            Constraint::Max(rows),
            Constraint::Length(wait_height),
            Constraint::Fill(1),
            Constraint::Length(1),
        ];
        let [head, nodes, waiting, _, foot] = Layout::vertical(parts).areas(area);
        self.draw_head(head, to);
        self.draw_nodes(nodes, to);
        draw_waits(&waits, waiting, to);
        self.draw_foot(foot, to);
    }

    fn draw_head(&self, area: Rect, to: &mut Buffer) {
        let view = &self.view;
        let (wrong, text) = table::verdict(view);
        let lost = view.nodes.iter().any(|node| node.state == State::Lost);
        let style = match (wrong, lost) {
            (false, _) => GOOD,
            (true, false) => CAREFUL,
            (true, true) => BAD,
        };
        let verdict = match &self.failure {
            Some(failure) => {
                let age = units::age(self.seen.elapsed().as_secs_f64());
                Line::styled(format!(" seen {age} ago; {failure}"), BAD)
            }
            None => Line::styled(format!(" {text}"), style),
        };
        let title = Line::from(vec![
            Span::styled(" kvstore top  ", STRONG.fg(Color::Cyan)),
            Span::styled(table::headline(view), STRONG),
        ]);
        let bar = if area.width >= cells::WIDE_ENOUGH { 40 } else { 8 };
        let lines = vec![title, verdict, self.totals(bar)];
        Paragraph::new(lines).render(area, to);
    }

    /// The transports between workers and servers.
    fn over(&self) -> String {
        match transports::names(&self.view) {
            names if names.is_empty() => names,
            names => format!(" over {names}"),
        }
    }

    /// Throughput of the servers, and the memory use of the fullest one.
    fn totals(&self, bar: usize) -> Line<'static> {
        let servers = self.view.nodes.iter().filter(|node| node.role == "server");
        let rates = servers.filter_map(|node| node.facts.as_ref()?.rates);
        let (bytes_in, bytes_out) = rates.fold((0.0, 0.0), |sum, rates| {
            (sum.0 + rates.bytes_in_per_s, sum.1 + rates.bytes_out_per_s)
        });
        let through = format!(
            " servers: in {}/s, out {}/s{}  ",
            units::bytes(bytes_in),
            units::bytes(bytes_out),
            self.over()
        );
        let Some((name, held, limit)) = table::fullest(&self.view) else {
            return Line::raw(through);
        };
        let part = number(held) / number(limit.max(1));
        #[allow(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            clippy::cast_precision_loss,
            reason = "between 0 and the width of the bar"
        )]
        let full = ((part * bar as f64).ceil() as usize).min(bar);
        let style = if part > 0.8 { CAREFUL } else { GOOD };
        let text = format!(" {} of {}", units::bytes(number(held)), units::bytes(number(limit)));
        Line::from(vec![
            Span::raw(through),
            Span::raw(format!("{name} holds [")),
            Span::styled("|".repeat(full), style),
            Span::raw(format!("{}]{text}", " ".repeat(bar - full))),
        ])
    }

    fn draw_nodes(&mut self, area: Rect, to: &mut Buffer) {
        let columns = cells::fitting(area.width);
        let mut nodes: Vec<&Node> = self.view.nodes.iter().collect();
        nodes.sort_by(|one, other| self.sort.compare(one, other));
        if self.reversed {
            nodes.reverse();
        }
        let room = usize::from(area.height.saturating_sub(1));
        self.scroll = self.scroll.min(nodes.len().saturating_sub(room));
        let hidden = nodes.len().saturating_sub(self.scroll + room);
        let rows = nodes.iter().skip(self.scroll).map(|node| row(&self.view, node, &columns));
        let titles = columns.iter().map(|(column, _)| aligned(column, column.title));
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        Table::new(rows, widths)
            .header(Row::new(titles).style(STRONG.add_modifier(Modifier::REVERSED)))
            .column_spacing(1)
            .render(area, to);
        if hidden > 0 && area.height > 1 {
            let text = format!(" {hidden} more below ");
            let width = u16::try_from(text.len()).unwrap_or(0).min(area.width);
            let at = Rect::new(area.right() - width, area.bottom() - 1, width, 1);
            Paragraph::new(Line::styled(text, CAREFUL)).render(at, to);
        }
    }

    fn draw_foot(&self, area: Rect, to: &mut Buffer) {
        let order = if self.reversed { ", reversed" } else { "" };
        let keys = [
            ("q", " quit  ".to_owned()),
            ("s", format!(" sort: {}{order}  ", self.sort.name())),
            ("r", " reverse  ".into()),
            ("up/down", " scroll  ".into()),
        ];
        let spans = keys.into_iter().flat_map(|(key, text)| {
            [Span::styled(format!(" {key}"), STRONG.fg(Color::Cyan)), Span::raw(text)]
        });
        Paragraph::new(Line::from(spans.collect::<Vec<_>>())).render(area, to);
        let every = format!("every {} ", units::micros(self.interval_us()));
        let width = u16::try_from(every.len()).unwrap_or(0).min(area.width);
        let at = Rect::new(area.right() - width, area.y, width, area.height);
        Paragraph::new(Line::styled(every, QUIET)).render(at, to);
    }

    fn interval_us(&self) -> u64 {
        u64::try_from(self.interval.as_micros()).unwrap_or(u64::MAX)
    }
}

fn aligned(column: &Column, text: &str) -> Line<'static> {
    let line = Line::raw(text.to_owned());
    if column.right { line.right_aligned() } else { line }
}

fn row(view: &View, node: &Node, columns: &[(&Column, u16)]) -> Row<'static> {
    let style = match node.state {
        State::Lost => BAD,
        State::Silent => CAREFUL,
        State::Left => QUIET,
        State::Here if is_slowest(view, node) => CAREFUL,
        State::Here => Style::new(),
    };
    let cell = |column: &Column, width| aligned(column, &(column.cell)(view, node, width));
    let cells = columns.iter().map(|(column, width)| cell(column, *width));
    Row::new(cells.collect::<Vec<_>>()).style(style)
}

fn draw_waits(waits: &[Wait], area: Rect, to: &mut Buffer) {
    let title = " calls that have waited for more than 1s ";
    let block = Block::new().borders(Borders::TOP).title(Line::styled(title, STRONG));
    let lines: Vec<Line<'_>> = match waits {
        [] => vec![Line::styled(" none", QUIET)],
        waits => waits
            .iter()
            .take(MOST_WAITS)
            .map(|wait| {
                Line::from(vec![
                    Span::styled(format!(" {:>6}", wait.age()), CAREFUL),
                    Span::raw(format!("  {} {} for ", wait.who(), wait.verb())),
                    Span::styled(wait.whom(), STRONG),
                    Span::raw(format!(": {}", wait.what)),
                ])
            })
            .collect(),
    };
    Paragraph::new(lines).block(block).render(area, to);
}
