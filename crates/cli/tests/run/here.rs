//! Jobs on this machine, and the command line.

use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::mpsc;

use super::launcher::{Launcher, PROGRAM, VANISH, command, soon, waiting};

#[test]
fn every_worker_has_its_environment_and_its_label() {
    let script = "echo $KV_ROLE $KV_RANK of $KV_NUM_WORKERS, $DMLC_WORKER_ID, $KV_OTHER; \
        echo ${#KV_JOB} ${KV_ROOT-none} >&2";
    let words = ["-n", "11", "-s", "0", "sh", "-c", script];
    let end = Launcher::spawn(command(&words).env("KV_OTHER", "kept").env("KV_ROOT", "x")).end();
    assert_eq!((end.status, end.err.lines().count()), (Some(0), 11));
    let mut out: Vec<&str> = end.out().lines().collect();
    out.sort_unstable();
    assert_eq!(out[0], "worker 0  | worker 0 of 11, 0, kept");
    assert_eq!(out[2], "worker 10 | worker 10 of 11, 10, kept");
    assert!(end.err.lines().all(|line| line.ends_with(" | 32 none")), "{}", end.err);
}

#[test]
fn the_single_worker_reads_what_the_launcher_reads() {
    for (workers, expected) in [("1", "worker 0 | hello\n"), ("2", "")] {
        let mut command = command(&["-s", "0", "-n", workers, "cat"]);
        let mut launcher = Launcher::spawn(command.stdin(Stdio::piped()));
        let mut input = launcher.process.stdin.take().unwrap();
        let _ = input.write_all(b"hello");
        drop(input);
        let end = launcher.end();
        assert_eq!((end.status, end.out()), (Some(0), expected));
    }
}

#[test]
fn lines_of_any_length_and_content_arrive_whole() {
    let script = "head -c 300000 /dev/zero | tr '\\0' x; printf '\\n\\377\\nno end'";
    let end = Launcher::script("-n 1", script).end();
    let mut lines: Vec<&[u8]> = end.out.split(|&byte| byte == b'\n').collect();
    assert_eq!(lines.pop(), Some(&b""[..]));
    assert_eq!(lines.pop(), Some(&b"worker 0 | no end"[..]));
    assert_eq!(lines.pop(), Some(&b"worker 0 | \xff"[..]));
    assert!(lines.len() > 1 && lines[1].starts_with(b"worker 0 + x"));
    assert_eq!(lines.iter().map(|line| line.len() - "worker 0 | ".len()).sum::<usize>(), 300_000);
}

#[test]
fn lines_of_many_workers_are_never_mixed() {
    let script = "i=0; while [ $i -lt 300 ]; do printf 'one '; echo line; i=$((i+1)); done";
    let end = Launcher::script("-n 4", script).end();
    let mut out: Vec<&str> = end.out().lines().collect();
    out.sort_unstable();
    out.dedup();
    let expected: Vec<String> = (0..4).map(|rank| format!("worker {rank} | one line")).collect();
    assert_eq!((out, end.out().lines().count()), (expected.iter().map(|it| &**it).collect(), 1200));
}

#[test]
fn the_first_failure_ends_all_and_is_the_exit_status() {
    let script = "[ $KV_RANK = 1 ] && exit 5; sleep 1000 & wait";
    let end = Launcher::script("-n 3 --linger-ms 20", script).end();
    assert_eq!(end.status, Some(5));
    let expected = "kvstore run: failed because worker 1 ended first, with status 5";
    assert_eq!(end.last_line(), expected);
    assert!(end.err.contains("kvstore run: worker 2 ended with signal 15 (SIGTERM)"));
}

#[test]
fn the_others_have_time_to_say_what_they_see_of_a_failure() {
    let script = "[ $KV_RANK = 0 ] && kill -9 $$; sleep 0.2; echo lost 0 >&2; exit 3";
    let end = Launcher::script("-n 2 --linger-ms 20000", script).end();
    assert_eq!(end.status, Some(137));
    assert!(end.err.starts_with("worker 1 | lost 0\n"), "{}", end.err);
    let expected = "kvstore run: failed because worker 0 ended first, with signal 9 (SIGKILL)";
    assert_eq!(end.last_line(), expected);
}

#[test]
fn a_signal_is_passed_on_and_what_workers_say_then_is_heard() {
    for (name, status) in [("TERM", 143), ("HUP", 129)] {
        let script = waiting(&format!("trap 'echo saved; exit 0' {name}"));
        let launcher = Launcher::script("-n 2", &script);
        launcher.hear("ready", 2);
        launcher.signal(name);
        let end = launcher.end();
        assert_eq!((end.status, end.out.ends_with(b"| saved\n")), (Some(status), true));
        assert_eq!(end.out().matches("| saved\n").count(), 2);
        assert!(end.last_line().starts_with("kvstore run: stopped by signal"), "{}", end.err);
    }
}

#[test]
fn a_program_that_a_script_has_started_is_waited_for_like_the_script() {
    let script = format!("({}) & wait", waiting("trap 'sleep 0.2; echo saved; exit' TERM"));
    let launcher = Launcher::script("-n 1", &script);
    launcher.hear("ready", 1);
    launcher.signal("TERM");
    assert_eq!(launcher.end().out(), "worker 0 | saved\n");
}

