//! Jobs that let in only those with a credential: TLS, tokens, and who may be what.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::job::{End, Job, KVSTORE, LIMIT, MARGIN, Process, Running, Turn};
use super::keys::{Keys, certified, start};
use super::program::{FILE, PAUSE_MS, PROGRAM, ROUNDS};

/// A refused process says so within this, whatever a busy machine adds.
const SOON: Duration = Duration::from_secs(5);

/// A process that is not taken says why, in time.
fn refused(process: Process, expected: &[&str]) -> End {
    let start = Instant::now();
    let end = process.end(LIMIT);
    assert!(end.at - start < SOON + MARGIN, "{end:?}");
    let text = end.text();
    assert!(text.contains("KV_ERR_REFUSED"), "{text}");
    assert!(expected.iter().all(|part| text.contains(part)), "{text}");
    end
}

/// A job that makes rounds until it is told to stop; others try to come in meanwhile.
fn besieged(job: &Job, give: impl Fn(&Job, &str) -> Job, attack: impl FnOnce(&Job)) {
    let job = job.clone().told(ROUNDS, 200).told(PAUSE_MS, 50);
    let mut running = start(&job, give);
    running.hear("sum 3 ");
    attack(&job);
    let line = running.scheduler().hear_of(": refused a connection: ");
    assert!(line.starts_with("kvstore scheduler: ") && line.contains(" at 127.0.0.1:"), "{line}");
    let ends = running.end_well();
    let said = |end: &End| end.said("closed").is_some();
    assert!(ends.iter().all(said), "{ends:?}");
}

