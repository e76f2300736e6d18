//! Digests of a running job (also called: fingerprints), from its servers: whether two jobs are the same so far.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use serde::{Serialize, Serializer};

use super::{Observer, ObserverReply};
use crate::config::Config;
use crate::digest::RunDigest;
use crate::error::{Result, fail};
use kvstore_protocol::{
    DigestScope, Look, MOST_DIGESTS, MemberState, Role, SeenDigests, SliceDigest,
};

/// Slices in a page.
#[allow(clippy::cast_possible_truncation, reason = "it is small")]
const PAGE: u32 = MOST_DIGESTS as u32;

/// Interval between repeated requests: a server answers a limited number in a time.
const REPEAT: Duration = Duration::from_millis(120);

/// Digests of the keys of a running job, as its servers know them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JobDigests {
    /// What the servers digest: `values`, `all`, or `off`.
    pub scope: &'static str,
    /// Rounds whose numbers are powers of two: two jobs have half of the rounds of the shorter one in common.
    pub rounds: Vec<RoundDigest>,
    /// Keys of which a round has closed, by number.
    pub keys: Vec<ObservedKey>,
}

/// One digest of the values of all keys that have had a round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RoundDigest {
    /// Number of the round.
    pub round: u64,
    /// Number of these keys.
    pub keys: usize,
    /// CRC-64/NVME of the number of each key and the digest of its value, 8 bytes each, little-endian.
    #[serde(serialize_with = "hex")]
    pub digest: u64,
}

/// Digests of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ObservedKey {
    /// Number of the key; that of a name is the hash of the name.
    pub key: u64,
    /// Last round that has closed; the first one of its slices, while they are of several rounds.
    pub round: u64,
    /// Digest of the value, as `kv_digest` gives it. None while its slices are of several rounds, and after a
    /// call has replaced the value.
    #[serde(serialize_with = "optional_hex")]
    pub value: Option<u64>,
    /// Digest of the state, if the servers digest states.
    #[serde(serialize_with = "optional_hex")]
    pub state: Option<u64>,
    /// Rounds whose numbers are powers of two, and digests of the values after them.
    #[serde(serialize_with = "pairs")]
    pub earlier: Vec<(u64, u64)>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it")]
fn hex<S: Serializer>(digest: &u64, to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{digest:016x}"))
}

#[allow(clippy::ref_option, reason = "serde calls it")]
fn optional_hex<S: Serializer>(
    digest: &Option<u64>,
    to: S,
) -> std::result::Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => hex(digest, to),
        None => to.serialize_none(),
    }
}

fn pairs<S: Serializer>(earlier: &[(u64, u64)], to: S) -> std::result::Result<S::Ok, S::Error> {
    to.collect_map(earlier.iter().map(|(round, digest)| (round, format!("{digest:016x}"))))
}

impl Observer {
    /// Digests of the rounds of all keys, which servers with the option `digests` keep. Nothing is computed, and
    /// the job does not wait.
    ///
    /// # Errors
    /// As [`Observer::open`] and [`Observer::look`]; `Timeout` also for a server that does not answer.
    pub fn digests(config: &Config, timeout: Duration) -> Result<JobDigests> {
        let end = Instant::now() + timeout;
        let seen = Self::open(config)?.see(end)?;
        let servers = seen.sights.iter().filter(|it| {
            it.peer.role == Role::Server && it.state == MemberState::Here && !it.address.is_empty()
        });
        let (mut slices, mut scope) = (Vec::new(), None);
        for server in servers {
            let mut line = Self::connect(config, Some(&server.address))
                .map_err(|error| error.at("observe"))?;
            let name = server.peer.to_string();
            scope = scope.max(Some(line.slices(&name, &mut slices, end)?));
        }
        let scope = match scope {
            Some(DigestScope::All) => "all",
            Some(DigestScope::Values) => "values",
            Some(DigestScope::Off) | None => "off",
        };
        Ok(combined(scope, slices))
    }

    /// All digests of one server.
    fn slices(
        &mut self,
        server: &str,
        slices: &mut Vec<SliceDigest>,
        end: Instant,
    ) -> Result<DigestScope> {
        let mut skip = 0;
        loop {
            let seen = self.page(server, skip, end)?;
            slices.extend(seen.digests);
            skip += PAGE;
            if skip >= seen.slices {
                return Ok(seen.scope);
            }
        }
    }

