//! Processes that mean harm: the job makes its rounds meanwhile, and its processes do not grow.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use super::attacker::{
    Frame, SERVER, WORKER, call, claim_much, ends, greeting, lie, overhear, replay,
};
use super::common::random::Random;
use super::greeting::{Answer, FULL, GO_ON, NOT_ALLOWED, OTHER_TOKEN};
use super::job::{End, Job, LIMIT, MARGIN, Process, Running, Turn, free_address, soon};
use super::keys::{Keys, start};
use super::program::{COUNT, PAUSE_MS, ROUNDS};
use super::session::{FRAMES, Login, Session};

/// For how long the rounds of a job may stop, at most, if the machine is not busy.
const PAUSE: Duration = Duration::from_secs(1);
/// What a process may have besides, in kilobytes, when an attack is over; open files, and threads.
const GROWTH: u64 = 60_000;
const FILES: usize = 30;
const THREADS: u64 = 8;

/// The addresses at which the processes of a job listen, as the system knows them.
fn addresses(running: &mut Running) -> Vec<String> {
    let numbers: Vec<u32> = running.all.iter().map(Process::number).collect();
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

/// A job of one server makes rounds while it is attacked at the addresses where it listens: those of the
/// scheduler and of the server, and no other. Then it ends well. Its processes have what `give` gives to
/// their role.
pub fn survives(
    name: &str,
    job: &Job,
    give: impl Fn(&Job, &str) -> Job,
    attack: impl FnOnce(&Job, &[String]),
) -> Vec<End> {
    let job = job.clone().told(PAUSE_MS, 20).told(COUNT, 50_000);
    let bind = free_address();
    let mut running = start(&job, |job, role| {
        let job = give(job, role);
        if role == "server" { job.with("bind", &bind) } else { job }
    });
    running.hear("sum 5 ");
    let at = [job.root.clone(), bind];
    let mut found = addresses(&mut running);
    found.sort_by_key(|address| *address != job.root);
    assert_eq!(found, at);
    let size = |running: &mut Running| {
        let listeners = &running.all[..=job.servers];
        listeners.iter().map(|it| it.kilobytes("VmRSS").unwrap_or(0)).collect::<Vec<_>>()
    };
    let files = |running: &mut Running| {
        running.all[..=job.servers].iter().map(Process::files).max().unwrap()
    };
    let threads = |running: &mut Running| {
        let listeners = &running.all[..=job.servers];
        listeners.iter().map(|it| it.kilobytes("Threads").unwrap_or(0)).max().unwrap()
    };
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
    assert!(threads < before.1 + THREADS, "{name}: {} threads, then {threads}", before.1);
    let few = soon(LIMIT, || files(&mut running) < before.2 + FILES);
    assert!(few, "{name}: {} files, then {}", before.2, files(&mut running));
    let ends = running.end_well();
    let pause = ends.iter().map(longest_pause).max().unwrap();
    assert!(pause < PAUSE + MARGIN / 2, "{name}: no round for {pause:?}");
    ends
}

/// No process has a credential.
fn open(job: &Job, _: &str) -> Job {
    job.clone()
}

/// Its values go over the network.
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
        let half = greeting()[..11].to_vec();
        // Nothing, half a greeting, a length that no greeting has.
        let silent = [&[][..], &half, b"KVSC\x01\0\xff\xff"];
        for round in 0..400 {
            let noise: Vec<u8> =
                (0..random.below(300)).map(|_| u8::try_from(random.below(256)).unwrap()).collect();
            for to in at {
                for words in silent.iter().chain([&&greeting()[..], &&noise[..]]) {
                    held.extend(call(to, words));
                }
            }
            if round % 40 == 39 {
                held.drain(..held.len() / 2);
            }
        }
        drop(held);
        // A process that does not say who it is has to go.
        let calls = at.iter().flat_map(|to| silent.map(|words| (to, words)));
        let held: Vec<_> = calls.map(|(to, words)| (to, words, call(to, words).unwrap())).collect();
        for (to, words, stream) in held {
            assert!(ends(stream, LIMIT), "{to}: {words:?}");
        }
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
        for to in at {
            let mut session = Session::open(to, "mallory", &Login::default()).unwrap();
            lie(&mut session, &name);
            session.close();
            let held = claim_much(to, &Login::default());
            let mut session = Session::open(to, "mallory", &Login::default()).unwrap();
            session.send_as(u32::MAX, FRAMES, &[0x5a; 99]).unwrap();
            assert!(session.ends(LIMIT), "a length that no message has");
            drop(held);
        }
    });
}

#[test]
fn hellos_and_versions_from_thousands_of_names_are_answered_within_bounds() {
    let _turn = Turn::take();
    survives("many names", &job().told(ROUNDS, 400), open, |job, at| {
        let name = job_name(job);
        for number in 0..2_000 {
            let who = format!("mallory{number}");
            let mut session = Session::open(&at[0], &who, &Login::default()).unwrap();
            for who in [&who, &format!("{who}.b")] {
                let hello = Frame::hello(&name, WORKER, number % 3, (2, 1), who);
                session.put(&hello.bytes()).unwrap();
                let other = Frame { version: 9, ..Frame::hello(&name, WORKER, 0, (2, 1), who) };
                session.put(&other.bytes()).unwrap();
            }
            session.close();
        }
    });
}

