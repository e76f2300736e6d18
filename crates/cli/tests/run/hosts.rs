//! Jobs on several hosts, which a script in the place of ssh plays on this machine.

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use super::launcher::{LIMIT, Launcher, PROGRAM, VANISH, command, soon, waiting};

const SSH: &str = concat!("bash '", env!("CARGO_MANIFEST_DIR"), "/tests/run/fake_ssh.sh' -v");

/// A job on hosts, of workers that run a script.
fn job(options: &str, script: &str) -> Command {
    let mut words = vec!["--ssh", SSH];
    words.extend(options.split(' '));
    words.extend(["-s", "0", "--", "sh", "-c", script]);
    command(&words)
}

fn start(options: &str, script: &str) -> Launcher {
    Launcher::spawn(&mut job(options, script))
}

/// A folder for the numbers of the processes that play ssh.
struct Numbers(PathBuf);

impl Numbers {
    fn new(name: &str) -> Self {
        let folder = format!("kvstore-run-{name}-{}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir(&folder).unwrap();
        Self(folder)
    }

    /// Sends a signal to all that plays the connection to a host.
    fn signal(&self, host: &str, name: &str) {
        let number = fs::read_to_string(self.0.join(host)).unwrap();
        let group = format!("-{}", number.trim());
        let kill = Command::new("kill").args(["-s", name, "--", &group]).status().unwrap();
        assert!(kill.success());
    }
}

impl Drop for Numbers {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn workers_fill_the_slots_of_hosts_and_have_their_names() {
    let end = start("--hosts a:1,chatty:2", "echo $KV_RANK of $KV_NUM_WORKERS on $FAKE_HOST").end();
    assert_eq!((end.status, end.err.as_str()), (Some(0), ""));
    let mut out: Vec<&str> = end.out().lines().collect();
    out.sort_unstable();
    assert_eq!(
        out,
        [
            "worker 0 on a      | 0 of 3 on a",
            "worker 1 on chatty | 1 of 3 on chatty",
            "worker 2 on chatty | 2 of 3 on chatty",
        ]
    );
}

#[test]
fn hosts_may_stand_in_a_file_and_this_machine_among_them() {
    let folder = Numbers::new("file");
    let file = folder.0.join("hosts");
    fs::write(&file, "# ours\nlocalhost slots=1\na slots=1\n").unwrap();
    let options = format!("--host-file {}", file.display());
    let end = start(&options, "echo at ${FAKE_HOST-here}").end();
    let mut out: Vec<&str> = end.out().lines().collect();
    out.sort_unstable();
    assert_eq!(
        (end.status, out),
        (Some(0), vec!["worker 0      | at here", "worker 1 on a | at a"])
    );
}

#[test]
fn words_and_variables_arrive_as_they_are_and_only_those_that_are_passed_on() {
    let odd = "it's \"$HOME\" `x`\n\\ *";
    let script = "printf '<%s>' \"$1\" \"$KV_SECRET\" \"$LATER\" \"${OTHER-none}\" \"$SET\"; pwd";
    let words =
        ["--ssh", SSH, "--hosts", "a", "-s", "0", "--env", "LATER", "--env", "SET=x=y", "sh", "-c"];
    let mut command = command(&words);
    command.args([script, "sh", odd]).current_dir("/usr");
    command.envs([("KV_SECRET", odd), ("LATER", "passed"), ("OTHER", "kept back")]);
    let end = Launcher::spawn(&mut command).end();
    let text = end.out().replace("\nworker 0 on a | ", "\n");
    assert_eq!(text, format!("worker 0 on a | <{odd}><{odd}><passed><none><x=y>/usr\n"));
}

#[test]
fn secrets_are_on_no_command_line() {
    let mut command = job("--hosts a", &waiting("echo $KV_SECRET"));
    let launcher = Launcher::spawn(command.env("KV_SECRET", "open sesame"));
    launcher.hear("open sesame", 1);
    launcher.hear("ready", 1);
    let living = launcher.living();
    assert!(living.len() >= 5, "{living:?}");
    for folder in living {
        let line = fs::read(format!("{folder}/cmdline")).unwrap_or_default();
        assert!(!line.windows(6).any(|it| it == b"sesame"), "{}", line.escape_ascii());
    }
    launcher.signal("TERM");
    assert_eq!(launcher.end().status, Some(143));
}

#[test]
fn the_first_failure_ends_all_hosts_and_the_summary_names_them() {
    let script = "[ $KV_RANK = 1 ] && exit 5; sleep 1000 & wait";
    let end = start("--hosts a,b -n 3 --linger-ms 20", script).end();
    assert_eq!(end.status, Some(5));
    let expected = "kvstore run: failed because worker 1 on a ended first, with status 5";
    assert_eq!(end.last_line(), expected);
    let expected = "kvstore run: worker 2 on b ended with signal 15 (SIGTERM) (process ";
    assert!(end.err.contains(expected), "{}", end.err);
}

#[test]
fn signals_reach_all_hosts_and_last_words_come_back() {
    let script = waiting("trap 'sleep 0.1; echo saved; exit 0' TERM");
    let launcher = start("--hosts a,b,localhost -n 3", &script);
    launcher.hear("ready", 3);
    launcher.signal("TERM");
    let end = launcher.end();
    assert_eq!((end.status, end.out().matches("| saved\n").count()), (Some(143), 3));
}

#[test]
fn workers_on_hosts_that_do_not_listen_are_killed_after_the_grace() {
    let script = waiting("trap '' TERM INT HUP; sleep 1000 & :");
    let launcher = start("--hosts a,b --grace-ms 100", &script);
    launcher.hear("ready", 2);
    launcher.signal("TERM");
    let end = launcher.end();
    assert_eq!(end.status, Some(143));
    assert!(end.err.contains("worker 1 on b ended with signal 9 (SIGKILL)"), "{}", end.err);
}

#[test]
fn what_workers_on_hosts_leave_behind_is_ended() {
    let end =
        start("--hosts a,b", "(trap 'echo asked; exit' TERM; echo on; sleep 1000 & wait) &").end();
    assert_eq!((end.status, end.out().matches("| asked\n").count()), (Some(0), 2), "{}", end.out());
}

#[test]
fn a_launcher_that_is_killed_leaves_nobody_on_any_host() {
    for script in
        ["sleep 1000 & echo ready; wait", &waiting("trap '' TERM INT HUP; sleep 1000 & :")]
    {
        let mut launcher = start("--hosts a,b -n 3", script);
        launcher.hear("ready", 3);
        assert!(launcher.living().len() >= 15, "{:?}", launcher.living());
        launcher.process.kill().unwrap();
        assert!(soon(VANISH, || launcher.living().is_empty()), "{:?}", launcher.living());
    }
}

#[test]
fn a_connection_that_breaks_ends_the_job_on_both_sides() {
    let numbers = Numbers::new("breaks");
    let launcher = Launcher::spawn(
        job("--hosts a,b --linger-ms 20", &waiting(":")).env("FAKE_FOLDER", &numbers.0),
    );
    launcher.hear("ready", 2);
    numbers.signal("b", "KILL");
    let end = launcher.end_within(VANISH);
    assert_eq!(end.status, Some(255), "{}", end.err);
    let expected =
        "kvstore run: the connection to b has ended (bash ended with signal 9 (SIGKILL))";
    assert!(end.err.contains(expected), "{}", end.err);
    assert!(end.err.contains("worker 0 on a ended with signal 15 (SIGTERM)"), "{}", end.err);
    let expected =
        "kvstore run: failed because worker 1 on b ended first, with the connection to its host";
    assert_eq!(end.last_line(), expected);
}

#[test]
fn a_connection_that_hangs_ends_the_job() {
    let numbers = Numbers::new("hangs");
    let options = "--hosts a,b --linger-ms 20 --host-timeout-ms 1000";
    let launcher = Launcher::spawn(job(options, &waiting(":")).env("FAKE_FOLDER", &numbers.0));
    launcher.hear("ready", 2);
    numbers.signal("b", "STOP");
    let end = launcher.end_within(VANISH);
    assert_eq!(end.status, Some(255), "{}", end.err);
    let expected = "kvstore run: the connection to b is lost: no sign of life for 1000 ms";
    assert!(end.err.contains(expected), "{}", end.err);
}

#[test]
fn hosts_that_hear_nothing_of_the_launcher_end_their_workers_themselves() {
    let launcher = start("--hosts a,b --linger-ms 20 --host-timeout-ms 1000", &waiting(":"));
    launcher.hear("ready", 2);
    let is_worker = |folder: &String| {
        let line = fs::read(format!("{folder}/cmdline")).unwrap_or_default();
        line.starts_with(b"sh\0-c\0")
    };
    let workers = || launcher.living().iter().filter(|it| is_worker(it)).count();
    assert!(workers() >= 2, "{:?}", launcher.living());
    launcher.signal("STOP");
    assert!(soon(LIMIT, || workers() == 0), "{:?}", launcher.living());
    launcher.signal("CONT");
    let end = launcher.end_within(VANISH);
    assert_ne!(end.status, Some(0), "{}", end.err);
}

#[test]
fn an_agent_that_is_killed_leaves_nobody() {
    let launcher = start("--hosts a,b --linger-ms 20", &waiting("trap '' TERM"));
    launcher.hear("ready", 2);
    let is_agent = |folder: &String| {
        let line = fs::read(format!("{folder}/cmdline")).unwrap_or_default();
        line.starts_with(PROGRAM.as_bytes()) && line.ends_with(b"\0agent\0")
    };
    let agents: Vec<String> = launcher.living().into_iter().filter(is_agent).collect();
    assert_eq!(agents.len(), 2);
    let number = agents[0].trim_start_matches("/proc/");
    assert!(Command::new("kill").args(["-s", "KILL", number]).status().unwrap().success());
    let end = launcher.end_within(VANISH);
    assert_eq!(end.status, Some(255), "{}", end.err);
}

#[test]
fn a_host_that_cannot_be_reached_is_named_with_the_reason() {
    let end = start("--hosts a,down --linger-ms 20", "sleep 1000 & wait").end();
    assert_eq!(end.status, Some(255));
    assert!(
        end.err.contains("| ssh: connect to host down port 22: Connection refused"),
        "{}",
        end.err
    );
    let expected = "kvstore run: kvstore does not start on down (bash ended with status 255)";
    assert!(end.err.contains(expected), "{}", end.err);
    let end = Launcher::start(&["--ssh", "./nothing", "--hosts", "a", "-s", "0", "true"]).end();
    assert_eq!(end.status, Some(1));
    assert!(end.last_line().starts_with("kvstore run: cannot run ./nothing: "), "{}", end.err);
}

#[test]
fn a_program_that_a_host_does_not_have_is_one_clear_line() {
    for (program, status, reason) in
        [("./nothing", 127, "program not found"), ("/etc/passwd", 126, "not executable")]
    {
        let words = ["--ssh", SSH, "--hosts", "a,b", "--linger-ms", "0", "-s", "0", program];
        let end = Launcher::start(&words).end();
        assert_eq!(end.status, Some(status), "{}", end.err);
        let expected = format!("kvstore run: cannot start worker 0 on a: {program}: {reason}\n");
        assert!(end.err.contains(&expected), "{}", end.err);
        let expected = format!("kvstore run: worker 0 on a was not started: {program}: {reason}\n");
        assert!(end.err.contains(&expected), "{}", end.err);
    }
    for (options, reason) in [
        (&["--remote-folder", "/nowhere"][..], "a: cannot enter the folder /nowhere there: "),
        (&["--remote-program", "/nowhere/kvstore"], "kvstore does not start on a (bash ended"),
    ] {
        let words = [&["--ssh", SSH, "--hosts", "a", "-s", "0"][..], options, &["true"]].concat();
        let end = Launcher::start(&words).end();
        assert_eq!(end.status, Some(255), "{}", end.err);
        assert!(end.err.contains(&format!("kvstore run: {reason}")), "{}", end.err);
    }
}

#[test]
fn much_output_of_many_hosts_arrives_whole() {
    let script = "i=0; while [ $i -lt 300 ]; do printf 'one '; echo line; i=$((i+1)); done; \
        head -c 300000 /dev/zero | tr '\\0' x";
    let end = start("--hosts a:2,b:2", script).end();
    let lines = end.out().lines().filter(|line| line.ends_with(" | one line")).count();
    let letters = end.out().matches('x').count();
    assert_eq!((end.status, lines, letters), (Some(0), 1200, 1_200_000));
}

#[test]
fn a_worker_on_a_host_ends_when_nobody_reads_the_launcher() {
    let mut launcher = Launcher::start(&["--ssh", SSH, "--hosts", "a", "-s", "0", "yes"]);
    launcher.hear("y", 1);
    // Its reader goes with the other end of this channel.
    launcher.out = mpsc::channel().1;
    let end = launcher.end();
    assert_eq!(end.status, Some(141), "{}", end.err);
}

#[test]
fn a_job_on_hosts_is_started_again_as_a_whole() {
    let script = "echo try $KV_RESTARTS; [ $KV_RANK = 0 ] && [ $KV_RESTARTS -lt 2 ] && exit 3; \
        [ $KV_RESTARTS -lt 2 ] && sleep 1000; exit 0";
    let end = start("--hosts a,b --linger-ms 20 --restarts 5", script).end();
    assert_eq!(end.status, Some(0), "{}", end.err);
    for restarts in 0..3 {
        assert!(end.out().contains(&format!("worker 0 on a | try {restarts}\n")), "{}", end.out());
    }
    assert!(end.out().contains("worker 1 on b | try 2\n"), "{}", end.out());
    assert_eq!(end.last_line(), "kvstore run: starts the job again, 2 of 5");
}

#[test]
fn lists_of_hosts_are_checked_before_anything_starts() {
    for (options, part) in [
        (&["--hosts", "a:1,b:1", "-n", "3"][..], "3 workers do not fit into 2 slots"),
        (&["--hosts=-oProxyCommand=x"], "is no host"),
        (&["--host-file", "/nowhere"], "/nowhere: "),
        (&["--hosts", "a", "--ssh", "ssh '"], "not closed"),
        (&["--hosts", "a", "--host-file", "b"], "cannot be used with"),
        (&["--set", "rank=1"], "sets itself"),
    ] {
        let output = Command::new(PROGRAM).arg("run").args(options).arg("true").output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{options:?}: {text}");
        assert!(text.contains(part), "{options:?}: {text}");
    }
    // A host that nobody knows needs an address.
    let words = ["run", "--hosts", "a..b", "true"];
    let output = Command::new(PROGRAM).args(words).output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("a..b") && text.contains("--root"), "{text}");
}

#[test]
fn many_workers_on_a_host_need_no_higher_limit_of_files() {
    let script = format!(
        "ulimit -Sn 64; exec {PROGRAM} run --ssh \"{SSH}\" --hosts a,b -n 60 -s 0 -- sh -c 'ulimit -n'"
    );
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.ends_with(" | 64")).count(), 60, "{text}");
}

/// What an agent says to a first line.
fn agent(line: &str) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg("agent").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut process = command.spawn().unwrap();
    let mut input = process.stdin.take().unwrap();
    writeln!(input, "{line}").unwrap();
    std::thread::sleep(Duration::from_millis(100));
    drop(input);
    let output = process.wait_with_output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn an_agent_of_another_release_says_so_and_starts_nothing() {
    let start = r#"{"Start":{"version":"0.0.1","folder":"/","silence_ms":1000,"processes":[]}}"#;
    let said = agent(start);
    let expected = format!("kvstore is release {} there, and 0.0.1 here", kvstore::VERSION);
    assert!(said.starts_with("kvstore agent at work\n") && said.contains(&expected), "{said}");
    assert_eq!(agent("Welcome"), "kvstore agent at work\n");
}
