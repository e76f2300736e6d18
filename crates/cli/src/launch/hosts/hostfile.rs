//! Lists of hosts, and which process runs on which.

use std::collections::HashMap;

/// A host, and its number of workers if given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostSlots {
    pub(crate) name: String,
    pub(crate) slots: Option<u32>,
}

/// Maximum number of slots of a job.
const MOST_SLOTS: u32 = 65_536;

/// Reads `host1,host2:4`.
pub(crate) fn parse_list(text: &str) -> Result<Vec<HostSlots>, String> {
    merge(text.split(',').map(parse_item))
}

/// Reads a file of lines such as `host slots=4`; what follows a `#` is a comment.
pub(crate) fn parse_file(text: &str) -> Result<Vec<HostSlots>, String> {
    let lines = text.lines().zip(1..).map(|(line, number)| {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        (!line.is_empty())
            .then(|| parse_line(line).map_err(|error| format!("line {number}: {error}")))
    });
    merge(lines.flatten())
}

/// `host`, `host:4`, `[fe80::1]:4`.
fn parse_item(text: &str) -> Result<HostSlots, String> {
    let text = text.trim();
    let (name, slots) = match text.rsplit_once(':') {
        // The colons of an address of version 6 stand in brackets when a number follows.
        Some((name, slots)) if !name.contains(':') || name.ends_with(']') => {
            (name, Some(parse_slots(slots)?))
        }
        _ => (text, None),
    };
    host(name.trim_start_matches('[').trim_end_matches(']'), slots)
}

/// `host`, `host:4`, `host slots=4`. Other words of common host files are ignored.
fn parse_line(line: &str) -> Result<HostSlots, String> {
    let mut words = line.split_whitespace();
    let mut host = parse_item(words.next().unwrap_or_default())?;
    for word in words {
        match word.split_once('=') {
            Some(("slots", slots)) => host.slots = Some(parse_slots(slots)?),
            Some(("max_slots" | "max-slots", _)) => {}
            _ => return Err(format!("{word:?} is not known; write `host slots=4`")),
        }
    }
    Ok(host)
}

fn parse_slots(text: &str) -> Result<u32, String> {
    let slots = text.parse().ok().filter(|slots| *slots <= MOST_SLOTS);
    slots.ok_or_else(|| format!("{text:?} is no number of slots"))
}

fn host(name: &str, slots: Option<u32>) -> Result<HostSlots, String> {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control();
    // A name with a leading minus would be an option for ssh.
    if name.is_empty() || name.starts_with('-') || name.contains(is_odd) {
        return Err(format!("{name:?} is no host"));
    }
    Ok(HostSlots { name: name.to_owned(), slots })
}

/// The slots of a host that is listed several times are added up.
fn merge(hosts: impl Iterator<Item = Result<HostSlots, String>>) -> Result<Vec<HostSlots>, String> {
    let (mut merged, mut places) = (Vec::<HostSlots>::new(), HashMap::<String, usize>::new());
    for host in hosts {
        let host = host?;
        if let Some(place) = places.get(&host.name) {
            let known = &mut merged[*place];
            let slots = known.slots.unwrap_or(1).saturating_add(host.slots.unwrap_or(1));
            known.slots = Some(slots);
        } else {
            places.insert(host.name.clone(), merged.len());
            merged.push(host);
        }
    }
    if merged.is_empty() { Err("there is no host".into()) } else { Ok(merged) }
}

/// The host of each worker and of each server.
///
/// Workers fill the slots of the hosts in order. Without slots, hosts get equal shares, give or
/// take one. Servers are placed round-robin.
pub(crate) fn place(
    hosts: &[HostSlots],
    workers: u32,
    servers: u32,
) -> Result<(Vec<usize>, Vec<usize>), String> {
    let count = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
    let even = hosts.iter().all(|host| host.slots.is_none());
    let slots_of = |(index, host): (u32, &HostSlots)| {
        if even {
            workers / count + u32::from(index < workers % count)
        } else {
            host.slots.unwrap_or(1)
        }
    };
    let slots: Vec<u32> = (0..).zip(hosts).map(slots_of).collect();
    let of_host = |(index, slots): (usize, &u32)| std::iter::repeat_n(index, *slots as usize);
    let places: Vec<usize> =
        slots.iter().enumerate().flat_map(of_host).take(workers as usize).collect();
    if places.len() < workers as usize {
        return Err(format!("{workers} workers do not fit into {} slots", places.len()));
    }
    Ok((places, (0..hosts.len()).cycle().take(servers as usize).collect()))
}

#[cfg(test)]
mod tests {
    use super::{HostSlots, parse_file, parse_list, place};

    fn text(hosts: &[HostSlots]) -> String {
        let one = |host: &HostSlots| {
            host.slots.map_or(host.name.clone(), |slots| format!("{}={slots}", host.name))
        };
        hosts.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn lists_name_hosts_and_their_slots() {
        for (list, expected) in [
            ("a,b", "a b"),
            ("a:2, user@b:0", "a=2 user@b=0"),
            ("a,b,a", "a=2 b"),
            ("fe80::1,[fe80::2],[fe80::3]:4", "fe80::1 fe80::2 fe80::3=4"),
        ] {
            assert_eq!(text(&parse_list(list).unwrap()), expected);
        }
        for list in ["", "a,,b", "-oProxyCommand=x", "a b", "a:x", "a:-1", "a:4294967296"] {
            assert!(parse_list(list).is_err(), "{list}");
        }
    }

    #[test]
    fn files_have_a_host_a_line() {
        let file =
            "# our machines\nnode1 slots=4\n\nnode2 slots=2 max_slots=9 # slow\nnode3\nnode4:3\n";
        assert_eq!(text(&parse_file(file).unwrap()), "node1=4 node2=2 node3 node4=3");
        let error = parse_file("node1\nnode2 slot=4\n").unwrap_err();
        assert!(error.starts_with("line 2: ") && error.contains("slots=4"), "{error}");
        assert!(parse_file("# nobody\n").is_err());
    }

    #[test]
    fn workers_fill_slots_in_order_and_servers_go_round() {
        let placed =
            |list: &str, workers, servers| place(&parse_list(list).unwrap(), workers, servers);
        assert_eq!(placed("a,b", 5, 3), Ok((vec![0, 0, 0, 1, 1], vec![0, 1, 0])));
        assert_eq!(placed("a:1,b:0,c:4", 3, 4), Ok((vec![0, 2, 2], vec![0, 1, 2, 0])));
        assert_eq!(placed("a:2,b", 3, 0), Ok((vec![0, 0, 1], vec![])));
        assert_eq!(placed("a,b,c", 2, 1), Ok((vec![0, 1], vec![0])));
        let error = placed("a:2,b", 4, 1).unwrap_err();
        assert_eq!(error, "4 workers do not fit into 3 slots");
    }
}
