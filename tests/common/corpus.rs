//! The corpora of the targets for fuzzing: an archive each.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Runs a target on every input of its archive in this folder.
pub(crate) fn replay(folder: &str, name: &str, target: fn(&[u8])) {
    let mut inputs = tar::Archive::new(File::open(Path::new(folder).join(name)).unwrap());
    let mut count = 0;
    for input in inputs.entries().unwrap() {
        let mut data = Vec::new();
        input.unwrap().read_to_end(&mut data).unwrap();
        target(&data);
        count += 1;
    }
    assert!(count > 5, "{count} inputs");
}
