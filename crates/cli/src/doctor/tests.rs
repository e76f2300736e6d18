//! Faults that no test can seed in a real machine: clocks, releases, cards and slow networks.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kvstore::ErrorKind;

use super::case::NAMES;
use super::job::{judge_answer, judge_bandwidth, judge_clock};
use super::network::judge_interface;
use super::packets::{AnsweredFrames, judge};
use super::system::Interface;
use super::{CheckResult, Finding};

#[track_caller]
fn is_bad(result: &CheckResult, words: &[&str]) {
    let Err(Finding::Bad(found, todo)) = result else { panic!("{result:?}") };
    for word in words {
        assert!(found.contains(word) || todo.contains(word), "{word}: {result:?}");
    }
}

#[test]
fn every_documented_option_is_checked() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/config.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | `KV_"));
    let documented: BTreeSet<&str> = rows.map(|(name, _)| name).collect();
    assert_eq!(BTreeSet::from(NAMES), documented);
}

#[test]
fn a_clock_that_is_off_is_named_with_its_side() {
    let now = 1_795_302_465_172;
    assert!(judge_clock(now, now + 900).is_ok());
    is_bad(&judge_clock(now + 90_000, now), &["1m30s ahead of", "time server"]);
    is_bad(&judge_clock(now, now + 3_000), &["3.0s behind"]);
}

#[test]
fn another_release_and_something_else_are_told_apart() {
    let text =
        "observe: the scheduler at h:1 speaks version 2 of the protocol, this program version 1";
    is_bad(&Err(judge_answer(ErrorKind::Refused, text)), &["version 2", "same release"]);
    is_bad(&Err(judge_answer(ErrorKind::Timeout, "does not answer")), &["something else listens"]);
}

#[test]
fn lost_packets_are_named_with_their_direction() {
    let passed = |there, back| AnsweredFrames { small: true, there, back };
    is_bad(&judge("x", passed(false, true)), &["MTU", "on the way to x", "mtu 1400"]);
    is_bad(&judge("x", passed(true, false)), &["on the way from x"]);
    is_bad(&judge("x", passed(false, false)), &["on the way to and from x"]);
    assert!(judge("x", passed(true, true)).is_ok());
    let none = AnsweredFrames { small: false, there: false, back: false };
    assert!(matches!(judge("x", none), Err(Finding::Skipped(_))));
}

#[test]
fn the_wrong_card_is_named_with_the_right_one() {
    let ip = |text: &str| -> IpAddr { text.parse().unwrap() };
    let card = |name: &str, at: &str, megabits| Interface {
        name: name.into(),
        ip: ip(at),
        is_up: true,
        megabits,
    };
    let cards = [
        card("lo", "127.0.0.1", None),
        card("eth0", "192.168.1.7", Some(1_000)),
        card("ib0", "10.0.0.7", Some(100_000)),
    ];
    let root: SocketAddr = "192.168.1.1:9091".parse().unwrap();
    let judge = |bound: Option<&str>| {
        judge_interface(root, ip("192.168.1.7"), false, bound.map(ip), &cards)
    };
    let Ok(text) = judge(None) else { panic!() };
    assert!(text.contains("eth0 (192.168.1.7, 1000 Mbit/s)"), "{text}");
    assert!(text.contains("ib0 (10.0.0.7, 100000 Mbit/s) is faster"), "{text}");
    is_bad(&judge(Some("127.0.0.1")), &["lo (127.0.0.1)", "eth0", "bind=192.168.1.7"]);
    is_bad(&judge(Some("10.0.0.7")), &["ib0", "eth0"]);
    is_bad(&judge(Some("10.9.9.9")), &["no address of this machine"]);
    assert!(judge(Some("0.0.0.0")).is_ok());
}

#[test]
fn a_slow_way_is_named_with_its_bandwidth() {
    let trip = Duration::from_micros(300);
    assert!(judge_bandwidth(1.2e9, trip).is_ok());
    is_bad(&judge_bandwidth(1.2e6, trip), &["1.2 MB/s", "300us", "interface"]);
}
