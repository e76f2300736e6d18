//! The devices of fabrics on this machine.

use std::fs;
use std::path::Path;

/// Where the kernel lists devices of InfiniBand and RoCE, and of all networks.
const FABRICS: &str = "/sys/class/infiniband";
const NETWORKS: &str = "/sys/class/net";

/// The devices that could carry frames, or why there is none. `counted` names networks that count as fabrics.
pub(super) fn fabric_devices(counted: Option<&str>) -> Result<Vec<String>, String> {
    find(Path::new(FABRICS), Path::new(NETWORKS), counted.unwrap_or_default())
}

fn find(fabrics: &Path, networks: &Path, counted: &str) -> Result<Vec<String>, String> {
    let networks = names(networks);
    let counted = counted.split(',').filter(|name| networks.iter().any(|known| known == name));
    let (mut active, idle): (Vec<_>, Vec<_>) =
        names(fabrics).into_iter().partition(|name| has_active_port(&fabrics.join(name)));
    active.extend(counted.map(Into::into));
    match (active.is_empty(), idle.is_empty()) {
        (false, _) => Ok(active),
        (true, true) => Err("there is no InfiniBand or RoCE device here".into()),
        (true, false) => Err(format!("no port is active: {}", idle.join(", "))),
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    names
}

/// Whether a port has the state `4: ACTIVE`.
fn has_active_port(device: &Path) -> bool {
    let ports = device.join("ports");
    names(&ports).iter().any(|port| {
        let state = fs::read_to_string(ports.join(port).join("state"));
        state.is_ok_and(|state| state.trim_start().starts_with("4:"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_an_active_port_counts_and_so_does_a_network_that_is_named() {
        let folder = std::env::temp_dir().join(format!("kvstore-fabrics-{}", std::process::id()));
        let (fabrics, networks) = (folder.join("infiniband"), folder.join("net"));
        let none = || find(&fabrics, &networks, "");
        assert_eq!(none(), Err("there is no InfiniBand or RoCE device here".into()));
        let port = |device: &str, state: &str| {
            let port = fabrics.join(device).join("ports/1");
            fs::create_dir_all(&port).unwrap();
            fs::write(port.join("state"), state).unwrap();
        };
        port("mlx5_0", "1: DOWN\n");
        assert_eq!(none(), Err("no port is active: mlx5_0".into()));
        fs::create_dir_all(networks.join("lo")).unwrap();
        assert_eq!(find(&fabrics, &networks, "lo,eth7"), Ok(vec!["lo".into()]));
        port("mlx5_1", "4: ACTIVE\n");
        assert_eq!(none(), Ok(vec!["mlx5_1".into()]));
        fs::remove_dir_all(folder).unwrap();
    }
}
