//! The data calls, by the names that errors and traces give them.

/// The data calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    Push,
    Pull,
    PushPull,
    Broadcast,
    PushRows,
    PullRows,
}

impl Call {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Call::Push => "push",
            Call::Pull => "pull",
            Call::PushPull => "pushpull",
            Call::Broadcast => "broadcast",
            Call::PushRows => "push_rows",
            Call::PullRows => "pull_rows",
        }
    }
}
