//! `kvstore doctor` names faults that are seeded here, and finds none where there is none. Those that
//! no test can seed are in the program's own tests.
#![allow(unsafe_code, reason = "a listener whose queue is full")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::process::{Command, Output};
use std::thread;
use std::time::Duration;

use super::job::{Job, KVSTORE, LIMIT, Turn, free_address, soon};
use super::program::PAUSE_MS;

fn doctor() -> Command {
    let mut command = Command::new(KVSTORE);
    command.args(["doctor", "--timeout-ms", "2000"]);
    command
}

/// What it said, and whether it found nothing.
fn told(output: &Output) -> (String, bool) {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let ends = [Some(0), Some(1)];
    assert!(ends.contains(&output.status.code()) && output.stderr.is_empty(), "{output:?}");
    (text, output.status.success())
}

/// It finds a fault, in this check, with these words.
#[track_caller]
fn finds(command: &mut Command, check: &str, words: &[&str]) -> String {
    let output = command.output().unwrap();
    let (text, well) = told(&output);
    let begin = format!("BAD   {check}: ");
    let at = text.find(&begin).unwrap_or_else(|| panic!("no {check} in\n{text}"));
    let about: Vec<&str> = text[at..].lines().take(2).collect();
    let about = about.join(" ");
    for word in words {
        assert!(about.contains(word), "{word} is not in {about}");
    }
    assert!(!well && text.contains("found"), "{text}");
    text
}

/// A command in a network and with mounts of its own, if the machine lets users have them.
#[allow(clippy::print_stdout, reason = "says what was left out")]
fn apart(script: &str) -> Option<Command> {
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["-rnm", "sh", "-c", script, "sh", KVSTORE]);
        command
    };
    let works = unshare("ip link set lo up && mount -t tmpfs none /mnt").output();
    if !works.is_ok_and(|output| output.status.success()) {
        println!("not run: no namespaces for users here");
        return None;
    }
    Some(unshare(script))
}

#[test]
fn wrong_options_are_found() {
    let address = free_address();
    let mut command = doctor();
    command.args([&address, "--num-workers", "none", "--set", "peer_timeout=1"]);
    let words = ["num_workers is \"none\"", "did you mean peer_timeout_ms?", "docs/use/config.md"];
    finds(&mut command, "options", &words);
    finds(doctor().env("KV_HOLD_BYTES", "1"), "options", &["KV_HOLD_BYTES"]);
    finds(&mut doctor(), "options", &["not set: root", "KV_"]);
}

#[test]
fn a_host_that_nobody_knows_is_found() {
    finds(doctor().arg("no-such-host.invalid:9091"), "address", &["no-such-host", "is no address"]);
}

#[test]
fn a_name_that_is_the_loopback_is_found() {
    let script = "echo 127.0.1.1 trainer > /mnt/h 2>/dev/null || { mount -t tmpfs none /mnt && \
                  echo 127.0.1.1 trainer > /mnt/h; }; mount --bind /mnt/h /etc/hosts && \
                  ip link set lo up && exec $1 doctor trainer:9";
    let Some(mut command) = apart(script) else { return };
    finds(&mut command, "address", &["127.0.1.1", "loopback of this machine", "/etc/hosts"]);
}

#[test]
fn nothing_that_listens_is_found() {
    let root = free_address();
    finds(doctor().arg(&root), "scheduler", &["nothing listens at", &root, "start the scheduler"]);
}

/// The queue of a listener that nobody looks at is full: what comes is dropped, as by a firewall.
#[test]
fn packets_that_are_dropped_are_found() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    // SAFETY: touches no memory of ours.
    assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 0) }, 0);
    let address = listener.local_addr().unwrap();
    let mut queued = Vec::new();
    let full = soon(LIMIT, || {
        match TcpStream::connect_timeout(&address, Duration::from_millis(300)) {
            Ok(stream) => queued.push(stream),
            Err(_) => return true,
        }
        false
    });
    assert!(full);
    let words = ["does not answer within 2000 ms", "firewall"];
    finds(doctor().arg(address.to_string()), "scheduler", &words);
}