#[test]
fn workers_that_do_not_listen_are_killed_after_the_grace() {
    let launcher = Launcher::script("-n 2 --grace-ms 100", &waiting("trap '' TERM INT HUP"));
    launcher.hear("ready", 2);
    launcher.signal("TERM");
    let end = launcher.end();
    assert_eq!(end.status, Some(143));
    assert!(end.err.contains("worker 0 ended with signal 9 (SIGKILL)"), "{}", end.err);
}

#[test]
fn the_second_interrupt_kills_at_once() {
    let script = waiting("trap 'echo heard' INT");
    let launcher = Launcher::script("-n 1 --grace-ms 600000", &script);
    launcher.hear("ready", 1);
    launcher.signal("INT");
    launcher.hear("heard", 1);
    launcher.signal("INT");
    assert_eq!(launcher.end().status, Some(130));
}

#[test]
fn a_launcher_that_is_killed_leaves_nobody() {
    let scripts = [
        "sleep 1000 & echo ready; wait",
        "trap '' TERM INT HUP; sleep 1000 & echo ready; sleep 1000",
    ];
    for script in scripts {
        let mut launcher = Launcher::script("-n 2", script);
        launcher.hear("ready", 2);
        assert!(launcher.living().len() >= 6, "launcher, keeper, and two of each worker");
        launcher.process.kill().unwrap();
        assert!(soon(VANISH, || launcher.living().is_empty()), "{:?}", launcher.living());
    }
}

#[test]
fn a_program_that_cannot_be_started_is_one_clear_line() {
    for (program, status, reason) in
        [("./nothing", 127, "program not found"), ("/etc/passwd", 126, "not executable")]
    {
        for servers in ["0", "1"] {
            let end = Launcher::start(&["-n", "2", "-s", servers, program]).end();
            let expected = format!("kvstore run: cannot start worker 0: {program}: {reason}\n");
            assert_eq!((end.status, end.err), (Some(status), expected));
        }
    }
}

#[test]
fn a_worker_ends_when_nobody_reads_the_launcher() {
    let mut launcher = Launcher::start(&["-s", "0", "yes"]);
    launcher.hear("y", 1);
    // Its reader goes with the other end of this channel.
    launcher.out = mpsc::channel().1;
    let end = launcher.end();
    assert_eq!(end.status, Some(141), "{}", end.err);
}

#[test]
fn twenty_starts_and_stops_leave_nobody() {
    for round in 0..20 {
        if round % 2 == 0 {
            assert_eq!(Launcher::script("-n 3", "sleep 1000 & kill $!").end().status, Some(0));
        } else {
            let launcher = Launcher::script("-n 3", "sleep 1000 & echo ready; wait");
            launcher.hear("ready", 3);
            launcher.signal("TERM");
            assert_eq!(launcher.end().status, Some(143));
        }
    }
}

#[test]
fn verbose_names_the_processes_and_how_they_ended() {
    let end = Launcher::script("-v", "echo $$").end();
    let number = end.out().trim_start_matches("worker 0 | ").trim();
    let expected = format!(
        "kvstore run: worker 0 is process {number}\n\
         kvstore run: worker 0 ended with status 0 (process {number}, after "
    );
    assert!(end.status == Some(0) && end.err.starts_with(&expected), "{}", end.err);
}

#[test]
fn mistakes_on_the_command_line_are_explained_with_status_2() {
    for (words, part) in [
        (&["run", "--num-worker", "3", "x"][..], "--num-workers"),
        (&["run", "-n", "0", "x"], "65536"),
        (&["run"], "PROGRAM"),
        (&["rum"], "run"),
        (&["server", "--set", "thread=2"], "did you mean threads?"),
        (&["scheduler", "--num-workers", "0"], "num_workers"),
    ] {
        let output = Command::new(PROGRAM).args(words).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(part), "{words:?}: {text}");
    }
}

#[test]
fn the_number_of_workers_may_be_given_as_mpirun_has_it() {
    for words in [&["-np", "3"][..], &["--np", "3"], &["-np=3"], &["-v", "-np3"]] {
        let program = ["-s", "0", "sh", "-c", "echo of $KV_NUM_WORKERS $1", "sh", "-np"];
        let end = Launcher::start(&[words, &program].concat()).end();
        let lines = end.out().lines().filter(|line| line.ends_with("| of 3 -np")).count();
        assert_eq!((end.status, lines), (Some(0), 3), "{words:?}: {}", end.err);
    }
}

#[test]
fn options_after_the_program_are_its_own() {
    let end = Launcher::start(&["-s", "0", "echo", "-n", "3", "--", "--help"]).end();
    assert_eq!(end.out(), "worker 0 | 3 -- --help\n");
}

#[test]
fn errors_of_servers_name_the_command() {
    let output = Command::new(PROGRAM).arg("server").env("KV_THREADS", "none").output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 1), "{text}");
    assert!(text.starts_with("kvstore server: "), "{text}");
}

