//! Pictures of jobs, at two sizes. With `KV_TEST_PICTURES=<folder>` they are written there, as lists
//! of cells with their colours.

use std::fmt::Write;
use std::time::Duration;

use kvstore::{Facts, Latency, Node, ProcessCounters, Rates, State, View, WaitedFor, Waiting};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;

use super::screen::{Screen, Sort};
use crate::observe::show::table::table;

const SIZES: [(u16, u16); 2] = [(80, 24), (160, 48)];
const GB: u64 = 1_000_000_000;

fn latency(half: u64, most: u64) -> Latency {
    let (p50_us, p99_us) = (Some(half), Some(most));
    Latency { count: 9_000, p50_us, p99_us, sum_us: 1 << 30, ..Latency::default() }
}

fn node(role: &'static str, rank: u32, address: String, facts: Facts) -> Node {
    let (heard_ms, report_ms) = (Some(310), Some(90));
    Node { role, rank, address, state: State::Here, heard_ms, report_ms, facts: Some(facts) }
}

/// Four workers and two servers under load.
fn busy() -> View {
    let facts = |bytes_in: f64, bytes_out: f64| Facts {
        age_s: 11_532.0,
        counters: ProcessCounters {
            round: 81_204,
            rounds: 4_872_240,
            bytes_in: 9_140 * GB,
            bytes_out: 9_130 * GB,
            keys: 161,
            ..ProcessCounters::default()
        },
        rates: Some(Rates {
            over_s: 1.0,
            bytes_in_per_s: bytes_in,
            bytes_out_per_s: bytes_out,
            rounds_per_s: 1_290.0,
        }),
        ..Facts::default()
    };
    let mut scheduler = facts(2_112.0, 2_480.0);
    (scheduler.counters.round, scheduler.counters.keys) = (0, 0);
    let mut nodes = vec![node("scheduler", 0, "10.0.0.1:9091".into(), scheduler)];
    for rank in 0..2 {
        let mut facts = Facts {
            waited_for: vec![WaitedFor { worker: 3, rounds: 700, seconds: 1.5 }],
            ..facts(1.14e9, 1.13e9)
        };
        let counters = &mut facts.counters;
        (counters.stored_bytes, counters.slices) = (51_100_000, 204);
        counters.held_bytes = 31_400_000 + u64::from(rank) * 170_000_000;
        nodes.push(node("server", rank, format!("10.0.0.{}:41{}27", rank + 1, rank), facts));
    }
    for rank in 0..4 {
        let mut facts = Facts {
            push: latency(830, 4_100),
            pull: latency(2_300, 18_000),
            pending: 40,
            waiting: vec![Waiting {
                call: "pull",
                key: Some("layer4.2.conv3.weight".into()),
                round: 81_205,
                age_ms: 14,
                awaited: vec!["worker 3".into()],
            }],
            ..facts(5.7e8, 5.66e8)
        };
        facts.counters.resent = u64::from(rank == 3) * 12;
        nodes.push(node("worker", rank, format!("node-{rank}.417{rank}.5b0b{rank}e69"), facts));
    }
    View {
        root: "10.0.0.1:9091".into(),
        clock_ms: 1_795_302_465_172,
        started: true,
        kind: Some("dist_sync"),
        num_workers: 4,
        num_servers: 2,
        epoch: 1,
        peer_timeout_ms: Some(5_000),
        hold_bytes: Some(256 << 20),
        missing: Vec::new(),
        slowest_worker: Some(3),
        nodes,
    }
}

/// The job while no worker calls.
fn idle() -> View {
    let mut view = busy();
    view.slowest_worker = None;
    for facts in view.nodes.iter_mut().filter_map(|node| node.facts.as_mut()) {
        facts.rates = Some(Rates { over_s: 1.0, ..Rates::default() });
        (facts.push, facts.pull) = (Latency::default(), Latency::default());
        (facts.counters.held_bytes, facts.pending) = (0, 0);
        facts.waiting.clear();
    }
    view
}