#[test]
fn the_wrong_interface_is_found() {
    let script = "ip link set lo up && ip addr add 10.9.9.1/24 dev lo && \
                  exec $1 doctor 10.9.9.1:9 --role server --bind 127.0.0.1:0";
    let Some(mut command) = apart(script) else { return };
    let words = ["listen at lo (127.0.0.1)", "reached over lo (10.9.9.1)", "set bind=10.9.9.1"];
    finds(&mut command, "interface", &words);
    let script = "ip link set lo up && exec $1 doctor 10.9.9.1:9";
    finds(&mut apart(script).unwrap(), "interface", &["no way to 10.9.9.1:9"]);
}

#[test]
fn a_port_in_use_is_found_with_its_user() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = taken.local_addr().unwrap().to_string();
    let number = format!("process {}", std::process::id());
    let words = [&*root, "is in use by", &number, "another port"];
    finds(doctor().args([&root, "--role", "scheduler"]), "port", &words);
}

#[test]
fn what_listens_and_is_no_scheduler_is_found() {
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let root = other.local_addr().unwrap().to_string();
    finds(doctor().arg(&root), "answer", &[&root, "something else listens"]);
}

#[test]
fn shared_memory_that_is_small_or_full_is_found() {
    let small = "mount -t tmpfs -o size=1m none /dev/shm && exec $1 doctor 127.0.0.1:9";
    let Some(mut command) = apart(small) else { return };
    finds(&mut command, "shared memory", &["too small", "1.0 MB", "--shm-size"]);
    let full = "mount -t tmpfs -o size=65m none /dev/shm && \
                head -c 4194304 /dev/zero > /dev/shm/left && exec $1 doctor 127.0.0.1:9";
    finds(&mut apart(full).unwrap(), "shared memory", &["is full", "remove what no process uses"]);
}

#[test]
fn a_low_limit_on_open_files_is_found() {
    let mut command = Command::new("sh");
    let script = "ulimit -Sn 70; exec $0 doctor 127.0.0.1:9 --num-workers 30 --num-servers 2";
    command.args(["-c", script, KVSTORE]);
    finds(&mut command, "open files", &["70 open files are allowed", "about 196", "ulimit -n 196"]);
}

/// Passes the messages of a connection on, up to the first one that would not fit into a packet of 1,300
/// bytes: of that it reads nothing but the head, nor of anything behind it.
fn relay(mut from: TcpStream, mut to: TcpStream, is_narrow: bool) {
    const MOST: usize = 1_300;
    let mut pass = || -> std::io::Result<bool> {
        let mut head = [0; 8];
        from.read_exact(&mut head)?;
        let [a, b, c, d, _, _, low, high] = head;
        // The greeting has its length elsewhere.
        let len = match &head[..4] {
            b"KVSC" | b"KVSL" => u32::from(u16::from_le_bytes([low, high])),
            _ => u32::from_le_bytes([a, b, c, d]),
        };
        let len = usize::try_from(len).unwrap();
        if is_narrow && len > MOST {
            return Ok(false);
        }
        let mut message = vec![0; len];
        from.read_exact(&mut message)?;
        to.write_all(&head)?;
        to.write_all(&message)?;
        Ok(true)
    };
    while pass().is_ok_and(|passed| passed) {}
    // What stands still is no closed connection.
    thread::sleep(LIMIT);
}

/// The address of a relay to another one, which is narrow on the way there or on the way back.
fn relayed(root: &str, narrow: [bool; 2]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let root = root.to_owned();
    thread::spawn(move || {
        for caller in listener.incoming().flatten() {
            let Ok(called) = TcpStream::connect(&root) else { continue };
            for stream in [&caller, &called] {
                stream.set_nodelay(true).unwrap();
            }
            let (there, back) = (caller.try_clone().unwrap(), called.try_clone().unwrap());
            thread::spawn(move || relay(there, called, narrow[0]));
            thread::spawn(move || relay(back, caller, narrow[1]));
        }
    });
    address
}

