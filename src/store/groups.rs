//! Groups of workers (also called: communicators, process sets): stores of some of the workers of a job.

use std::sync::Arc;

use super::{CallClass, JoinedJob, Store, claim, release_id};
use crate::error::{Result, fail};
use crate::local::Local;
use crate::spans;

/// Maximum bytes of a group's name.
const LONGEST_NAME: usize = 255;

impl Store {
    /// Opens the store of a group: keys, rounds, rules, barriers and collective calls of the workers of these ranks,
    /// over the processes and connections of the job.
    ///
    /// The workers of the group make this call, in any order, and no others; it returns when the servers know the
    /// group, without waiting for the other workers. In the group a worker has the place of its rank among the
    /// ascending `ranks` as its rank; errors name workers by their rank in the job. A worker that closes or drops the
    /// store leaves the group, and the others go on without it. The group has the settings of this store's options,
    /// no rule, and its own keys. Of a local store, `ranks` is `[0]`.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is empty or longer than 255 bytes or open in this process, for ranks that
    /// are no workers, twice there, or without this worker. `Differs` if another worker gives the group other ranks.
    /// `Unsupported` of a group's store, or if a server is of an earlier release. `PeerLost`, `Timeout`.
    pub fn group(&self, name: &str, ranks: &[u32]) -> Result<Self> {
        let _span = spans::enter!("group", name);
        self.enter(CallClass::Work, |local| {
            if name.is_empty() || name.len() > LONGEST_NAME || name.contains('\0') {
                return Err(fail!(
                    InvalidArgument,
                    "group: the name {name:?} is empty, longer than {LONGEST_NAME} bytes, or has a NUL"
                ));
            }
            if self.remote.is_none() && ranks != [0] {
                return Err(fail!(
                    InvalidArgument,
                    "group: a local store has worker 0 alone; pass its rank, 0"
                ));
            }
            let (serial, id) = claim()?;
            let of_group = Arc::new(Local::new(serial, id, local.settings.clone(), self.kind));
            let remote = self.remote.as_ref().map(|job| job.group(&of_group, name, ranks));
            let remote = remote.transpose().inspect_err(|_| release_id(id))?;
            let joined = JoinedJob {
                remote,
                #[cfg(feature = "dist")]
                embedded: None,
            };
            Ok(Self::of_job(of_group, joined, self.kind, id))
        })
    }
}
