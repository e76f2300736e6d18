//! The example of Rust that runs as a job too, with the text that those of the other languages print.

use std::path::Path;

use super::launcher::{Launcher, PROGRAM};

#[test]
fn the_features_print_in_a_job_what_they_do_in_the_other_languages() {
    // `cargo test` of all packages builds the examples; that of this package alone does not.
    let example = Path::new(PROGRAM).with_file_name("examples").join("features");
    assert!(
        example.exists(),
        "no {example:?}; first: cargo build -p libkvstore --example features"
    );
    let words = ["-n", "2", "-s", "1", "--", example.to_str().unwrap(), "dist_sync"];
    let end = Launcher::start(&words).end();
    assert_eq!(end.status, Some(0), "{}", end.err);
    let expected = include_str!("../../../../tests/golden/features_job.txt");
    assert_eq!(end.out().replace("worker 0  | ", ""), expected);
}
