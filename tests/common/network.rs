//! Two network namespaces of the kernel with a wire between them, as if they were two machines.

use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::wait::soon;

pub const NEAR: &str = "10.77.0.1";
pub const FAR: &str = "10.77.0.2";

/// Far above what it takes to make one.
const LIMIT: Duration = Duration::from_secs(60);

/// Whether this machine lets us make networks.
pub fn can_be_made() -> bool {
    let mut allowed = Command::new("unshare");
    allowed.args(["-rn", "tc", "qdisc"]).stdout(Stdio::null()).stderr(Stdio::null());
    allowed.status().is_ok_and(|status| status.success())
}

/// This program again, where it may change the network.
pub fn inside() -> Command {
    let mut command = Command::new("unshare");
    command.arg("-rn").arg(std::env::current_exe().unwrap());
    command
}

/// Two machines with a wire between them.
pub struct Network {
    /// Is on the far machine, and keeps it.
    keeper: Child,
}

impl Network {
    pub fn new() -> Self {
        let mut keeper = Command::new("unshare");
        let keeper = keeper.args(["-n", "sleep", "600"]).spawn().unwrap();
        let far = keeper.id().to_string();
        let network = Self { keeper };
        ip(&["link", "set", "lo", "up"]);
        ip(&["link", "add", "near", "type", "veth", "peer", "name", "far"]);
        // The other machine may not be there yet.
        let moved = soon(LIMIT, || {
            let moved = Command::new("ip").args(["link", "set", "far", "netns", &far]).status();
            let there = network.far("ip", &["link", "show", "far"]).output();
            moved.is_ok() && there.is_ok_and(|output| output.status.success())
        });
        assert!(moved, "the wire has no far end");
        ip(&["addr", "add", &format!("{NEAR}/24"), "dev", "near"]);
        ip(&["link", "set", "near", "up"]);
        for arguments in [
            &["addr", "add", &format!("{FAR}/24"), "dev", "far"][..],
            &["link", "set", "far", "up"],
            &["link", "set", "lo", "up"],
        ] {
            assert!(network.far("ip", arguments).status().unwrap().success());
        }
        network
    }

    /// What starts a command on the far machine.
    pub fn way(&self) -> [String; 4] {
        ["nsenter".into(), "-t".into(), self.keeper.id().to_string(), "-n".into()]
    }

    /// A command on the far machine.
    pub fn far(&self, program: &str, arguments: &[&str]) -> Command {
        let [first, rest @ ..] = self.way();
        let mut command = Command::new(first);
        command.args(rest).arg(program).args(arguments);
        command
    }

    /// Limits the speed of the wire in both directions.
    pub fn limit(&self, rate: &str) {
        let arguments = |device| {
            let queue = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "200ms"];
            ["qdisc", "replace", "dev", device].into_iter().chain(queue).collect::<Vec<_>>()
        };
        let near = Command::new("tc").args(arguments("near")).status().unwrap();
        assert!(near.success() && self.far("tc", &arguments("far")).status().unwrap().success());
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The kernel takes its time over the namespace, and the next network has the same names.
        let _ = Command::new("ip").args(["link", "delete", "near"]).status();
        let _ = self.keeper.kill();
        let _ = self.keeper.wait();
    }
}

pub fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "ip {arguments:?}");
}
