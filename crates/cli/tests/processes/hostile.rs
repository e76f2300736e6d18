//! Processes that mean harm: the job makes its rounds meanwhile, and its processes do not grow.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use zenoh::Wait;
use zenoh::sample::Locality;

use super::attacker::{self, Frame, SERVER, WORKER, call, greeting, lie, session};
use super::common::random::Random;
use super::job::{End, Job, LIMIT, MARGIN, Process, Running, Turn, free_address, soon};
use super::keys::{Keys, start};
use super::program::{COUNT, PAUSE_MS, ROUNDS};

/// For how long the rounds of a job may stop, at most, if the machine is not busy.
const PAUSE: Duration = Duration::from_secs(1);
/// What a process may have besides, in kilobytes, when an attack is over; and open files.
const GROWTH: u64 = 60_000;
const FILES: usize = 30;

/// The addresses at which the processes of a job listen, as the system knows them.
fn addresses(running: &mut Running) -> Vec<String> {
    let numbers: Vec<u32> =
        running.all[..=running.job.servers].iter().map(super::job::Process::number).collect();
    numbers.iter().flat_map(|number| listening(*number)).collect()
}

/// Where a process listens: its sockets among those of the system.
fn listening(number: u32) -> Vec<String> {
    let folder = std::fs::read_dir(format!("/proc/{number}/fd")).unwrap().flatten();
    let links = folder.filter_map(|entry| std::fs::read_link(entry.path()).ok());
    let own: Vec<String> = links
        .filter_map(|link| {
            let link = link.display().to_string();
            Some(link.strip_prefix("socket:[")?.trim_end_matches(']').to_owned())
        })
        .collect();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let listens = |line: &str| -> Option<String> {
        const LISTEN: &str = "0A";
        let words: Vec<&str> = line.split_whitespace().collect();
        let known = words.get(3) == Some(&LISTEN) && own.iter().any(|own| words[9] == own);
        let port = u16::from_str_radix(words[1].split_once(':')?.1, 16).ok()?;
        known.then(|| format!("127.0.0.1:{port}"))
    };
    table.lines().skip(1).filter_map(listens).collect()
}

