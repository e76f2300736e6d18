//! The environment of a Slurm job.

use std::env;

use kvstore::expand_hosts;

use crate::launch::hosts::hostfile::HostSlots;

/// Maximum number of nodes in a list.
const MOST: usize = 65_536;

/// The variable with this name, unless it is empty.
pub(crate) fn variable(name: &str) -> Option<String> {
    env::var(name).ok().filter(|value| !value.is_empty())
}

/// The nodes of the Slurm job in which this program runs, unless this node is the only one.
pub(crate) fn nodes() -> Result<Option<Vec<HostSlots>>, String> {
    let Some(list) = variable("SLURM_JOB_NODELIST").or_else(|| variable("SLURM_NODELIST")) else {
        return Ok(None);
    };
    if variable("SLURM_STEP_NUM_TASKS").is_some_and(|tasks| tasks != "1") {
        return Err("srun has started this several times; start it once, or use `kvstore join` \
                    instead of `kvstore run`"
            .into());
    }
    let names = expand_hosts(&list).ok_or_else(|| format!("SLURM_JOB_NODELIST is {list:?}"))?;
    // The shell of `salloc` runs on another machine than the single node.
    if names.len() == 1 && variable("SLURMD_NODENAME").as_ref() == names.first() {
        return Ok(None);
    }
    let tasks = variable("SLURM_TASKS_PER_NODE");
    let hosts = with_slots(names, tasks.as_deref()).ok_or_else(|| {
        let tasks = tasks.unwrap_or_default();
        format!("SLURM_TASKS_PER_NODE is {tasks:?}, and SLURM_JOB_NODELIST {list:?}")
    });
    hosts.map(Some)
}

/// The nodes with as many slots as they have tasks; None if the number is unknown for one.
pub(crate) fn with_slots(names: Vec<String>, tasks: Option<&str>) -> Option<Vec<HostSlots>> {
    let slots = tasks.map_or_else(|| Some(vec![1; names.len()]), counts)?;
    let host = |(name, slots)| HostSlots { name, slots: Some(slots) };
    (slots.len() == names.len()).then(|| names.into_iter().zip(slots).map(host).collect())
}

/// The numbers in a list such as `2(x3),1`.
fn counts(text: &str) -> Option<Vec<u32>> {
    let mut counts = Vec::new();
    for item in text.split(',') {
        let (count, times) = match item.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
            None => (item, 1),
        };
        if times > MOST - counts.len().min(MOST) {
            return None;
        }
        let count: u32 = count.parse().ok()?;
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

#[cfg(test)]
mod tests {
    use super::counts;

    #[test]
    fn numbers_of_tasks_may_be_repeated() {
        assert_eq!(counts("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(counts("4"), Some(vec![4]));
        for text in ["", "2(x", "2(x3", "x", "1(x99999999)"] {
            assert_eq!(counts(text), None, "{text}");
        }
    }
}