/// One worker died, another one stands still, and the rest wait.
fn with_a_dead_one() -> View {
    let mut view = idle();
    view.epoch = 2;
    view.slowest_worker = Some(1);
    let worker = |rank: usize| 3 + rank;
    let dead = &mut view.nodes[worker(2)];
    (dead.state, dead.heard_ms, dead.report_ms) = (State::Lost, None, Some(71_000));
    let still = &mut view.nodes[worker(1)];
    (still.state, still.heard_ms, still.report_ms) = (State::Silent, Some(2_100), Some(4_600));
    for rank in [0, 3] {
        let facts = view.nodes[worker(rank)].facts.as_mut().unwrap();
        facts.pending = 2;
        facts.waiting = vec![
            Waiting {
                call: "pull",
                key: Some("layer4.2.conv3.weight".into()),
                round: 81_205,
                age_ms: 4_200,
                awaited: vec!["worker 1".into()],
            },
            Waiting {
                call: "barrier",
                key: None,
                round: 12,
                age_ms: 1_300,
                awaited: vec!["worker 1".into()],
            },
        ];
    }
    view
}

fn draw(screen: &mut Screen, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| screen.draw(frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

fn text(buffer: &Buffer) -> Vec<String> {
    let width = usize::from(buffer.area.width);
    let rows = buffer.content.chunks(width);
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect()).collect()
}

fn keep(name: &str, buffer: &Buffer) {
    let Some(folder) = std::env::var_os("KV_TEST_PICTURES") else { return };
    let area = buffer.area;
    let mut cells = format!("{} {}\n", area.width, area.height);
    for cell in &buffer.content {
        let _ = writeln!(cells, "{}\t{:?}\t{:?}", cell.symbol(), cell.fg, cell.modifier);
    }
    let file = format!("{name}-{}x{}.txt", area.width, area.height);
    std::fs::write(std::path::Path::new(&folder).join(file), cells).unwrap();
}

fn pictures(name: &str, view: &View) -> Vec<Vec<String>> {
    let each = |size| {
        let mut screen = Screen::new(view.clone(), Duration::from_secs(1));
        let buffer = draw(&mut screen, size);
        keep(name, &buffer);
        text(&buffer)
    };
    SIZES.into_iter().map(each).collect()
}

/// The line that begins with these words.
#[track_caller]
fn line<'a>(picture: &'a [String], begin: &str) -> &'a str {
    let found = picture.iter().find(|line| line.trim_start().starts_with(begin));
    found.unwrap_or_else(|| panic!("no line begins with {begin}:\n{}", picture.join("\n")))
}

#[track_caller]
fn shows(line: &str, words: &[&str]) {
    for word in words {
        assert!(line.contains(word), "{word} is not in {line:?}");
    }
}

#[test]
fn a_busy_job_shows_rates_latencies_memory_and_its_slowest_worker() {
    for picture in pictures("busy", &busy()) {
        shows(&picture[0], &["10.0.0.1:9091", "dist_sync", "4 workers", "2 servers"]);
        shows(&picture[1], &["nothing is wrong", "wait most for worker 3"]);
        shows(&picture[2], &["in 2.3 GB/s", "server 1", "|||", "201 MB of 268 MB"]);
        shows(line(&picture, "NODE"), &["STATE", "ADDRESS", "AGE", "IN/s", "OUT/s", "ROUND"]);
        shows(line(&picture, "server 0"), &["10.0.0.1:41027", "3h12m", "1.1 GB", "81204"]);
        shows(line(&picture, "worker 0"), &["here", "node-0", "570 MB", "2.3ms/18ms"]);
        shows(line(&picture, "worker 3"), &["slowest"]);
        shows(line(&picture, "none"), &[]);
        shows(picture.last().unwrap(), &["q quit", "s sort: node", "every 1.0s"]);
    }
    let wide = &pictures("busy", &busy())[1];
    shows(line(wide, "worker 3"), &["830us/4.1ms", "2.3ms/18ms", " 12 "]);
    shows(line(wide, "server 1"), &["51 MB", "201 MB/268 MB"]);
}

#[test]
fn narrow_terminals_keep_the_rank_and_show_whole_columns() {
    for width in [60, 58, 40, 20] {
        let mut view = busy();
        view.nodes[6].rank = 10_003;
        let mut screen = Screen::new(view, Duration::from_secs(1));
        let picture = text(&draw(&mut screen, (width, 24)));
        for name in ["server 1", "worker 2", "worker 10003"] {
            let row = line(&picture, name);
            assert!(width < 40 || row.contains("here"), "{row:?}");
            assert!(width < 58 || row.contains("2.3ms/18ms") || name == "server 1", "{row:?}");
        }
    }
}

