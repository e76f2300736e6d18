//! The data calls, by their names in errors and traces.

/// The data calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataCall {
    Push,
    Pull,
    PushPull,
    Broadcast,
    PushRows,
    PullRows,
}

impl DataCall {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            DataCall::Push => "push",
            DataCall::Pull => "pull",
            DataCall::PushPull => "pushpull",
            DataCall::Broadcast => "broadcast",
            DataCall::PushRows => "push_rows",
            DataCall::PullRows => "pull_rows",
        }
    }
}
