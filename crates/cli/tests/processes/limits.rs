//! Processes with too few files or threads for their job say so before they join.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use super::common::folder::Folder;
use super::job::{Job, KVSTORE, LIMIT, Process, free_address};

/// A user that is not the one of the tests, whose processes are counted: root's are not.
const OTHER: &str = "65534";

#[test]
fn a_worker_with_too_few_files_says_how_many_it_needs_and_the_others_who_is_missing() {
    for limit in [16, 24] {
        let job = Job::new("closed forms", 2, 1).with("start_timeout_ms", 2_000);
        let mut poor = job.clone();
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        poor.through = ["sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        let others = [job.start_scheduler(), job.start_server(0), job.start_worker(0)];
        let end = poor.start_worker(1).end(LIMIT);
        let text = end.said("refused KV_ERR_IO").unwrap_or_else(|| panic!("{end:?}"));
        assert!(text.contains(&format!("may open {limit} files")), "{text}");
        assert!(text.contains("in a job of 2 workers and 1 servers"), "{text}");
        assert!(text.contains("`ulimit -n "), "{text}");
        for other in others {
            let end = other.end(LIMIT);
            assert!(end.text().contains("worker 1 did not come"), "{end:?}");
        }
    }
}

#[test]
fn servers_and_the_scheduler_with_too_few_files_do_not_begin() {
    for role in ["server", "scheduler"] {
        let script = format!("ulimit -n 24; exec {KVSTORE} {role} --root {}", free_address());
        let mut command = Command::new("sh");
        command.args(["-c", &script]).env("KV_NUM_WORKERS", "3").env("KV_NUM_SERVERS", "2");
        let end = Process::start(role, command).end(LIMIT);
        let text = end.text();
        assert_eq!(end.status, Some(1), "{text}");
        assert!(text.contains("may open 24 files") && text.contains("KV_ERR_IO"), "{text}");
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "says what was left out")]
fn a_process_with_too_few_threads_says_how_many_it_needs() {
    let apart = ["--reuid", OTHER, "--regid", OTHER, "--clear-groups"];
    let can = Command::new("setpriv").args(apart).arg("true").status();
    if !can.is_ok_and(|status| status.success()) {
        println!("not run: these tests may not act as another user");
        return;
    }
    let folder = Folder::new("threads");
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = folder.file("kvstore");
    fs::copy(KVSTORE, &program).unwrap();
    for role in ["server", "scheduler"] {
        let script = format!(
            "ulimit -u 10; exec {} {role} --root {} --num-workers 1 --num-servers 1",
            program.display(),
            free_address()
        );
        let mut command = Command::new("setpriv");
        command.args(apart).args(["bash", "-c", &script]);
        let end = Process::start(role, command).end(LIMIT);
        let text = end.text();
        assert_eq!(end.status, Some(1), "{text}");
        for part in ["KV_ERR_OUT_OF_MEMORY", "threads in a job of 1 workers", "can be started"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