/// More connections than a job of this size makes are told so, and what is there goes on.
#[test]
fn connections_beyond_those_of_a_job_are_refused() {
    let _turn = Turn::take();
    survives("too many", &job(), open, |_, at| {
        for to in at {
            let mut held = Vec::new();
            let full = (0..500).find_map(|number| {
                match Session::open(to, &format!("mallory{number}"), &Login::default()) {
                    Ok(session) => held.push(session),
                    Err(refusal) => return Some(refusal),
                }
                None
            });
            let full = full.expect("a limit of connections");
            assert_eq!(full.status(), Some(FULL), "{full:?} after {}", held.len());
            held.into_iter().for_each(Session::close);
            // There is room again.
            assert!(soon(LIMIT, || Session::open(to, "mallory", &Login::default()).is_ok()));
        }
    });
}

#[test]
fn a_session_that_stops_reading_disturbs_nobody() {
    let _turn = Turn::take();
    let keys = keys("slow");
    let job = keys.tokened(&job(), "job");
    survives("slow reader", &job, open, |job, at| {
        let login = Login::token(&keys, "worker.1");
        let mut held = Vec::new();
        for to in at {
            let mut session = Session::open(to, "mallory", &login).unwrap();
            session.stop_reading();
            // It asks for large answers, and takes none.
            let look = Frame::look(&job_name(job), "worker.1@mallory", 32 << 10);
            let hello = Frame::hello(&job_name(job), WORKER, 1, (2, 1), "worker.1@mallory");
            for _ in 0..2_000 {
                // A receiver may stop reading from a process that does not read either.
                if session.put(&[look.bytes(), hello.bytes()].concat()).is_err() {
                    break;
                }
            }
            held.push(session);
        }
        drop(held);
    });
}

/// What is recorded on the network is of no use for another connection.
#[test]
fn a_recorded_greeting_with_a_token_is_of_no_use() {
    let _turn = Turn::take();
    let keys = keys("replay");
    let job = keys.tokened(&job().told(ROUNDS, 800), "job");
    survives("replay", &job, open, |job, at| {
        let login = Login::token(&keys, "worker.1");
        let hello = Frame::hello(&job_name(job), WORKER, 1, (2, 1), "worker.1@mallory");
        let said = overhear(&at[0], |to| {
            let mut session = Session::open(to, "mallory", &login).unwrap();
            session.put(&hello.bytes()).unwrap();
            session.close();
        });
        let greeting = login.call("mallory").bytes().len() + 32;
        assert_eq!(said.len(), greeting + 8 + hello.bytes().len());
        let refused = [&[OTHER_TOKEN][..], &[0; 32]].concat();
        for to in at {
            for _ in 0..3 {
                let mut stream = call(to, &said[..greeting - 32]).unwrap();
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                assert_eq!(Answer::receive(&mut stream).unwrap().0.status, GO_ON);
                stream.write_all(&said[greeting - 32..greeting]).unwrap();
                let mut verdict = [0; 33];
                stream.read_exact(&mut verdict).unwrap();
                assert_eq!(verdict[..], refused);
                assert!(ends(stream, LIMIT));
            }
            assert!(replay(to, &said).is_some() && replay(to, &said[..greeting / 2]).is_some());
        }
    });
}

/// A token for a job, and those of its workers.
fn keys(name: &str) -> Keys {
    let keys = Keys::new(name);
    keys.make(&["token", "--for", "worker", "--rank", "0"]);
    keys.make(&["token", "--for", "worker", "--rank", "1"]);
    keys
}

/// A process at the address of a server that has not come yet introduces itself as that server.
fn takes_a_seat(job: &Job, sessions: impl FnOnce(&str) -> Vec<Session>) -> bool {
    let scheduler = job.start_scheduler();
    assert!(soon(LIMIT, || call(&job.root, &[]).is_some()));
    let mut sessions = sessions(&job.root);
    let hello = Frame::hello(&job_name(job), SERVER, 0, (1, 1), "127.0.0.1:1");
    sessions.iter_mut().for_each(|session| session.put(&hello.bytes()).unwrap());
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
    // Without credentials it can.
    assert!(takes_a_seat(&job(), |to| {
        vec![Session::open(to, "127.0.0.1:1", &Login::default()).unwrap()]
    }));
    let job = keys.tokened(&job(), "job");
    assert!(!takes_a_seat(&job, |to| {
        let own = Login::token(&keys, "worker.0");
        // Under its identity with the name of a server, and under the identity of a server.
        let named = Session::open(to, "127.0.0.1:1", &own).err().unwrap();
        assert!(named.status().is_some_and(|status| status >= NOT_ALLOWED), "{named:?}");
        for identity in ["server", "server.0"] {
            let login = Login { identity: identity.into(), ..own.clone() };
            let called = Session::open(to, "127.0.0.1:1", &login).err().unwrap();
            assert_eq!(called.status(), Some(OTHER_TOKEN), "{called:?}");
        }
        vec![Session::open(to, "mallory", &own).unwrap()]
    }));
}