    /// The digests behind `skip` slices.
    fn page(&mut self, server: &str, skip: u32, end: Instant) -> Result<SeenDigests> {
        let address = self.transport.address().into();
        let fields = Look { address, skip: u32::MAX }.encode_digests(skip);
        let first = self.requests + 1;
        loop {
            self.send_look(&fields, end);
            if !self.line.is_connected() {
                self.explain(end)?;
            }
            let until = end.min(Instant::now() + REPEAT);
            loop {
                let left = until.saturating_duration_since(Instant::now());
                match self.answers.recv_timeout(left) {
                    Ok(ObserverReply::Digests { request, seen }) if request >= first => {
                        return Ok(*seen);
                    }
                    Ok(ObserverReply::Refused(reason)) => {
                        return Err(fail!(Refused, "observe: not let in by {server}: {reason}"));
                    }
                    Ok(_) => {}
                    Err(_) => break,
                }
            }
            if Instant::now() >= end {
                let at = &self.root;
                return Err(fail!(
                    Timeout,
                    "observe: {server} at {at} does not answer; it is stopped, or of a release that \
                     shows no digests"
                ));
            }
        }
    }
}

/// Digests of keys from those of their slices.
fn combined(scope: &'static str, slices: Vec<SliceDigest>) -> JobDigests {
    // The newest generation of each key, its slices in order; one that moved between two answers counts once.
    let mut by_key = BTreeMap::<u64, (u32, BTreeMap<u64, SliceDigest>)>::new();
    for slice in slices {
        let of_key = by_key.entry(slice.slice.key).or_default();
        if slice.slice.generation > of_key.0 {
            *of_key = (slice.slice.generation, BTreeMap::new());
        }
        if slice.slice.generation == of_key.0 {
            of_key.1.insert(slice.place.0, slice);
        }
    }
    let slices = by_key.values().map(|(_, slices)| slices.values().collect::<Vec<_>>());
    let keys: Vec<_> = slices.filter_map(|slices| key(scope, &slices)).collect();
    let mut rounds = BTreeMap::<u64, Vec<u8>>::new();
    for key in &keys {
        for (round, digest) in &key.earlier {
            let bytes = rounds.entry(*round).or_default();
            bytes.extend([key.key, *digest].map(u64::to_le_bytes).as_flattened());
        }
    }
    let of_round = |(round, bytes): (u64, Vec<u8>)| RoundDigest {
        round,
        keys: bytes.len() / 16,
        digest: RunDigest::of(&bytes).sum,
    };
    JobDigests { scope, rounds: rounds.into_iter().map(of_round).collect(), keys }
}

/// The digests of a key; None if a slice is missing, as it has had no round yet.
fn key(scope: &'static str, slices: &[&SliceDigest]) -> Option<ObservedKey> {
    let whole = slices.first()?.place.1.1;
    let mut end = 0;
    for slice in slices {
        let (start, (bytes, of)) = slice.place;
        if start != end || of != whole {
            return None;
        }
        end = start.checked_add(bytes)?;
    }
    if end != whole {
        return None;
    }
    let join = |digest: &dyn Fn(&SliceDigest) -> Option<u64>| {
        let run =
            |slice: &&SliceDigest| Some(RunDigest { sum: digest(slice)?, len: slice.place.1.0 });
        let runs: Option<Vec<_>> = slices.iter().map(run).collect();
        runs.map(|runs| RunDigest::joined(runs).sum)
    };
    let round = slices.iter().map(|slice| slice.round).min()?;
    let is_one = slices.iter().all(|slice| slice.round == round);
    let value = join(&|slice| slice.value.filter(|_| is_one));
    let state = value.filter(|_| scope == "all").and_then(|_| state(slices));
    let earlier = slices[0].earlier.iter().filter_map(|(round, _)| {
        let of = |slice: &SliceDigest| {
            slice.earlier.iter().find(|(at, _)| at == round).map(|(_, digest)| *digest)
        };
        Some((*round, join(&of)?))
    });
    Some(ObservedKey { key: slices[0].slice.key, round, value, state, earlier: earlier.collect() })
}

/// The digest of the arrays of a state, each of which is in slices.
fn state(slices: &[&SliceDigest]) -> Option<u64> {
    let count = slices.first()?.states.len();
    let mut whole = RunDigest::default();
    for array in 0..count {
        for slice in slices {
            let (sum, len) = *slice.states.get(array)?;
            whole = whole.then(RunDigest { sum, len });
        }
    }
    let is_like = slices.iter().all(|slice| slice.states.len() == count);
    is_like.then_some(whole.sum)
}
