//! Opens a distributed store: this process joins a job, as a worker, a reader, a server or a scheduler.

use std::sync::Arc;

use crate::server::ServerProcess;
use crate::worker::WorkerStore;

use super::embedded::EmbeddedMembers;
use super::{JoinedJob, StoreKind};
use crate::config::{Config, JobConfig, JobPart};
use crate::credentials::take_kept;
use crate::error::{ErrorKind, Result};
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
pub(super) fn open(local: &Arc<Local>, kind: StoreKind, config: &Config) -> Result<JoinedJob> {
    let part = JobPart::new(config)?;
    let mut job = JobConfig::new(&part.config)?;
    take_kept(&mut job);
    let embedded = match &part.embedded[..] {
        [] => None,
        configs => Some(EmbeddedMembers::start(kind, configs)?),
    };
    let joined = join(local, job, kind);
    // A server that was refused is the reason why a worker waits in vain.
    let failure = || {
        let failure = embedded.as_ref().and_then(EmbeddedMembers::failure);
        failure.filter(|it| it.kind() != ErrorKind::Timeout)
    };
    let remote = joined.map_err(|error| failure().unwrap_or(error))?;
    Ok(JoinedJob { remote: Some(remote), embedded })
}

fn join(local: &Arc<Local>, job: JobConfig, kind: StoreKind) -> Result<Box<dyn JobMember>> {
    Ok(if job.role == Role::Worker {
        let place = crate::job::options::place(&job)?;
        Box::new(WorkerStore::open(local, &job, &place, kind)?)
    } else {
        Box::new(ServerProcess::new(local, job, kind)?)
    })
}