#[test]
fn packets_of_full_size_that_are_lost_on_the_way_are_found_with_their_direction() {
    let job = Job::new("train", 1, 1);
    let mut scheduler = job.start_scheduler();
    let is_there = soon(LIMIT, || TcpStream::connect(&job.root).is_ok());
    assert!(is_there && !scheduler.has_ended());
    for (narrow, ways) in
        [([true, false], "to"), ([false, true], "from"), ([true; 2], "to and from")]
    {
        let address = relayed(&job.root, narrow);
        let words =
            ["MTU", &format!("on the way {ways} the scheduler at {address}"), "ip link set"];
        finds(doctor().arg(&address), "packets", &words);
    }
    let address = relayed(&job.root, [false; 2]);
    let text = told(&doctor().args([&address, "--measure-mb", "0"]).output().unwrap()).0;
    assert!(text.contains("ok    packets: full-size ones pass to the scheduler"), "{text}");
}

#[test]
fn what_does_not_fit_a_running_job_is_found_and_nothing_where_all_fits() {
    let _turn = Turn::take();
    let job = Job::new("train", 2, 1).told(PAUSE_MS, 5).with("peer_timeout_ms", 20_000);
    let mut running = job.start();
    running.hear("sum 2");
    let as_worker = |workers: &str, rank: &str| {
        let mut command = doctor();
        command.args([&job.root, "--num-workers", workers, "--num-servers", "1"]);
        command.args(["--role", "worker", "--rank", rank]);
        command
    };
    let words = ["expects 3 workers and 1 servers", "has 2 workers and 1 servers"];
    finds(&mut as_worker("3", "1"), "world size", &words);
    finds(&mut as_worker("2", "1"), "rank", &["there is a worker 1 already", "of its own"]);
    finds(&mut as_worker("2", "2"), "rank", &["too large", "begin at 0"]);
    let mut command = doctor();
    let output = command.args([&*job.root, "--measure-mb", "8"]).output().unwrap();
    let (text, well) = told(&output);
    // A machine that is used by others may have no room.
    assert!(well || text.contains("BAD   shared memory"), "{text}");
    assert!(text.contains("ok    bandwidth: ") && text.contains("ok    clock: "), "{text}");
    assert!(text.contains("ok    processes: 4 are there"), "{text}");
    running.servers()[0].signal("STOP");
    let silent = soon(LIMIT, || {
        let output = doctor().args([&*job.root, "--measure-mb", "0"]).output().unwrap();
        told(&output).0.contains("BAD   processes: lost or silent: server 0")
    });
    assert!(silent);
    running.servers()[0].signal("CONT");
    running.hear("sum");
}

/// The stand-in for the driver of GPUs, which cargo builds beside the tests.
fn stand_in() -> String {
    let folder = std::env::current_exe().unwrap().parent().unwrap().to_owned();
    folder.join("libcuda_stand_in.so").to_str().unwrap().to_owned()
}

/// The doctor on a machine with GPUs; variables of the stand-in without their prefix.
fn doctor_with_gpus(variables: &[(&str, &str)]) -> Command {
    let mut command = doctor();
    command.arg("127.0.0.1:9").env("KV_CUDA", stand_in());
    for (name, value) in variables {
        command.env(format!("KV_CUDA_STAND_IN_{name}"), value);
    }
    command
}