#[test]
fn an_idle_job_is_calm() {
    for picture in pictures("idle", &idle()) {
        shows(&picture[1], &["nothing is wrong"]);
        shows(line(&picture, "worker 3"), &["here", "0 B"]);
        assert!(!picture.join("").contains("slowest"));
    }
}

#[test]
fn dead_and_silent_processes_and_those_who_wait_for_them_are_seen_at_once() {
    for picture in pictures("dead", &with_a_dead_one()) {
        let words = ["LOST: worker 2", "silent: worker 1", "waiting 4.2s for worker 1"];
        shows(&picture[1], &words);
        shows(line(&picture, "worker 2"), &["LOST", "node-2"]);
        shows(line(&picture, "worker 1"), &["silent"]);
        let wait = "workers 0, 3 wait for worker 1: pull layer4.2.conv3.weight, round 81205";
        shows(line(&picture, "4.2s"), &[wait]);
        shows(line(&picture, "1.3s"), &["barrier 12"]);
    }
}

#[test]
fn a_job_that_has_not_started_names_the_missing() {
    let mut view = idle();
    view.started = false;
    (view.kind, view.hold_bytes, view.epoch) = (None, None, 0);
    view.nodes.truncate(2);
    view.missing = vec!["server 1".into(), "worker 0".into()];
    for picture in pictures("start", &view) {
        shows(&picture[0], &["not started"]);
        shows(&picture[1], &["not there yet: server 1, worker 0"]);
    }
}

#[test]
fn a_scheduler_that_does_not_answer_is_said_above_what_was_seen_last() {
    let mut screen = Screen::new(busy(), Duration::from_secs(1));
    let config = kvstore::Config::new().with("root", "127.0.0.1:1").unwrap();
    let mut observer = kvstore::Observer::open(&config).unwrap();
    screen.take(observer.look(Duration::from_secs(5)));
    let picture = text(&draw(&mut screen, SIZES[0]));
    shows(&picture[1], &["seen ", "nothing can be reached"]);
    shows(line(&picture, "worker 0"), &["here"]);
}

#[test]
fn rows_are_sorted_and_scrolled() {
    let mut view = busy();
    view.nodes[5].facts.as_mut().unwrap().rates.as_mut().unwrap().bytes_in_per_s = 9e9;
    let mut screen = Screen::new(view, Duration::from_secs(1));
    let first = |screen: &mut Screen, size| text(&draw(screen, size))[5].clone();
    shows(&first(&mut screen, SIZES[0]), &["scheduler"]);
    screen.sort = screen.sort.next();
    assert_eq!(screen.sort, Sort::In);
    shows(&first(&mut screen, SIZES[0]), &["worker 2", "9.0 GB"]);
    screen.sort = Sort::Node;
    screen.reversed = true;
    shows(&first(&mut screen, SIZES[0]), &["worker 3"]);
    screen.reversed = false;
    screen.scroll = 100;
    // Room for five rows: the last ones are shown.
    let small = draw(&mut screen, (80, 14));
    assert!(text(&small).join("").contains("worker 3"));
    assert!(screen.scroll > 0 && screen.scroll < 7);
    screen.scroll = 0;
    assert!(text(&draw(&mut screen, (80, 12))).join("").contains("more below"));
    for size in [(1, 1), (20, 3), (79, 10), (300, 100)] {
        draw(&mut screen, size);
    }
}

#[test]
fn tables_and_screens_of_every_width_have_each_number_in_its_place() {
    let mut large = busy();
    let counters = &mut large.nodes[1].facts.as_mut().unwrap().counters;
    (counters.round, counters.keys, counters.resent) = (12_345_678, 70_000, 4_000_000);
    large.nodes[2].state = State::Left;
    large.nodes[4].facts = None;
    let mut all = String::new();
    for view in [busy(), idle(), with_a_dead_one(), large] {
        all += &table(&view);
        for width in [48, 60, 80, 157, 158] {
            let mut screen = Screen::new(view.clone(), Duration::from_secs(1));
            for line in text(&draw(&mut screen, (width, 24))) {
                writeln!(all, "{}", line.trim_end()).unwrap();
            }
        }
    }
    for (line, golden) in all.lines().zip(include_str!("golden.txt").lines()) {
        assert_eq!(line, golden);
    }
    assert_eq!(all.len(), include_str!("golden.txt").len());
}
