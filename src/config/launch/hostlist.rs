//! Lists of hosts as Slurm writes them.

/// Maximum number of nodes in a list.
const MOST: usize = 65_536;
/// Maximum length of a host name.
const MOST_NAME: usize = 253;

/// The names in a list such as `node[01-03,07],gpu1`; None if it is not one.
#[must_use]
pub fn expand_hosts(list: &str) -> Option<Vec<String>> {
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

#[cfg(test)]
mod tests {
    use super::expand_hosts;

    #[test]
    fn lists_of_nodes_are_expanded_in_order() {
        for (list, names) in [
            ("node1", "node1"),
            ("node[01-03,07],gpu1", "node01 node02 node03 node07 gpu1"),
            ("a[9-11]", "a9 a10 a11"),
            ("r[1-2]n[1-2]-ib", "r1n1-ib r1n2-ib r2n1-ib r2n2-ib"),
            ("a,b.c.d", "a b.c.d"),
        ] {
            assert_eq!(expand_hosts(list).unwrap().join(" "), names);
        }
        for list in
            ["", "a,", "a[1", "a]1[", "a[]", "a[3-1]", "a[1-x]", "a[+1]", "-a", "a[1-99999999]"]
        {
            assert_eq!(expand_hosts(list), None, "{list}");
        }
        // Each bracket alone is small.
        assert_eq!(expand_hosts("a[1-1000][1-1000][1-1000]"), None);
        assert_eq!(expand_hosts(&format!("a{}", "[1]".repeat(200_000))), None);
        assert_eq!(expand_hosts(&format!("a[{}1]", "0".repeat(70_000))), None);
    }
}
