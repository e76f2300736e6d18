//! What a job costs a program that listens to nothing.

use tracing::level_filters::LevelFilter;

use super::job::Job;

#[test]
fn without_a_subscriber_nobody_listens_after_a_job_either() {
    Job::new(1, 1).run(|store, _| store.init(1u64, &[1.0f32]).unwrap());
    assert_eq!(LevelFilter::current(), LevelFilter::OFF, "every span of a call would be looked at");
}
