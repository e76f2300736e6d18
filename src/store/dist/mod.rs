//! The distributed stores: one job of many processes, over the protocol of `cluster`.
//!
//! A worker's calls become operations of its machine (`worker`, `sending`, `drafts`, `call`, `desk`); a server does the
//! arithmetic that its machine asks for, slice by slice (`serving`, `shop`, `shard`).

mod alone;
mod call;
mod coding;
mod collective;
mod desk;
mod drafts;
mod failure;
mod finding;
mod insight;
mod learning;
#[cfg(test)]
mod long_lists;
mod place;
mod reader;
mod relay;
mod rows;
mod sending;
mod serving;
mod setting;
mod shard;
mod shop;
mod slices;
mod state;
mod steps;
mod stored;
mod together;
mod units;
mod whole;
mod worker;

use std::sync::Arc;

use reader::Reader;
use serving::Serving;
use worker::WorkerStore;

use super::StoreKind;
use super::local::Local;
use super::remote::Remote;
use crate::config::{Config, Job};
use crate::error::Result;
use crate::role::Role;

/// Reads what somebody says of merging, and does it.
#[cfg(any(fuzzing, test))]
pub(crate) fn read_setting(fields: &[u8]) {
    if let Ok(change) = setting::Change::decode(fields) {
        let _ = change.apply(&super::merger::Handling::PLAIN);
    }
}

/// Joins a job; as a worker, when all its processes are there.
pub(super) fn open(
    local: &Arc<Local>,
    kind: StoreKind,
    config: &Config,
) -> Result<Box<dyn Remote>> {
    let job = Job::new(config)?;
    Ok(if job.role == Role::Worker {
        let place = place::place(&job)?;
        let worker = WorkerStore::open(local, &job, &place, kind)?;
        if place::reads_only(&job, &place) {
            return Ok(Box::new(Reader::new(worker)?));
        }
        Box::new(worker)
    } else {
        Box::new(Serving::new(local, job, kind)?)
    })
}
