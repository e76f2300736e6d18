//! Jobs inside of Slurm, which a script in the place of srun plays on this machine.

use std::process::Command;

use super::launcher::{Launcher, PROGRAM, command, waiting};

const SRUN: &str = concat!("bash '", env!("CARGO_MANIFEST_DIR"), "/tests/run/fake_srun.sh'");

/// The environment of a batch script of a job of two nodes.
fn inside(command: &mut Command) -> &mut Command {
    command.envs([
        ("SLURM_JOB_ID", "4711"),
        ("SLURM_JOB_NODELIST", "node[01-02]"),
        ("SLURM_TASKS_PER_NODE", "2,1"),
        ("SLURM_NTASKS", "3"),
        ("SLURMD_NODENAME", "node01"),
        ("SLURM_PROCID", "0"),
    ])
}

fn job(options: &[&str], script: &str) -> Launcher {
    let srun = format!("{SRUN} --overlap --cpu-bind=none");
    let words = [&["--srun", &srun, "-s", "0"][..], options, &["sh", "-c", script]].concat();
    Launcher::spawn(inside(&mut command(&words)))
}

#[test]
fn the_nodes_of_the_job_get_as_many_workers_as_tasks() {
    let end = job(&[], "echo $KV_RANK of $KV_NUM_WORKERS on $SLURMD_NODENAME").end();
    assert_eq!((end.status, end.err.as_str()), (Some(0), ""));
    let mut out: Vec<&str> = end.out().lines().collect();
    out.sort_unstable();
    let line = |rank, node: &str| format!("worker {rank} on {node} | {rank} of 3 on {node}");
    assert_eq!(out, [line(0, "node01"), line(1, "node01"), line(2, "node02")]);
}

#[test]
fn a_job_of_slurm_ends_as_others_do() {
    let launcher = job(&["-n", "2"], &waiting("trap 'echo saved; exit' TERM"));
    launcher.hear("ready", 2);
    launcher.signal("TERM");
    let end = launcher.end();
    assert_eq!((end.status, end.out().matches("| saved\n").count()), (Some(143), 2));
    let mut launcher = job(&[], &waiting("trap '' TERM INT HUP; sleep 1000 & :"));
    launcher.hear("ready", 3);
    launcher.process.kill().unwrap();
    let vanished = super::launcher::soon(super::launcher::VANISH, || launcher.living().is_empty());
    assert!(vanished, "{:?}", launcher.living());
}

#[test]
fn everything_runs_here_when_that_is_asked_for_or_the_node_is_the_only_one() {
    let end = job(&["--no-slurm", "-n", "2"], "echo $SLURMD_NODENAME").end();
    assert!(end.out().contains("worker 1 | node01\n"), "{}", end.out());
    let mut alone = command(&["-s", "0", "echo", "alone"]);
    let end = Launcher::spawn(inside(&mut alone).env("SLURM_JOB_NODELIST", "node01")).end();
    assert_eq!((end.status, end.out()), (Some(0), "worker 0 | alone\n"));
}

#[test]
fn riddles_of_the_environment_are_explained() {
    for (variable, value, part) in [
        ("SLURM_STEP_NUM_TASKS", "3", "kvstore join"),
        ("SLURM_JOB_NODELIST", "node[1", "SLURM_JOB_NODELIST is \"node[1\""),
        ("SLURM_TASKS_PER_NODE", "2", "SLURM_TASKS_PER_NODE is \"2\""),
    ] {
        let end = Launcher::spawn(inside(&mut command(&["true"])).env(variable, value)).end();
        assert_eq!(end.status, Some(2), "{}", end.err);
        assert!(end.err.contains(part), "{}", end.err);
    }
}

/// What the tasks of a step print, sorted.
fn step(tasks: u32, options: &str) -> Vec<String> {
    let script = "echo $KV_ROLE $KV_RANK of $KV_NUM_WORKERS and $KV_NUM_SERVERS in $KV_JOB";
    let line = format!("{SRUN} --ntasks={tasks} {PROGRAM} join {options} -- sh -c '{script}'");
    let mut command = Command::new("bash");
    let output = inside(command.args(["-c", &line])).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + str::from_utf8(&output.stderr).unwrap();
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_task_of_a_step_finds_its_role() {
    let lines = step(3, "-s 0");
    let all = |line: &String| line.contains(" of 3 and 0 in slurm-4711.");
    assert!(lines.len() == 3 && lines.iter().all(all), "{lines:?}");
    assert!(lines[2].starts_with("worker 2 "), "{lines:?}");
    let lines = step(2, "-s 1");
    assert!(lines[0].contains("2 processes are too few for a scheduler, 1 servers"), "{lines:?}");
}

/// What `kvstore join` prints with these variables.
fn join(options: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = Command::new(PROGRAM);
    command.arg("join").args(options).args(["sh", "-c", "echo $KV_ROLE $KV_RANK $KV_ROOT"]);
    let output = command.envs(variables.iter().copied()).output().unwrap();
    let text = if output.status.success() { output.stdout } else { output.stderr };
    String::from_utf8(text).unwrap()
}

#[test]
fn other_launchers_number_their_processes_too() {
    let open_mpi = [("OMPI_COMM_WORLD_RANK", "3"), ("OMPI_COMM_WORLD_SIZE", "5")];
    assert_eq!(join(&["--root", "node1:9091", "-s", "2"], &open_mpi), "worker 0 node1:9091\n");
    let mpich = [("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("KV_ROOT", "[fe80::1]:9091")];
    assert_eq!(join(&["--serve-with-program"], &mpich), "server 0 [fe80::1]:9091\n");
    let by_hand = ["--index", "2", "--count", "3", "--root", "127.0.0.1:9091"];
    assert_eq!(join(&by_hand, &[]), "worker 0 127.0.0.1:9091\n");
    assert!(join(&[], &[]).contains("--index and --count"));
    assert!(join(&[], &mpich[..2]).contains("say --root HOST:PORT"));
    assert!(join(&["--index", "5", "--count", "3", "-s", "0"], &[]).contains("process 5"));
}
