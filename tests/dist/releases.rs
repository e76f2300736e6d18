//! A checkpoint of a job of an earlier release, with what each worker had not sent under a codec.

use kvstore::Store;

use super::common::folder::Folder;
use super::common::releases::{self, Files};
use super::job::Job;
use super::other_build;

const ARCHIVE: &str = "job.tar";
const KEY: u64 = 3;

fn push(store: &Store, rank: usize, round: usize) -> Vec<u8> {
    let value: Vec<f32> = (0..9).map(|at| (at * 5 + rank * 3 + round * 2) as f32 / 32.0).collect();
    store.push(KEY, &value).unwrap();
    let mut out = [0.0f32; 9];
    store.pull(KEY, &mut out).unwrap();
    out.iter().flat_map(|element| element.to_le_bytes()).collect()
}

fn begin(store: &Store) {
    store.init(KEY, &[0.5f32; 9]).unwrap();
    store.set_optimizer("sgd", "learning_rate=0.01,momentum=0.9").unwrap();
    store.set_compression("2bit", "threshold=0.75").unwrap();
}

#[test]
fn a_job_goes_on_from_the_checkpoint_of_an_earlier_release() {
    if other_build::is_used() {
        return;
    }
    let folder = Folder::new("job-of-release");
    let path = folder.file("job");
    releases::write(ARCHIVE, || {
        let saved = path.clone();
        let outs = Job::new(2, 1).run(move |store, rank| {
            begin(store);
            (0..3).for_each(|round| drop(push(store, rank, round)));
            store.save(&saved).unwrap();
            push(store, rank, 3)
        });
        assert_eq!(outs[0], outs[1]);
        let file = std::fs::read(&path).unwrap();
        Files::from([("job".into(), file), ("next".into(), outs[0].clone())])
    });
    for version in releases::all() {
        let files = releases::read(&version, ARCHIVE);
        std::fs::write(&path, &files["job"]).unwrap();
        for servers in [1, 2] {
            let saved = path.clone();
            let outs = Job::new(2, servers).run(move |store, rank| {
                store.load(&saved).unwrap();
                push(store, rank, 3)
            });
            assert!(outs.iter().all(|out| *out == files["next"]), "{version}, {servers} servers");
        }
    }
}
