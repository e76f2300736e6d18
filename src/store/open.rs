//! Opens a distributed store: this process joins a job, as a worker, a reader, a server or a scheduler.

use std::sync::Arc;

use crate::server::ServerProcess;
use crate::worker::WorkerStore;

use super::StoreKind;
use crate::config::{Config, JobConfig};
use crate::credentials::take_kept;
use crate::error::Result;
use crate::job::remote::JobMember;
use crate::local::Local;
use crate::role::Role;

/// Decodes and applies a merge setting of a peer, and decodes an announcement, for fuzzing and tests.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_setting(fields: &[u8]) {
    if let Ok(change) = crate::job::settings::Change::decode(fields) {
        let _ = change.apply(&crate::local::merger::Handling::PLAIN);
    }
    let _ = crate::worker::Announcement::decode(fields);
}

/// Joins a job; returns on a worker when all processes have joined.
pub(crate) fn open(
    local: &Arc<Local>,
    kind: StoreKind,
    config: &Config,
) -> Result<Box<dyn JobMember>> {
    let mut job = JobConfig::new(config)?;
    take_kept(&mut job);
    Ok(if job.role == Role::Worker {
        let place = crate::job::options::place(&job)?;
        Box::new(WorkerStore::open(local, &job, &place, kind)?)
    } else {
        Box::new(ServerProcess::new(local, job, kind)?)
    })
}
