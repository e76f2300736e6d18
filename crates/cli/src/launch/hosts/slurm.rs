//! The environment of a Slurm job.

use std::env;

use crate::launch::hosts::hostfile::HostSlots;

/// Maximum number of nodes in a list.
const MOST: usize = 65_536;
/// Maximum length of a host name.
const MOST_NAME: usize = 253;

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
    let names = expand(&list).ok_or_else(|| format!("SLURM_JOB_NODELIST is {list:?}"))?;
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

/// The names in a list such as `node[01-03,07],gpu1`.
pub(crate) fn expand(list: &str) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for item in items(list)? {
        expand_item(item, &mut names)?;
    }
    (!names.is_empty()).then_some(names)
}

/// The parts between commas that stand in no brackets.
fn items(list: &str) -> Option<Vec<&str>> {
    let (mut inside, mut is_sound) = (false, true);
    let between = |letter| {
        if matches!(letter, '[' | ']') {
            is_sound &= inside == (letter == ']');
            inside = !inside;
        }
        letter == ',' && !inside
    };
    let items = list.split(between).collect();
    (is_sound && !inside).then_some(items)
}

/// Appends the names of one item, which may have several pairs of brackets.
fn expand_item(item: &str, names: &mut Vec<String>) -> Option<()> {
    let fits = |text: &str| text.len() <= MOST_NAME;
    let Some((before, rest)) = item.split_once('[') else {
        let is_name = !item.is_empty() && !item.starts_with('-') && fits(item);
        (is_name && names.len() < MOST).then(|| names.push(item.to_owned()))?;
        return Some(());
    };
    // Text before a bracket is part of each name, so its size multiplies with each bracket.
    if !fits(before) {
        return None;
    }
    let (ranges, after) = rest.split_once(']')?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let width = Some(first.len()).filter(|_| fits(first))?;
        let (first, last): (u64, u64) = (number(first)?, number(last)?);
        if first > last || last - first >= MOST as u64 {
            return None;
        }
        for number in first..=last {
            expand_item(&format!("{before}{number:0width$}{after}"), names)?;
        }
    }
    Some(())
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok())?
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
    use super::{counts, expand};

    #[test]
    fn lists_of_nodes_are_expanded_in_order() {
        for (list, names) in [
            ("node1", "node1"),
            ("node[01-03,07],gpu1", "node01 node02 node03 node07 gpu1"),
            ("a[9-11]", "a9 a10 a11"),
            ("r[1-2]n[1-2]-ib", "r1n1-ib r1n2-ib r2n1-ib r2n2-ib"),
            ("a,b.c.d", "a b.c.d"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), names);
        }
        for list in
            ["", "a,", "a[1", "a]1[", "a[]", "a[3-1]", "a[1-x]", "a[+1]", "-a", "a[1-99999999]"]
        {
            assert_eq!(expand(list), None, "{list}");
        }
        // Each bracket alone is small.
        assert_eq!(expand("a[1-1000][1-1000][1-1000]"), None);
        assert_eq!(expand(&format!("a{}", "[1]".repeat(200_000))), None);
        assert_eq!(expand(&format!("a[{}1]", "0".repeat(70_000))), None);
    }

    #[test]
    fn numbers_of_tasks_may_be_repeated() {
        assert_eq!(counts("2(x3),1"), Some(vec![2, 2, 2, 1]));
        assert_eq!(counts("4"), Some(vec![4]));
        for text in ["", "2(x", "2(x3", "x", "1(x99999999)"] {
            assert_eq!(counts(text), None, "{text}");
        }
    }
}
