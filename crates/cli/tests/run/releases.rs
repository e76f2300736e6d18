//! `kvstore diff` of a run of this release with the logs of the same run of earlier ones.

use std::fs;

use super::common::releases::{self, Files};
use super::diff::{Fault, Folder, Program, diff};

const ARCHIVE: &str = "digests.tar";

fn program() -> Program {
    Program {
        names: vec![Some("weight".into()), None],
        sizes: vec![40, 1_100],
        rounds: 3,
        workers: 2,
        rule: Some(("adam", "learning_rate=0.5")),
        change: 2,
        codec: None,
    }
}

/// The logs of a local store and of a job, each in a folder.
fn run(fault: Fault) -> [(&'static str, Folder); 2] {
    let (local, job) = (Folder::new(), Folder::new());
    program().local(local.path(), &[], fault);
    program().job(job.path(), (2, 2), &[], fault);
    [("local", local), ("job", job)]
}

#[test]
fn logs_of_earlier_releases_are_compared_with_those_of_this_one() {
    releases::write(ARCHIVE, || {
        let mut files = Files::new();
        for (kind, folder) in run(Fault::None) {
            for (number, file) in fs::read_dir(folder.path()).unwrap().enumerate() {
                let content = fs::read(file.unwrap().path()).unwrap();
                files.insert(format!("{kind}/{number}.jsonl"), content);
            }
        }
        files
    });
    let fault = Fault::Push { key: 0, round: 2, rank: 1, bit: 9 };
    let (same, other) = (run(Fault::None), run(fault));
    for version in releases::all() {
        let earlier = Folder::new();
        for (name, content) in releases::read(&version, ARCHIVE) {
            let path = earlier.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        for ((kind, same), (_, other)) in same.iter().zip(&other) {
            let logs = earlier.path().join(kind);
            let (status, said, wrong) = diff(&[], &logs, same.path());
            assert_eq!(status, Some(0), "{version}, {kind}: {said}{wrong}");
            let (status, said, wrong) = diff(&[], &logs, other.path());
            assert_eq!(status, Some(1), "{version}, {kind}: {said}{wrong}");
            assert!(said.contains("round 2: the contribution of rank 1 differs"), "{said}");
        }
    }
}
