//! Faults that no test can seed in a real machine: clocks, releases, cards and slow networks.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use kvstore::{Config, ErrorKind, GpuProbe, GpuReport, GpuState};

use super::case::NAMES;
use super::gpu::{GpuWishes, judge_driver, judge_gpus, judge_peers};
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
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/use/config.md");
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

#[test]
fn a_driver_may_be_missing_and_must_work_if_it_is_there_or_named() {
    let wishes = |names_driver, hides_all| GpuWishes { names_driver, hides_all };
    let judge = |text: &str, wishes| {
        let kind = if text.contains("is no") { ErrorKind::Unsupported } else { ErrorKind::Device };
        Err(judge_driver(kind, text, wishes))
    };
    let missing = "the CUDA driver cannot be opened: libcuda.so.1; install the driver of NVIDIA";
    let without = "cuInit: CUDA_ERROR_NO_DEVICE (100); no device is visible: see nvidia-smi";
    let is_skipped = |result: &CheckResult| matches!(result, Err(Finding::Skipped(_)));
    assert!(is_skipped(&judge(missing, wishes(false, false))));
    is_bad(&judge(missing, wishes(true, false)), &["libcuda.so.1", "install"]);
    assert!(is_skipped(&judge("the option cuda is no", wishes(true, false))));
    assert!(is_skipped(&judge(without, wishes(false, true))));
    is_bad(&judge(without, wishes(false, false)), &["NO_DEVICE", "nvidia-smi"]);
    is_bad(&judge("the driver is one of CUDA 11.0", wishes(false, true)), &["11.0"]);
}

#[test]
fn every_gpu_is_named_and_a_faulty_one_is_found() {
    let gpu =
        |number, state| GpuProbe { number, name: "Model A".into(), capability: (9, 0), state };
    let good = || Ok(GpuState { memory: (1 << 30, 1 << 31), load: Duration::from_millis(42) });
    let Ok(text) = judge_gpus(&[gpu(0, good()), gpu(1, good())]) else { panic!() };
    let words =
        ["GPU 0 (Model A, compute capability 9.0", "of 2.1 GB free", "42ms", "\n      GPU 1"];
    words.iter().for_each(|word| assert!(text.contains(word), "no {word} in {text}"));
    let wrong = Config::new().set("no_option", "1").unwrap_err();
    is_bad(&judge_gpus(&[gpu(0, good()), gpu(1, Err(wrong))]), &["no_option"]);
    let report = |count, peers: &[(u16, u16)]| {
        let gpus = (0..count).map(|number| gpu(number, good())).collect();
        judge_peers(&GpuReport { version: (12, 4), gpus, peers: peers.into() })
    };
    assert!(matches!(report(1, &[]), Err(Finding::Skipped(_))));
    assert!(report(2, &[(0, 1)]).is_ok_and(|text| text.contains("all 2 GPUs")));
    assert!(report(3, &[(0, 1)]).is_ok_and(|text| text.contains("GPUs 0 and 1 can")));
    assert!(report(2, &[]).is_ok_and(|text| text.contains("through that of the host")));
}