#[test]
fn sums_over_tls_have_the_bits_of_a_loop() {
    let _turn = Turn::take();
    let keys = Keys::new("tls-bits");
    let give = certified(&keys);
    let job = Job::new("float sums", 3, 2).with("slice_bytes", 8192).told(ROUNDS, 100);
    let job = job.with("peer_timeout_ms", 20_000);
    for end in start(&job, give).end_well() {
        assert!(end.said("closed").is_some(), "{end:?}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was left out")]
fn numeric_addresses_of_ip_version_6_work_over_tls() {
    if TcpListener::bind("[::1]:0").is_err() {
        println!("not run: this machine has no IP version 6");
        return;
    }
    let _turn = Turn::take();
    let keys = Keys::new("tls-six");
    let mut job = Job::new("train", 2, 1).told(ROUNDS, 5);
    job.root = job.root.replace("127.0.0.1", "[::1]");
    start(&job, certified(&keys)).end_well();
}

#[test]
fn sums_with_a_token_and_with_both_have_the_bits_of_a_loop() {
    let _turn = Turn::take();
    let keys = Keys::new("token-bits");
    let give = certified(&keys);
    let job = Job::new("float sums", 2, 1).told(ROUNDS, 50).with("peer_timeout_ms", 20_000);
    start(&job, |job, _| keys.tokened(job, "job")).end_well();
    keys.make(&["token", "--for", "worker"]);
    let both = |job: &Job, role: &str| {
        let token = if role == "worker" { role } else { "job" };
        keys.tokened(&give(job, role), token)
    };
    start(&job, both).end_well();
}

#[test]
fn wrong_certificates_are_refused_while_the_job_goes_on() {
    let _turn = Turn::take();
    let (keys, others) = (Keys::new("tls-wrong"), Keys::new("tls-others"));
    let give = certified(&keys);
    others.make(&["worker"]);
    keys.odd("expired", "worker", -3, -1);
    keys.odd("early", "worker", 1, 3);
    keys.odd("stranger", "mallory", -1, 3);
    let job = Job::new("train", 2, 1).with("start_timeout_ms", 30_000);
    besieged(&job, give, |job| {
        let worker = |job: Job| job.start_worker(1);
        refused(worker(others.secured(job, "worker")), &["the certificate of", "authority"]);
        let known =
            others.secured(job, "worker").with("tls_ca_file", keys.path("ca.pem").display());
        refused(worker(known), &[&job.root, "does not take the certificate", "authority"]);
        refused(worker(keys.secured(job, "expired")), &["expired"]);
        refused(worker(keys.secured(job, "early")), &["not valid before"]);
        refused(worker(job.clone()), &["speaks TLS", "tls_ca_file"]);
        // A worker is no server, whatever it says.
        let server = keys.secured(job, "worker").start_server(0).end(LIMIT);
        assert!(server.text().contains("is for worker"), "{server:?}");
        let stranger = worker(keys.secured(job, "stranger")).end(LIMIT);
        assert!(stranger.text().contains("mallory"), "{stranger:?}");
    });
}

#[test]
fn a_peer_that_trusts_another_authority_says_so_itself() {
    let _turn = Turn::take();
    let (keys, others) = (Keys::new("tls-ours"), Keys::new("tls-theirs"));
    let give = certified(&keys);
    others.make(&["worker"]);
    let job = Job::new("train", 1, 1);
    let all = vec![give(&job, "scheduler").start_scheduler()];
    // Our certificate is good for the scheduler, and its is not for us.
    let trusting =
        keys.secured(&job, "worker").with("tls_ca_file", others.path("ca.pem").display());
    refused(trusting.start_worker(0), &["the certificate of", "not good"]);
    drop(all);
}

#[test]
fn wrong_tokens_are_refused_while_the_job_goes_on() {
    let _turn = Turn::take();
    let (keys, others) = (Keys::new("token-wrong"), Keys::new("token-others"));
    keys.make(&["token", "--for", "worker", "--rank", "1"]);
    keys.make(&["token", "--for", "worker"]);
    let job = Job::new("train", 2, 1);
    besieged(
        &job,
        |job, _| keys.tokened(job, "job"),
        |job| {
            let worker = |job: Job| job.start_worker(1);
            refused(worker(others.tokened(job, "job")), &["token", &job.root]);
            refused(worker(job.clone()), &["wants a token", "KV_TOKEN"]);
            refused(keys.tokened(job, "worker.1").start_worker(0), &["is for worker.1"]);
            refused(worker(keys.tokened(job, "worker.1")), &["there is a worker 1 already"]);
            let server = keys.tokened(job, "worker").start_server(0).end(LIMIT);
            assert!(server.text().contains("is for worker"), "{server:?}");
        },
    );
}

#[test]
fn a_reader_pulls_and_nobody_waits_for_it() {
    let _turn = Turn::take();
    let keys = Keys::new("reader");
    keys.make(&["token", "--for", "reader"]);
    // A worker pushes as many times as it is told; the reader is one of the two workers.
    let job = Job::new("train", 2, 1).told(ROUNDS, 100).told(PAUSE_MS, 20);
    let all = vec![
        keys.tokened(&job, "job").start_scheduler(),
        keys.tokened(&job, "job").start_server(0),
        keys.tokened(&job, "job").start_worker(0),
        keys.tokened(&job, "reader").told(PROGRAM, "reads").start_worker(1),
    ];
    let mut ends = (Running { all, job }).end_well();
    let reader = ends.pop().unwrap();
    assert!(ends[0].text().contains("sum 100 1 1"), "{ends:?}");
    assert!(reader.said("push KV_ERR_ROLE").is_some(), "{reader:?}");
    assert!(reader.said("init KV_ERR_ROLE").is_some(), "{reader:?}");
    assert!(reader.said("read 1").is_some(), "{reader:?}");
}

#[test]
fn a_reader_with_another_name_of_the_same_key_reads_no_value() {
    let _turn = Turn::take();
    let keys = Keys::new("reader-names");
    keys.make(&["token", "--for", "reader"]);
    let job = Job::new("names", 2, 1).told(FILE, keys.path("seen").display());
    let all = vec![
        keys.tokened(&job, "job").start_scheduler(),
        keys.tokened(&job, "job").start_server(0),
        keys.tokened(&job, "job").start_worker(0),
        keys.tokened(&job, "reader").start_worker(1),
    ];
    let mut ends = (Running { all, job }).end_well();
    let reader = ends.pop().unwrap();
    let said = reader.said("KV_ERR_NAME_COLLISION").expect("a collision");
    assert!(said.contains("57er3422k45qg") && said.contains("worker 0"), "{reader:?}");
}

#[test]
fn off_the_loopback_nobody_listens_without_a_credential() {
    let keys = Keys::new("token-bind");
    let job = Job::new("train", 1, 1).with("bind", "0.0.0.0:0");
    let end = job.start_scheduler().end(LIMIT);
    let text = end.text();
    for part in ["KV_ERR_OPTION", "token_file", "tls_cert_file", "kvstore certs", "kvstore run"] {
        assert!(text.contains(part), "{text}");
    }
    let mut with_token = keys.tokened(&job, "job").with("start_timeout_ms", 500).start_scheduler();
    with_token.hear("kvstore scheduler: serve: the job did not start");
}

#[test]
fn credentials_are_written_for_their_owner_and_never_over_others() {
    use std::os::unix::fs::PermissionsExt;

    let keys = Keys::new("certs");
    keys.make(&["worker", "--rank", "3", "--days", "1"]);
    for name in ["ca.key", "ca.pem", "job.token", "worker.3.key", "worker.3.pem"] {
        let mode = keys.path(name).metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    let before = std::fs::read(keys.path("worker.3.pem")).unwrap();
    let again = keys.certs(&["worker", "--rank", "3"]);
    assert!(!again.status.success());
    assert!(String::from_utf8_lossy(&again.stderr).contains("exists already"), "{again:?}");
    assert_eq!(std::fs::read(keys.path("worker.3.pem")).unwrap(), before);
}

/// Nothing that a process writes or fails with has the token in it.
#[test]
fn a_token_is_never_shown() {
    let secret = "correct-horse-battery-staple";
    let job = Job::new("train", 1, 1).with("start_timeout_ms", 500).told("KV_TOKEN", secret);
    for end in [job.start_scheduler().end(LIMIT), job.start_worker(0).end(LIMIT)] {
        assert!(end.status != Some(0) && !end.text().contains(secret), "{end:?}");
    }
    let token = format!("token={secret}");
    let set = Command::new(KVSTORE).args(["server", "--set", &token]).output().unwrap();
    let text = String::from_utf8_lossy(&set.stderr);
    assert!(text.contains("command line") && !text.contains(secret), "{text}");
}

/// What `kvstore doctor` says of a running job to whoever has these options.
fn doctor(root: &str, options: &[(&str, PathBuf)]) -> String {
    let mut doctor = Command::new(KVSTORE);
    doctor.args(["doctor", root, "--timeout-ms", "5000", "--measure-mb", "0"]);
    for (name, value) in options {
        doctor.arg("--set").arg(format!("{name}={}", value.display()));
    }
    String::from_utf8(doctor.output().unwrap().stdout).unwrap()
}

/// How many problems a report has, if it is about credentials and says this.
fn bad_credentials(text: &str, why: &str) -> usize {
    assert!(text.contains("BAD   credentials: ") && text.contains(why), "{text}");
    assert!(text.contains("-     answer: not checked: the credentials"), "{text}");
    text.matches("BAD").count()
}

#[test]
fn the_doctor_says_which_credential_is_wrong() {
    let _turn = Turn::take();
    let (keys, others) = (Keys::new("doctor"), Keys::new("doctor-others"));
    let give = certified(&keys);
    others.make(&["worker"]);
    keys.odd("old", "worker", -9, -2);
    let job = Job::new("train", 1, 1).told(ROUNDS, 1_000_000).told(PAUSE_MS, 20);
    let of = |keys: &Keys, ca: &str, name: &str| {
        [
            ("tls_ca_file", keys.path(ca)),
            ("tls_cert_file", keys.path(&format!("{name}.pem"))),
            ("tls_key_file", keys.path(&format!("{name}.key"))),
        ]
    };
    let mut running = start(&job, give);
    running.hear("sum 3 ");
    let root = job.root.as_str();
    let text = doctor(root, &of(&keys, "ca.pem", "worker"));
    assert!(!text.contains("BAD"), "{text}");
    let text = doctor(root, &of(&keys, "ca.pem", "old"));
    assert_eq!(bad_credentials(&text, "expired"), 1, "{text}");
    let text = doctor(root, &of(&keys, "ca.pem", "nobody"));
    assert_eq!(bad_credentials(&text, "nobody."), 1, "{text}");
    let text = doctor(root, &of(&others, "ca.pem", "worker"));
    assert!(text.contains("BAD   answer: ") && text.contains("not let in"), "{text}");
    drop(running);

    let job = Job::new("train", 1, 1).told(ROUNDS, 1_000_000).told(PAUSE_MS, 20);
    let mut running = start(&job, |job, _| keys.tokened(job, "job"));
    running.hear("sum 3 ");
    let token = |keys: &Keys| [("token_file", keys.path("job.token"))];
    let text = doctor(&job.root, &token(&keys));
    assert!(!text.contains("BAD"), "{text}");
    let text = doctor(&job.root, &token(&others));
    assert!(text.contains("BAD   answer: ") && text.contains("not let in"), "{text}");
}
