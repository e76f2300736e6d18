//! The tokens that `kvstore run` makes: for processes of its user, on all hosts, and for no other user.

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use super::common::folder::Folder;
use super::job::{End, KVSTORE, LIMIT, MARGIN, Process, Turn, soon, worker};
use super::program::{PAUSE_MS, PROGRAM, ROUNDS};

/// A user that is not the one of the tests.
const OTHER: &str = "65534";

/// A runtime folder of a test alone, as a login has one.
fn runtime(name: &str) -> Folder {
    let folder = Folder::new(name);
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o700)).unwrap();
    folder
}

/// `kvstore run` with these options, for one of the programs.
fn launcher(options: &[&str], program: &str, runtime: &Path) -> Command {
    let mut command = Command::new(KVSTORE);
    let worker = worker();
    command.arg("run").args(options).arg("--").arg(worker.get_program()).args(worker.get_args());
    for (name, value) in [(PROGRAM, program), ("KV_THREADS", "1"), ("KV_PEER_TIMEOUT_MS", "20000")]
    {
        command.env(name, value);
    }
    command.env("XDG_RUNTIME_DIR", runtime).env(PAUSE_MS, "5");
    command
}

/// A job that makes rounds until it is ended, and the address of its scheduler.
fn training(runtime: &Path) -> (Process, String) {
    let (mut launcher, root) = started(launcher(&["-v", "-n", "2", "-s", "1"], "train", runtime));
    launcher.hear("sum 3");
    (launcher, root)
}

/// A job whose second worker never joins: there is room for another process of that rank.
fn with_room(runtime: &Path) -> (Process, String) {
    let worker = worker();
    let script = "if [ $KV_RANK = 1 ]; then exec sleep 1000; fi; exec \"$@\"";
    let mut command = Command::new(KVSTORE);
    command.args(["run", "-v", "-n", "2", "-s", "1", "--", "sh", "-c", script, "sh"]);
    command.arg(worker.get_program()).args(worker.get_args()).env(PROGRAM, "train");
    command.env("XDG_RUNTIME_DIR", runtime).env("KV_PEER_TIMEOUT_MS", "20000");
    started(command)
}

fn started(command: Command) -> (Process, String) {
    let mut launcher = Process::start("launcher", command);
    let line = launcher.hear("kvstore run: `kvstore top ");
    (launcher, line.split('`').next().unwrap().to_owned())
}

fn look(command: &str, root: &str, runtime: &Path) -> Output {
    let mut look = Command::new(KVSTORE);
    look.args([command, root]).env("XDG_RUNTIME_DIR", runtime).output().unwrap()
}

/// A reader that was told nothing but the address and the size of its job.
fn reader(root: &str, runtime: &Path) -> End {
    let mut command = worker();
    for (name, value) in [
        (PROGRAM, "reads"),
        ("KV_ROLE", "reader"),
        ("KV_RANK", "1"),
        ("KV_ROOT", root),
        ("KV_NUM_WORKERS", "2"),
        ("KV_NUM_SERVERS", "1"),
        ("KV_START_TIMEOUT_MS", "8000"),
        ("KV_PEER_TIMEOUT_MS", "20000"),
    ] {
        command.env(name, value);
    }
    command.env("XDG_RUNTIME_DIR", runtime);
    Process::start("reader", command).end(LIMIT)
}

#[test]
fn the_user_of_a_job_looks_and_joins_without_an_option_and_the_file_goes_with_the_job() {
    let _turn = Turn::take();
    let (own, other) = (runtime("token-own"), runtime("token-none"));
    for signal in ["TERM", "KILL"] {
        let (launcher, root) = training(own.path());
        let file = own.file("kvstore").join(&root);
        assert_eq!(fs::metadata(&file).unwrap().mode() & 0o7777, 0o600);
        if signal == "TERM" {
            let seen = look("status", &root, own.path());
            assert!(seen.status.success(), "{seen:?}");
            let text = String::from_utf8(look("doctor", &root, own.path()).stdout).unwrap();
            assert!(text.contains(file.to_str().unwrap()), "{text}");
            let refused = look("status", &root, other.path());
            let text = String::from_utf8(refused.stderr.clone()).unwrap();
            assert!(!refused.status.success() && text.contains("not let in"), "{refused:?}");
        }
        launcher.signal(signal);
        launcher.end(LIMIT);
        assert!(soon(Duration::from_secs(2) + MARGIN, || !file.exists()), "{}", file.display());
    }
}