#[test]
fn version_and_help_are_answers_not_errors() {
    let answer = |word: &str| {
        let output = Command::new(PROGRAM).arg(word).output().unwrap();
        assert!(output.status.success());
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(answer("--version"), format!("kvstore {}\n", kvstore::VERSION));
    let help = answer("--help");
    assert!(help.contains("run ") && !help.contains("keeper"), "{help}");
}

#[test]
fn a_job_that_fails_is_started_again_up_to_a_limit() {
    let script = "echo try $KV_RESTARTS of job $KV_JOB; [ $KV_RESTARTS = 1 ] || exit 3";
    let end = Launcher::script("--restarts 4", script).end();
    assert_eq!((end.status, end.out().lines().count()), (Some(0), 2), "{}", end.err);
    assert!(end.err.contains("kvstore run: worker 0 ended with status 3 (process "), "{}", end.err);
    assert_eq!(end.last_line(), "kvstore run: starts the job again, 1 of 4");
    // Each time it is another job.
    let jobs: Vec<&str> = end.out().lines().filter_map(|line| line.rsplit(' ').next()).collect();
    assert!(jobs[0].len() == 32 && jobs[0] != jobs[1], "{jobs:?}");

    let end = Launcher::script("--restarts 2", "exit 3").end();
    assert_eq!((end.status, end.err.matches("starts the job again").count()), (Some(3), 2));
    let end = Launcher::start(&["--restarts", "2", "-s", "0", "./nothing"]).end();
    assert_eq!((end.status, end.err.lines().count()), (Some(127), 1), "{}", end.err);
}

#[test]
fn a_job_that_is_asked_to_end_is_not_started_again() {
    let launcher = Launcher::script("--restarts 2", &waiting("trap 'exit 3' TERM"));
    launcher.hear("ready", 1);
    launcher.signal("TERM");
    let end = launcher.end();
    assert_eq!((end.status, end.err.contains("again")), (Some(143), false), "{}", end.err);
}

/// What the command prints.
fn output(words: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(words).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn other_launchers_learn_what_each_process_needs() {
    let words = ["run", "--role-env", "-n", "2", "--root", "10.0.0.1:9091", "--set", "threads=2"];
    let text = output(&[&words[..], &["./train", "it's"]].concat());
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 8);
    assert_eq!([lines[0], lines[2], lines[6]], ["# scheduler", "# server 0", "# worker 1"]);
    assert!(lines[1].ends_with(" kvstore scheduler") && lines[3].ends_with(" kvstore server"));
    for part in
        ["KV_THREADS=2 ", "KV_ROLE=worker KV_RANK=1 ", "KV_ROOT=10.0.0.1:9091 ", "KV_TOKEN="]
    {
        assert!(lines[7].contains(part), "{}", lines[7]);
    }
    assert!(lines[7].ends_with(r" ./train 'it'\''s'"), "{}", lines[7]);

    let text = output(&[&words[..], &["--format", "json", "--hosts", "a,b", "./train"]].concat());
    let found: serde_json::Value = serde_json::from_str(&text).unwrap();
    let processes = found["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 4);
    let worker = &processes[3];
    assert_eq!(
        (&worker["role"], &worker["rank"], &worker["host"]),
        (&"worker".into(), &1.into(), &"b".into())
    );
    assert_eq!(worker["environment"]["KV_NUM_WORKERS"], "2");
    assert_eq!(worker["command"], serde_json::json!(["./train"]));
    assert_eq!(processes[0]["environment"]["KV_JOB"], worker["environment"]["KV_JOB"]);
    // Without a program there is only the environment.
    let text = output(&["run", "--role-env", "-s", "0"]);
    assert_eq!(text.lines().count(), 2);
    assert!(text.lines().last().unwrap().contains("DMLC_WORKER_ID=0"), "{text}");
}

#[test]
fn the_lines_of_role_env_are_a_job_when_a_shell_runs_them() {
    let text =
        output(&["run", "--role-env", "-n", "2", "-s", "0", "sh", "-c", "echo \"<$KV_RANK>\""]);
    let output = Command::new("sh").args(["-c", &text]).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), "<0>\n<1>\n");
}

#[test]
fn processes_started_by_hand_are_refused_off_the_loopback_with_the_way_out() {
    let sizes = ["--num-workers", "1", "--num-servers", "1"];
    let mut scheduler = Command::new(PROGRAM);
    scheduler.args(["scheduler", "--root", "0.0.0.0:0"]).args(sizes);
    let output = scheduler.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let expected = "is not on the loopback, and every process that reaches it could join the job";
    assert!(text.contains(expected) && text.contains("`kvstore run`"), "{text}");
}

#[test]
fn many_workers_need_no_higher_limit_of_files_and_keep_theirs() {
    let script = format!("ulimit -Sn 64; exec {PROGRAM} run -n 60 -s 0 -- sh -c 'ulimit -n'");
    let output = Command::new("bash").args(["-c", &script]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(text.lines().filter(|line| line.ends_with(" | 64")).count(), 60, "{text}");
}