/// The longest time between two rounds of a worker.
fn longest_pause(end: &End) -> Duration {
    let rounds: Vec<Instant> =
        end.lines.iter().filter(|line| line.text.starts_with("sum ")).map(|line| line.at).collect();
    rounds.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

/// A job of one server makes rounds while it is attacked at all addresses where it listens, those of the
/// scheduler and of the server first; then it ends well. Its processes have what `give` gives to their
/// role.
pub fn survives(
    name: &str,
    job: &Job,
    give: impl Fn(&Job, &str) -> Job,
    attack: impl FnOnce(&Job, &[String]),
) {
    let job = job.clone().told(PAUSE_MS, 20).told(COUNT, 50_000);
    let bind = free_address();
    let mut running = start(&job, |job, role| {
        let job = give(job, role);
        if role == "server" { job.with("bind", &bind) } else { job }
    });
    running.hear("sum 5 ");
    let known = [job.root.clone(), bind];
    let (mut at, others): (Vec<_>, Vec<_>) =
        addresses(&mut running).into_iter().partition(|address| known.contains(address));
    at.sort_by_key(|address| *address != job.root);
    assert_eq!(at, known);
    // Over TLS there is no way past the engine.
    let is_tls = give(&job, "server").option("tls_ca_file").is_some();
    assert_eq!(others.len(), usize::from(!is_tls), "{others:?}");
    at.extend(others);
    let size = |running: &mut Running| {
        let listeners = &running.all[..=job.servers];
        listeners.iter().map(|it| it.kilobytes("VmRSS").unwrap_or(0)).collect::<Vec<_>>()
    };
    let files = |running: &mut Running| {
        running.all[..=job.servers].iter().map(Process::files).max().unwrap()
    };
    let threads = |running: &mut Running| running.all[0].kilobytes("Threads").unwrap_or(0);
    let before = (size(&mut running), threads(&mut running), files(&mut running));
    attack(&job, &at);
    assert!(!running.workers()[0].has_ended(), "{name}: the attack was longer than the job");
    let grown = |running: &mut Running| {
        let now = size(running).into_iter().zip(&before.0);
        now.map(|(now, before)| now.saturating_sub(*before)).max().unwrap()
    };
    let small = soon(Duration::from_secs(3), || grown(&mut running) < GROWTH);
    let (more, threads) = (grown(&mut running), threads(&mut running));
    assert!(small, "{name}: grown by {more} kB");
    assert!(threads < before.1 + 200, "{name}: {} threads, then {threads}", before.1);
    let few = soon(LIMIT, || files(&mut running) < before.2 + FILES);
    assert!(few, "{name}: {} files, then {}", before.2, files(&mut running));
    let ends = running.end_well();
    let pause = ends.iter().map(longest_pause).max().unwrap();
    assert!(pause < PAUSE + MARGIN / 2, "{name}: no round for {pause:?}");
}

/// Nobody shows a credential.
fn open(job: &Job, _: &str) -> Job {
    job.clone()
}

/// Its values go over the network, and so have a port of their own.
pub fn job() -> Job {
    Job::new("train", 2, 1).told(ROUNDS, 250).with("shm", "no")
}

pub fn job_name(job: &Job) -> String {
    job.option("job").unwrap()
}

#[test]
fn connections_that_say_nothing_or_nonsense_disturb_nobody() {
    let _turn = Turn::take();
    survives("silence and noise", &job(), open, |_, at| {
        let mut random = Random::new(7);
        let mut held: Vec<TcpStream> = Vec::new();
        for round in 0..400 {
            let noise: Vec<u8> =
                (0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
            let half = greeting()[..5].to_vec();
            for to in at {
                // Nothing, half a greeting, a whole one and no more, a length without end, noise.
                for words in [&[], &half[..], &greeting()[..], &[0xff, 0xff, 1], &noise[..]] {
                    held.extend(call(to, words));
                }
            }
            if round % 40 == 39 {
                held.drain(..held.len() / 2);
            }
        }
        // Whoever does not say who it is has to go.
        assert!(attacker::ends(held.pop().unwrap(), LIMIT));
    });
}

#[test]
fn nobody_is_kept_out_by_connections_that_say_nothing() {
    let _turn = Turn::take();
    let job = job().told(ROUNDS, 5);
    let mut all = vec![job.start_scheduler(), job.start_server(0), job.start_worker(0)];
    // Until it listens.
    assert!(soon(LIMIT, || call(&job.root, &[]).is_some()));
    let held: Vec<_> = (0..500).filter_map(|_| call(&job.root, &greeting()[..3])).collect();
    assert!(held.len() > 400);
    let start = Instant::now();
    all.push(job.start_worker(1));
    Running { all, job }.end_well();
    assert!(start.elapsed() < Duration::from_secs(5) + MARGIN);
    drop(held);
}

#[test]
fn messages_that_are_no_frames_and_lengths_that_lie_disturb_nobody() {
    let _turn = Turn::take();
    survives("lies over a session", &job(), open, |job, at| {
        let name = job_name(job);
        for (to, place) in at.iter().zip(["scheduler".to_owned(), at[1].clone()]) {
            let session = session("tcp", to, &[]).unwrap();
            let key = format!("kvstore/-/{place}/-/mallory");
            lie(&session, &key, &name);
            session.close().wait().unwrap();
        }
    });
}

#[test]
fn hellos_and_versions_from_thousands_of_names_are_answered_within_bounds() {
    let _turn = Turn::take();
    survives("many names", &job(), open, |job, at| {
        let name = job_name(job);
        let session = session("tcp", &at[0], &[]).unwrap();
        for number in 0..4_000 {
            let who = format!("mallory{number}");
            let key = format!("kvstore/-/scheduler/-/{who}");
            let hello = Frame::hello(&name, WORKER, number % 3, (2, 1), &who);
            session.put(&key, hello.bytes()).wait().unwrap();
            let other = Frame { version: 9, ..Frame::hello(&name, WORKER, 0, (2, 1), &who) };
            session.put(&key, other.bytes()).wait().unwrap();
        }
        session.close().wait().unwrap();
    });
}

#[test]
fn a_session_that_stops_reading_disturbs_nobody() {
    let _turn = Turn::take();
    let keys = keys("slow");
    let job = keys.tokened(&job(), "job");
    survives("slow reader", &job, open, |job, at| {
        let login = login(&keys, "worker.1");
        let session = session("tcp", &at[1], &login).unwrap();
        // It asks for everything, its own name included, and takes nothing.
        let park = |_| std::thread::sleep(Duration::from_secs(4));
        let names = ["kvstore/**", "kvstore-alive/**", "kvstore/worker.1/mallory/**"];
        let asked: Vec<_> = names
            .iter()
            .map(|name| session.declare_subscriber(*name).allowed_origin(Locality::Remote))
            .map(|asked| asked.callback(park).wait().unwrap())
            .collect();
        let hello = Frame::hello(&job_name(job), WORKER, 1, (2, 1), "worker.1@mallory");
        for _ in 0..2_000 {
            let key = format!("kvstore/-/{}/worker.1/mallory", at[1]);
            session.put(key, hello.bytes()).wait().unwrap();
        }
        drop(asked);
    });
}

/// A token for a job, and those of its workers.
fn keys(name: &str) -> Keys {
    let keys = Keys::new(name);
    keys.make(&["token", "--for", "worker", "--rank", "0"]);
    keys.make(&["token", "--for", "worker", "--rank", "1"]);
    keys
}

/// What the engine needs to know to show a token.
pub fn login(keys: &Keys, name: &str) -> Vec<(&'static str, String)> {
    let text = std::fs::read_to_string(keys.path(&format!("{name}.token"))).unwrap();
    let password = text.trim().split_once(':').unwrap().1;
    vec![("transport/auth/usrpwd", format!("{{user: \"{name}\", password: \"{password}\"}}"))]
}

/// What is said under one's own name, and under that of a server that has not come yet.
fn takes_a_seat(job: &Job, login: &[(&str, String)]) -> bool {
    let scheduler = job.start_scheduler();
    assert!(soon(LIMIT, || call(&job.root, &[]).is_some()));
    let session = session("tcp", &job.root, login).unwrap();
    for who in ["-/mallory", "worker.0/mallory", "server/127.0.0.1:1", "server.0/127.0.0.1:1"] {
        let hello = Frame::hello(&job_name(job), SERVER, 0, (1, 1), "127.0.0.1:1");
        let key = format!("kvstore/-/scheduler/{who}");
        session.put(key, hello.bytes()).wait().unwrap();
    }
    std::thread::sleep(Duration::from_millis(500));
    let mut all = vec![scheduler, job.start_server(0)];
    if soon(Duration::from_secs(3), || all[1].has_ended()) {
        let text = all.pop().unwrap().end(LIMIT).text();
        assert!(text.contains("already") || text.contains("taken"), "{text}");
        return true;
    }
    all.push(job.start_worker(0));
    Running { all, job: job.clone() }.end_well();
    false
}

#[test]
fn a_worker_with_its_token_cannot_act_as_a_server() {
    let _turn = Turn::take();
    let keys = keys("roles");
    let job = || Job::new("train", 1, 1).told(ROUNDS, 5);
    // Where nobody asks for a credential it can.
    assert!(takes_a_seat(&job(), &[]));
    assert!(!takes_a_seat(&keys.tokened(&job(), "job"), &login(&keys, "worker.0")));
}