#[test]
fn a_process_of_the_same_user_joins_by_hand_without_an_option() {
    let _turn = Turn::take();
    let own = runtime("token-join");
    let (launcher, root) = with_room(own.path());
    let end = reader(&root, own.path());
    assert!(end.said("read 1").is_some(), "{end:?}");
    launcher.signal("TERM");
    launcher.end(LIMIT);
}

/// The program where each user may read it.
fn program_for_all(folder: &Folder) -> PathBuf {
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.file("kvstore");
    fs::copy(KVSTORE, &program).unwrap();
    program
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was left out")]
fn another_user_of_the_machine_neither_looks_nor_joins() {
    let apart = ["--reuid", OTHER, "--regid", OTHER, "--clear-groups"];
    let can = Command::new("setpriv").args(apart).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("not run: these tests may not act as another user");
        return;
    }
    let _turn = Turn::take();
    let (own, shared) = (runtime("token-mine"), Folder::new("token-shared"));
    let program = program_for_all(&shared);
    let (launcher, root) = training(own.path());
    let as_other = |words: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(apart).arg(&program).args(words).env("XDG_RUNTIME_DIR", own.path());
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (status, text) = as_other(&["status", &root]);
    assert!(status == Some(1) && text.contains("not let in"), "{text}");
    let sizes = ["--num-workers", "2", "--num-servers", "1"];
    let (status, text) = as_other(&[&["server", "--root", &root][..], &sizes].concat());
    assert!(status == Some(1) && text.contains("KV_ERR_REFUSED"), "{text}");
    launcher.signal("TERM");
    launcher.end(LIMIT);
}

/// This machine's address on the way to others; none without a network.
fn own_address() -> Option<String> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback()).then(|| address.to_string())
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was left out")]
fn a_job_on_hosts_runs_as_the_first_page_prints_it() {
    let Some(host) = own_address() else {
        println!("not run: this machine has no address but the loopback");
        return;
    };
    let _turn = Turn::take();
    let own = runtime("token-hosts");
    let ssh = concat!("bash '", env!("CARGO_MANIFEST_DIR"), "/tests/run/fake_ssh.sh'");
    let hosts = format!("{host}:2");
    let options = ["--ssh", ssh, "--hosts", &hosts, "-s", "2"];
    let mut command = launcher(&options, "closed forms", own.path());
    command.env(ROUNDS, "2");
    let end = Process::start("launcher", command).end(LIMIT);
    let closed = end.lines.iter().filter(|line| line.text == "closed").count();
    assert_eq!((end.status, closed), (Some(0), 2), "{}", end.text());
    assert_eq!(fs::read_dir(own.file("kvstore")).unwrap().count(), 0);
}

#[test]
fn a_token_on_a_command_line_is_refused_and_not_shown() {
    const SECRET: &str = "token=0123456789abcdef";
    for words in [
        &["run", "--set", SECRET, "-s", "0", "true"][..],
        &["run", "--set", SECRET, "--role-env"],
        &["join", "--index", "0", "--count", "3", "--set", SECRET, "true"],
        &["bench", "--set", SECRET],
        &["server", "--set", SECRET],
        &["status", "127.0.0.1:9", "--set", SECRET],
        &["top", "127.0.0.1:9", "--set", SECRET],
        &["doctor", "127.0.0.1:9", "--set", SECRET],
    ] {
        let output = Command::new(KVSTORE).args(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains("KV_TOKEN in the environment") && !text.contains("0123"), "{text}");
    }
}
