//! An observer that queries the job all the time, over the same lossy network, and must not change any
//! result.

use std::sync::Arc;

use super::cluster::{Cluster, SCHEDULER};
use super::network::Happening;
use crate::job::{MS, NO_RANK, Role, Time};
use crate::message::{Header, JobView, Look, MessageKind, decode, encode};

pub(super) const ONLOOKER: &str = "onlooker";
const PAUSE: Time = 450 * MS;
/// By this time all processes have been started.
const BEGUN: Time = 2_000 * MS;

impl Cluster {
    pub(super) fn look(&mut self) {
        let address: Arc<str> = ONLOOKER.into();
        let fields = Look { address: ONLOOKER.into(), skip: 0 }.encode(9);
        // An observer need not know the name of the job.
        let head = Header {
            kind: MessageKind::Look,
            role: Role::Worker,
            rank: NO_RANK,
            job: self.network.now,
            incarnation: 5,
            request: self.network.now,
            ..Header::default()
        };
        let mut bytes = Vec::new();
        encode(&head, &fields, &mut bytes);
        self.network.send(&address, &SCHEDULER.into(), &bytes, &self.scenario);
        if self.network.now < BEGUN || !self.processes.is_empty() {
            let next = self.network.now + PAUSE;
            self.network.at(next, Happening::Look);
        }
    }

    /// Checks an answer to the observer: it is complete, and about this job.
    pub(super) fn seen(&mut self, bytes: &[u8]) {
        let Ok((head, fields, _)) = decode(bytes, 1 << 20) else { return };
        assert_eq!((head.kind, head.sequence), (MessageKind::Seen, 0));
        assert_eq!(head.job, head.request, "the answer is for the job that the look was for");
        let seen = JobView::decode(fields).expect("what the scheduler says can be read");
        let limits = &self.scenario.limits;
        assert_eq!((seen.workers, seen.servers), (limits.workers, limits.servers));
        assert!(seen.members <= limits.workers + limits.servers);
        assert_eq!(seen.sights.len(), seen.members as usize);
        for sight in seen.sights {
            let Some((_, facts)) = sight.report else { continue };
            self.met.reports += 1;
            self.met.waiting += facts.waiting.len() as u64;
            assert!(facts.counters.held_bytes <= limits.hold_bytes);
            let worker = sight.peer.role == Role::Worker;
            assert!(worker || facts.waiting.is_empty(), "only workers make calls");
        }
    }
}
