//! Entry points for `fuzz/`: the parsers of lists of hosts.

use kvstore::expand_hosts;

use crate::launch::hosts::{hostfile, slurm};

/// One text as an option, a file and a variable of Slurm; its first line is for names, the rest for
/// numbers of tasks.
pub(crate) fn hosts(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for list in [hostfile::parse_list(text), hostfile::parse_file(text)].into_iter().flatten() {
        assert!(list.iter().all(|host| !host.name.is_empty() && !host.name.starts_with('-')));
        if let Ok((workers, servers)) = hostfile::place(&list, 7, 3) {
            assert_eq!((workers.len(), servers.len()), (7, 3));
            assert!(workers.iter().chain(&servers).all(|at| *at < list.len()));
        }
    }
    let (names, tasks) = text.split_once('\n').map_or((text, None), |(a, b)| (a, Some(b)));
    if let Some(names) = expand_hosts(names) {
        let _ = slurm::with_slots(names, tasks);
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use crate::corpus;

    /// Runs a target of the program on its corpus.
    pub(crate) fn replay(name: &str, target: fn(&[u8])) {
        corpus::replay(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus"), name, target);
    }

    #[test]
    fn lists_that_were_found_are_read() {
        replay("hosts.tar", super::hosts);
    }
}
