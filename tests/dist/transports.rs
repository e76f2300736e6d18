//! What carries the frames of a job, and how a person learns that.

use std::time::{Duration, Instant};

use kvstore::{Config, Observer, TransportUse, examine_transports};

use super::job::Job;

const ELEMENTS: usize = 300_000;

/// What the worker of a job reports about its server, once that is `expected`.
fn used(job: &Job, expected: &'static str) -> TransportUse {
    let others = job.start();
    let store = job.open(0, &others.root).unwrap();
    store.init(1u64, &vec![0.0f32; ELEMENTS]).unwrap();
    let mut observer = Observer::open(&job.config("worker", None, &others.root)).unwrap();
    let end = Instant::now() + Duration::from_secs(20);
    let mut round = 0;
    let used = loop {
        round += 1;
        let mut out = vec![0.0f32; ELEMENTS];
        let values: Vec<f32> = (0..ELEMENTS).map(|at| (at % 97 + round) as f32).collect();
        store.push(1u64, &values).unwrap();
        store.pull(1u64, &mut out).unwrap();
        assert!(out == values, "round {round}");
        let view = observer.look(Duration::from_secs(5)).unwrap();
        let worker = view.nodes.iter().find(|node| node.role == "worker").unwrap();
        let uses = worker.facts.iter().flat_map(|facts| &facts.transports);
        let to_server = uses.clone().find(|used| used.peers.iter().any(|it| it == "server 0"));
        match to_server {
            Some(used) if used.transport == expected => break used.clone(),
            other => assert!(Instant::now() < end, "{expected} is expected: {other:?}"),
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    store.close(Duration::from_secs(20)).unwrap();
    others.end().into_iter().for_each(std::result::Result::unwrap);
    used
}

#[test]
fn a_job_uses_the_transport_of_its_option_and_says_why_no_other() {
    let job = |transport: &str| Job::new(1, 1).with("shm", "yes").with("transport", transport);
    assert_eq!(used(&job("auto"), "shm").others, "");
    assert_eq!(used(&job("shm"), "shm").others, "");
    let tcp = used(&job("tcp"), "tcp");
    assert!(tcp.others.contains("shm: transport=tcp"), "{tcp:?}");
    // A test run may let a network count as a fabric.
    let far = if std::env::var_os("KV_TEST_FABRICS").is_some() { "ucx" } else { "tcp" };
    let next = used(&job("auto").with("shm", "no"), far);
    assert!(next.others.contains("shm: shm=no"), "{next:?}");
}

#[test]
fn a_job_with_ucx_uses_it_where_the_library_is_and_the_connection_elsewhere() {
    let config = Config::new().with("transport", "ucx").unwrap();
    let all = examine_transports(&config).unwrap();
    let names: Vec<_> = all.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["shm", "ucx", "tcp"]);
    let job = Job::new(1, 1).with("transport", "ucx");
    match &all[1].1 {
        Ok(version) => {
            assert!(version.starts_with("UCX 1."), "{version}");
            // Messages are sealed in jobs with credentials.
            for job in [job.clone(), job.with("token", "0123456789abcdef0123456789abcdef")] {
                assert_eq!(used(&job, "ucx").others, "shm: transport=ucx");
            }
        }
        Err(reason) => {
            println!("not tested: {reason}");
            assert!(used(&job, "tcp").others.contains(reason.as_str()));
        }
    }
}