#[test]
fn gpus_are_named_with_their_driver_and_a_kernel_runs_on_each() {
    let output = doctor_with_gpus(&[("DEVICES", "3")]).output().unwrap();
    let text = told(&output).0;
    for line in [
        "ok    GPU driver: a driver of CUDA 12.9 with 3 GPUs\n",
        "ok    GPUs: GPU 0 (CUDA stand-in, compute capability 8.0, ",
        "\n      GPU 2 (CUDA stand-in, ",
        "and its sums are right\n",
        "ok    GPU access: all 3 GPUs can access each other's memory\n",
    ] {
        assert!(text.contains(line), "no {line:?} in\n{text}");
    }
    let output = doctor_with_gpus(&[("DEVICES", "2"), ("PEERS", "no")]).output().unwrap();
    let text = told(&output).0;
    assert!(text.contains("ok    GPU access: no GPU can access another's memory"), "{text}");
}

#[test]
fn no_driver_is_one_line_and_no_problem_but_one_that_is_named_must_be_there() {
    let no_cuda = |text: &str| text.matches("not checked: no driver can be used").count();
    let output = doctor().args(["127.0.0.1:9", "--set", "cuda=no"]).output().unwrap();
    let text = told(&output).0;
    assert!(text.contains("-     GPU driver: not checked: the option cuda is no\n"), "{text}");
    assert_eq!(no_cuda(&text), 2, "{text}");
    // Where this machine has no driver.
    let output = doctor().args(["127.0.0.1:9"]).output().unwrap();
    let text = told(&output).0;
    if !text.contains("ok    GPU driver") {
        let line = text.lines().find(|line| line.contains("GPU driver: ")).unwrap();
        assert!(line.starts_with("-  ") && line.contains("install the driver"), "{text}");
        assert!(line.contains("libcuda.so.1"), "{text}");
    }
    let words = ["/no/driver.so", "cannot open", "install the driver of NVIDIA"];
    finds(doctor().arg("127.0.0.1:9").env("KV_CUDA", "/no/driver.so"), "GPU driver", &words);
}

#[test]
fn a_driver_that_cannot_be_used_is_found_with_what_to_install() {
    let mut old = doctor_with_gpus(&[("VERSION", "11000")]);
    finds(&mut old, "GPU driver", &["CUDA 11.0", "install a driver of CUDA 11.2 (release 460)"]);
    let none = [("DEVICES", "0")];
    let words = ["CUDA_ERROR_NO_DEVICE", "CUDA_VISIBLE_DEVICES", "nvidia-smi"];
    finds(&mut doctor_with_gpus(&none), "GPU driver", &words);
    let output = doctor_with_gpus(&none).env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    assert!(told(&output).0.contains("-     GPU driver: not checked: cuInit"), "{output:?}");

    let mut library = std::fs::read(stand_in()).unwrap();
    assert!(cuda_stand_in::hide(&mut library, "cuPointerGetAttributes"));
    let path = std::env::temp_dir().join(format!("kvstore-doctor-{}.so", std::process::id()));
    std::fs::write(&path, library).unwrap();
    let mut missing = doctor_with_gpus(&[]);
    missing.env("KV_CUDA", &path);
    finds(&mut missing, "GPU driver", &["cuPointerGetAttributes", "release 460"]);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_gpu_that_cannot_run_a_kernel_is_found() {
    let failing = |plan: &str| doctor_with_gpus(&[("DEVICES", "2"), ("FAIL", plan)]);
    let words = ["GPU 0", "JIT_COMPILER_NOT_FOUND", "compute,utility"];
    finds(&mut failing("cuModuleLoadDataEx:1=221"), "GPUs", &words);
    finds(&mut failing("cuModuleLoadDataEx:2=222"), "GPUs", &["GPU 1", "too old"]);
    let words = ["GPU 0", "CUDA_ERROR_ILLEGAL_ADDRESS", "cannot use the device any more"];
    finds(&mut failing("cuLaunchKernel:1=late700"), "GPUs", &words);
    let mut slow = failing("cuLaunchKernel:1=hang");
    finds(&mut slow, "GPUs", &["has not run a kernel within 10 s", "nvidia-smi"]);
}
