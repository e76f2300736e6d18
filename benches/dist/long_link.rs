//! `--long-link`: one key of 256 MB over a link of 1 Gbit/s with a round trip of 100 ms, beside one plain socket,
//! as fractions of the link.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use kvstore::{Key, Store};

use crate::common::long_link::{self, LinkProperties, LongLink};
use crate::common::network::{self, FAR, NEAR};
use crate::ours::{Way, config};
use crate::page;
use crate::processes::Processes;

/// Set in the process that has a network of its own.
const INSIDE: &str = "KV_BENCH_NETWORK";
/// 1 Gbit/s. Large packets keep the relay from being the limit.
const LINK: LinkProperties = LinkProperties {
    round_trip: Duration::from_millis(100),
    loss: 0,
    altered: 0,
    rate: Some(125e6),
    packet: 65_000,
};
/// Elements of the key.
const COUNT: usize = 64 << 20;
const ROUNDS: usize = 5;
const SINK_PORT: u16 = 9_100;

/// Runs the benchmark where this process may make networks.
pub fn run() -> io::Result<()> {
    if std::env::var_os(INSIDE).is_some() {
        return inside();
    }
    if !network::can_be_made() {
        println!("not measured: this machine does not let us make networks");
        return Ok(());
    }
    let mut program = network::inside();
    let status = program.args(std::env::args().skip(1)).env(INSIDE, "1").status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(status.to_string())) }
}

fn inside() -> io::Result<()> {
    if !long_link::can_be_made() {
        println!("not measured: this machine does not let us make network devices");
        return Ok(());
    }
    let link = LongLink::new(LINK)?;
    let count = if page::quick() { COUNT / 16 } else { COUNT };
    println!("{} MB over 1 Gbit/s, round trip 100 ms: fraction of the link", (count * 4) >> 20);
    println!("| who | call | first | median |\n|---|---|---:|---:|");
    let print = |who: &str, call: &str, seconds: &[f64]| {
        let of_link = |seconds: f64| count as f64 * 4.0 / 125e6 / seconds;
        let mut sorted = seconds.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (first, median) = (of_link(seconds[0]), of_link(sorted[sorted.len() / 2]));
        println!("| {who} | {call} | {first:.2} | {median:.2} |");
    };
    print("one plain socket", "send", &plain(&link, count)?);
    let (push, pull) = ours(&link, count)?;
    print("ours", "push", &push);
    print("ours", "pull", &pull);
    Ok(())
}

fn ours(link: &LongLink, count: usize) -> io::Result<(Vec<f64>, Vec<f64>)> {
    let (root, way) = (format!("{NEAR}:9000"), Way::Tcp);
    let program = std::env::current_exe()?.display().to_string();
    let mut processes = Processes::and_this();
    let serve = |mut command: Command, role: &str| {
        command.args(["serve", role, &root, way.name()]).env("KV_INSECURE", "yes");
        command
    };
    processes.spawn(&mut serve(Command::new(&program), "scheduler"))?;
    processes.spawn(&mut serve(link.far(&program), "server"))?;
    let mut config = config("worker", &root, way.name());
    config.set("insecure", "yes").map_err(io::Error::other)?;
    let store = Store::open("dist_sync", &config).map_err(io::Error::other)?;
    let (key, value, mut out) = (Key::from(0u64), vec![1.5f32; count], vec![0.5f32; count]);
    let (mut push, mut pull) = (Vec::new(), Vec::new());
    let time = |seconds: &mut Vec<f64>, call: &mut dyn FnMut() -> kvstore::Result<()>| {
        let start = Instant::now();
        let done = call().map_err(io::Error::other);
        seconds.push(start.elapsed().as_secs_f64());
        done
    };
    store.init(key, value.as_slice()).map_err(io::Error::other)?;
    for _ in 0..ROUNDS {
        time(&mut push, &mut || store.push(key, value.as_slice()))?;
        time(&mut pull, &mut || store.pull(key, out.as_mut_slice()))?;
    }
    assert!(out == value, "a pull gives what was pushed");
    Ok((push, pull))
}

/// Sends the same bytes over one socket, and waits for the word that they are there.
fn plain(link: &LongLink, count: usize) -> io::Result<Vec<f64>> {
    let address = format!("{FAR}:{SINK_PORT}");
    let mut processes = Processes::and_this();
    let program = std::env::current_exe()?.display().to_string();
    let bytes = count * 4;
    processes.spawn(link.far(&program).args(["sink", &address, &bytes.to_string()]))?;
    let mut socket = loop {
        match TcpStream::connect(&address) {
            Ok(socket) => break socket,
            Err(_) => std::thread::sleep(Duration::from_millis(10)),
        }
    };
    let (value, mut seconds) = (vec![1u8; bytes], Vec::new());
    for _ in 0..ROUNDS {
        let start = Instant::now();
        socket.write_all(&value)?;
        socket.read_exact(&mut [0])?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(seconds)
}

/// Reads so many bytes again and again, and answers each time.
pub fn sink(address: &str, bytes: &str) -> io::Result<()> {
    let bytes: usize = bytes.parse().map_err(io::Error::other)?;
    let (mut socket, _) = TcpListener::bind(address)?.accept()?;
    let mut room = vec![0; 1 << 20];
    loop {
        let mut left = bytes;
        while left > 0 {
            let most = room.len().min(left);
            match socket.read(&mut room[..most])? {
                0 => return Ok(()),
                count => left -= count,
            }
        }
        socket.write_all(&[1])?;
    }
}
