//! The directory of a job, on server 0 (also: name service, metadata service): the existing keys in the order
//! of their init, the placement of their slices, and the settings in force.

use std::collections::BTreeMap;
use std::sync::Arc;

use foldhash::HashMap;

use super::Workers;
use super::agreement::{Agreement, Proposed};
use crate::bit_set::BitSet;
use crate::drops::{DropReason, Handled};
use crate::job::{Data, Failure, Limits, Peer, Reason, naming};
use crate::message::kinds::{Ask, Declare, Failed, Place, Ready, Remove, Removed};
use crate::message::{COLLECTIVE, Decision, KeySpec, Message, Placement, Proposal};
use crate::placement::{MOST_SLICES, Placer, SharedPlaces};

/// Maximum settings that are kept for ranks that ask for them later.
const MOST_SETTINGS: usize = 65_536;

#[derive(Debug)]
pub(super) struct KeyEntry {
    /// The name under which the key was declared first.
    name: NameHash,
    pub(super) generation: u32,
    pub(super) agreement: Agreement<KeySpec>,
    pub(super) place: Option<Arc<Placement>>,
    /// Look-ups that wait for the init: rank and request.
    #[expect(clippy::box_collection, reason = "most keys have none, and a job may have very many")]
    finders: Option<Box<Vec<(u32, u64)>>>,
    removed_by: BitSet,
}

impl KeyEntry {
    /// Takes the look-ups that wait for the init.
    pub(super) fn take_finders(&mut self) -> Vec<(u32, u64)> {
        self.finders.take().map_or_else(Vec::new, |finders| *finders)
    }

    /// Look-ups that go on waiting.
    pub(super) fn set_finders(&mut self, finders: Vec<(u32, u64)>) {
        self.finders = (!finders.is_empty()).then(|| Box::new(finders));
    }
}

/// Second hash of a name, 0 if it is not known, and the worker that declared it first.
#[derive(Debug, Clone, Copy)]
struct NameHash {
    hash: u64,
    rank: u32,
}

#[derive(Debug)]
struct Setting {
    agreement: Agreement<Vec<u8>>,
    decided: Vec<u8>,
}

/// Maximum waiting look-ups of one worker, beside one for each key of the directory: a worker of this library
/// has one for a key.
const MOST_SEARCHES: u64 = 16_384;

/// Number of waiting look-ups, by rank.
#[derive(Debug, Default)]
pub(super) struct Searches(BTreeMap<u32, u64>);

impl Searches {
    pub(super) fn begin(&mut self, rank: u32) {
        *self.0.entry(rank).or_default() += 1;
    }

    pub(super) fn end(&mut self, rank: u32) {
        if let Some(count) = self.0.get_mut(&rank) {
            *count = count.saturating_sub(1);
        }
    }
}

/// An answer of the directory to a worker.
#[derive(Debug)]
pub(super) enum DirectoryAnswer {
    Place(Place),
    Removed(Removed),
    Failed(Failed),
}

impl<D: Data> From<DirectoryAnswer> for Message<D> {
    fn from(answer: DirectoryAnswer) -> Self {
        match answer {
            DirectoryAnswer::Place(place) => place.into(),
            DirectoryAnswer::Removed(removed) => removed.into(),
            DirectoryAnswer::Failed(failed) => failed.into(),
        }
    }
}

#[derive(Debug)]
pub(super) struct Directory {
    pub(super) placer: Placer,
    places: SharedPlaces,
    pub(super) entries: BTreeMap<u64, KeyEntry>,
    /// Counts of all `finders`.
    pub(super) searches: Searches,
    /// Last generation of removed keys.
    pub(super) past: HashMap<u64, u32>,
    settings: BTreeMap<u64, Setting>,
    /// Agreements of collective calls, which only workers use.
    collective: BTreeMap<u64, Setting>,
    /// Answers to send, and the rank of the worker.
    answers: Vec<(u32, DirectoryAnswer)>,
    /// Every key is placed whole.
    whole: bool,
}

impl Directory {
    /// Whether a worker is at its bound of look-ups.
    pub(super) fn is_full(&self, rank: u32) -> bool {
        let count = self.searches.0.get(&rank).copied().unwrap_or(0);
        count >= MOST_SEARCHES + self.entries.len() as u64
    }

    pub(super) fn new(limits: &Limits) -> Self {
        Self {
            placer: Placer::new(limits.servers, limits.slice_bytes, limits.block_elements),
            places: SharedPlaces::default(),
            entries: BTreeMap::new(),
            searches: Searches::default(),
            past: HashMap::default(),
            settings: BTreeMap::new(),
            collective: BTreeMap::new(),
            answers: Vec::new(),
            whole: false,
        }
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn keep_whole(&mut self) {
        self.whole = true;
    }

    /// Answers since the last call, by rank.
    pub(super) fn answers(&mut self) -> Vec<(u32, DirectoryAnswer)> {
        std::mem::take(&mut self.answers)
    }

    pub(super) fn declare(&mut self, rank: u32, declare: Declare, workers: &Workers) -> Handled {
        let Declare { key, setting, request, learn, back, proposal } = declare;
        if learn {
            self.teach(rank, key, setting, request);
            return Ok(());
        }
        let (hash, spec) = match proposal {
            Proposal::Setting(value) => {
                self.declare_setting(setting, Proposed { rank, request, value }, workers);
                return Ok(());
            }
            Proposal::Key(..) if back => return self.withdraw(rank, key, workers),
            Proposal::Key(hash, spec) => (hash, spec),
        };
        match (self.collision(key, hash), spec) {
            (Some(failure), _) => self.fail(rank, key, request, &failure),
            (None, Some(value)) => self.init(key, hash, Proposed { rank, request, value }, workers),
            (None, None) => self.look_up(key, rank, request, workers),
        }
        Ok(())
    }

    /// Two names with one key: the request of the second worker fails. A worker that does not know the name
    /// accepts any.
    fn collision(&self, key: u64, hash: u64) -> Option<Failure> {
        let ours = self.entries.get(&key)?.name;
        if [0, ours.hash].contains(&hash) || ours.hash == 0 {
            return None;
        }
        let text = format!(
            ": worker {} has another name with the same 63-bit hash; rename one of the two",
            ours.rank
        );
        Some(Failure { reason: Reason::NameCollision, text: naming("", key, text) })
    }

    /// Answers a worker that is done with the next key, or with a setting.
    fn teach(&mut self, rank: u32, key: u64, setting: u64, request: u64) {
        if setting == 0 {
            let mut there = self.entries.range(key..).filter(|(_, it)| it.agreement.is_ready());
            match there.next().map(|(key, _)| *key) {
                Some(key) => self.tell(key, rank, request, false),
                None => self.fail(rank, key, request, &nothing("no more keys")),
            }
            return;
        }
        let known = self.settings.get(&setting).filter(|it| it.agreement.is_ready());
        let wish = Proposed { rank, request, value: Vec::new() };
        match (known, self.settings.first_key_value()) {
            (Some(_), _) => self.grant_setting(setting, &wish),
            (None, Some((oldest, _))) if setting < *oldest => {
                let text = "too many settings were made since this worker was done";
                self.fail(rank, key, request, &Failure::new(Reason::Invalid, text));
            }
            (None, _) => self.fail(rank, key, request, &nothing("no more settings")),
        }
    }

    fn init(&mut self, key: u64, hash: u64, wish: Proposed<KeySpec>, workers: &Workers) {
        let past = &self.past;
        let entry = self.entries.entry(key).or_insert_with(|| KeyEntry {
            name: NameHash { hash, rank: wish.rank },
            generation: past.get(&key).copied().unwrap_or(0),
            agreement: Agreement::new(),
            place: None,
            finders: None,
            removed_by: BitSet::default(),
        });
        if entry.name.hash == 0 {
            entry.name = NameHash { hash, rank: wish.rank };
        }
        match entry.agreement.wish(wish) {
            Ok(None) => self.settle(key, workers),
            Ok(Some(wish)) => self.grant(key, &wish),
            Err(Proposed { rank, request, .. }) => {
                let text = naming("init: ", key, " exists already");
                self.fail(rank, key, request, &Failure { reason: Reason::KeyExists, text });
            }
        }
    }

    fn look_up(&mut self, key: u64, rank: u32, request: u64, workers: &Workers) {
        match self.entries.get_mut(&key) {
            Some(entry) if entry.agreement.is_ready() => self.tell(key, rank, request, false),
            Some(entry) => {
                entry.finders.get_or_insert_default().push((rank, request));
                self.searches.begin(rank);
                if workers.lowest() == Some(rank) {
                    self.settle_finders(key, workers);
                }
            }
            None => self.fail(rank, key, request, &unknown()),
        }
    }

    /// Makes the lowest living rank the provider, if it has proposed the key. A new provider begins a new
    /// generation, so that the slices of two providers never mix.
    pub(super) fn settle(&mut self, key: u64, workers: &Workers) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(Proposed { rank, request, value }) = entry.agreement.decide(workers.lowest())
        else {
            return;
        };
        if let Some(old) = entry.place.take() {
            self.placer.remove(&old);
        }
        entry.generation += 1;
        let whole = value.whole || self.whole;
        let place = self.placer.add(KeySpec { whole, ..value });
        entry.place = place.map(|place| self.places.share(Arc::new(place)));
        if entry.place.is_some() {
            return self.tell(key, rank, request, true);
        }
        let text = format!(
            " is too large: a key has at most {MOST_SLICES} slices; a larger slice_bytes makes fewer"
        );
        let failure = Failure { reason: Reason::Invalid, text: naming("init: ", key, text) };
        self.past.insert(key, entry.generation);
        self.entries.remove(&key);
        self.fail(rank, key, request, &failure);
    }

    /// The provider has sent the value, or the setting, to all servers.
    pub(super) fn ready(&mut self, rank: u32, ready: &Ready) -> Handled {
        let Ready { key, generation, setting: version, .. } = *ready;
        if version > 0 {
            let setting = self.sequence(version).get_mut(&version).ok_or(DropReason::Late)?;
            for wish in setting.agreement.ready(rank).ok_or(DropReason::Outdated)? {
                self.grant_setting(version, &wish);
            }
            return Ok(());
        }
        let entry = self.entries.get_mut(&key);
        let entry = entry.filter(|entry| entry.generation == generation).ok_or(DropReason::Late)?;
        let granted = entry.agreement.ready(rank).ok_or(DropReason::Outdated)?;
        for (rank, request) in entry.take_finders() {
            self.searches.end(rank);
            self.tell(key, rank, request, false);
        }
        for wish in granted {
            self.grant(key, &wish);
        }
        Ok(())
    }

    /// The key exists: a proposal of its shape and dtype is answered with its place, another one fails.
    fn grant(&mut self, key: u64, wish: &Proposed<KeySpec>) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        let Some(place) = &entry.place else { return };
        let (ours, theirs) = (&place.spec, &wish.value);
        let reason = match (ours.dtype == theirs.dtype, ours.shape == theirs.shape) {
            (false, _) => Reason::DtypeMismatch,
            (_, false) => Reason::ShapeMismatch,
            (true, true) => return self.tell(key, wish.rank, wish.request, false),
        };
        entry.agreement.forget(wish.rank);
        let text = format!(
            ": {} on worker {}, the key is {}; use one shape and dtype on all ranks",
            describe(theirs),
            wish.rank,
            describe(ours)
        );
        let failure = Failure { reason, text: naming("init: ", key, text) };
        self.fail(wish.rank, key, wish.request, &failure);
    }

    fn tell(&mut self, key: u64, rank: u32, request: u64, provide: bool) {
        let Some(entry) = self.entries.get(&key) else { return };
        let Some(place) = &entry.place else { return };
        let (generation, name) = (entry.generation, entry.name.hash);
        let decision = Decision::Key(Arc::clone(place));
        let (setting, differs) = (0, false);
        let place = Place { key, generation, name, setting, request, provide, differs, decision };
        self.answers.push((rank, DirectoryAnswer::Place(place)));
    }

    pub(super) fn remove(&mut self, rank: u32, remove: &Remove, workers: &Workers) {
        let Remove { key, generation, request, back, .. } = *remove;
        match self.life_mut(key, generation) {
            Some(entry) if back => {
                entry.removed_by.remove(rank);
                self.tell_removed(rank, (key, generation), request, true);
            }
            Some(entry) => {
                entry.removed_by.insert(rank);
                self.settle_removal(key, workers);
            }
            // All workers have removed it before.
            None => self.tell_removed(rank, (key, generation), request, false),
        }
    }

    /// A key, if it is still in this generation.
    fn life_mut(&mut self, key: u64, generation: u32) -> Option<&mut KeyEntry> {
        let entry = self.entries.get_mut(&key)?;
        (entry.place.is_some() && entry.generation == generation).then_some(entry)
    }

    fn tell_removed(&mut self, rank: u32, (key, generation): (u64, u32), request: u64, back: bool) {
        let removed = Removed { key, generation, request, of_directory: true, back };
        self.answers.push((rank, DirectoryAnswer::Removed(removed)));
    }

    /// Removes a key once every active worker has removed it.
    fn settle_removal(&mut self, key: u64, workers: &Workers) {
        let Some(entry) = self.entries.get(&key) else { return };
        if entry.removed_by.is_empty() || !workers.absent(&entry.removed_by).is_empty() {
            return;
        }
        let Some(entry) = self.entries.remove(&key) else { return };
        if let Some(place) = &entry.place {
            self.placer.remove(place);
        }
        self.past.insert(key, entry.generation);
        for rank in entry.removed_by.iter() {
            self.tell_removed(rank, (key, entry.generation), 0, false);
        }
    }

    fn declare_setting(&mut self, version: u64, wish: Proposed<Vec<u8>>, workers: &Workers) {
        let sequence = self.sequence(version);
        // The oldest ones, which no rank asks for any more.
        while sequence.len() > MOST_SETTINGS {
            sequence.pop_first();
        }
        let setting = sequence
            .entry(version)
            .or_insert_with(|| Setting { agreement: Agreement::new(), decided: Vec::new() });
        // A worker counts its settings, and declares a withdrawn one again.
        setting.agreement.forget(wish.rank);
        if let Ok(granted) = setting.agreement.wish(wish) {
            match granted {
                None => self.settle_setting(version, workers),
                Some(wish) => self.grant_setting(version, &wish),
            }
        }
    }

    /// The settings, or the agreements of collective calls, by a number of them.
    fn sequence(&mut self, number: u64) -> &mut BTreeMap<u64, Setting> {
        if number > COLLECTIVE { &mut self.collective } else { &mut self.settings }
    }

    fn settle_setting(&mut self, version: u64, workers: &Workers) {
        let Some(setting) = self.sequence(version).get_mut(&version) else { return };
        let Some(wish) = setting.agreement.decide(workers.lowest()) else { return };
        setting.decided.clone_from(&wish.value);
        if version > COLLECTIVE {
            // Other servers do not need it: it is in force at once.
            let granted = setting.agreement.ready(wish.rank).unwrap_or_default();
            granted.iter().for_each(|wish| self.grant_setting(version, wish));
        } else {
            self.tell_setting(version, &wish, (true, false), Vec::new());
        }
    }

    fn grant_setting(&mut self, version: u64, wish: &Proposed<Vec<u8>>) {
        let Some(setting) = self.sequence(version).get(&version) else { return };
        // An empty proposal accepts the decided setting.
        if wish.value.is_empty() {
            let decided = setting.decided.clone();
            return self.tell_setting(version, wish, (false, false), decided);
        }
        if setting.decided == wish.value {
            return self.tell_setting(version, wish, (false, false), Vec::new());
        }
        let decided = setting.decided.clone();
        self.tell_setting(version, wish, (false, true), decided);
        let text = format!(
            "worker {} asks for something else than the lowest rank; make the same calls in the same \
             order on all ranks",
            wish.rank
        );
        let failure = Failure::new(Reason::Differs, text);
        self.fail(wish.rank, 0, wish.request, &failure);
    }

    fn tell_setting(
        &mut self,
        setting: u64,
        wish: &Proposed<Vec<u8>>,
        (provide, differs): (bool, bool),
        decided: Vec<u8>,
    ) {
        let (key, generation, name, request) = (0, 0, 0, wish.request);
        let decision = Decision::Setting(decided);
        let place = Place { key, generation, name, setting, request, provide, differs, decision };
        self.answers.push((wish.rank, DirectoryAnswer::Place(place)));
    }

    /// Placement of a key in a generation.
    pub(super) fn place_of(&self, key: u64, generation: u32) -> Option<&Arc<Placement>> {
        let entry = self.entries.get(&key).filter(|entry| entry.generation == generation)?;
        entry.place.as_ref()
    }

    /// All keys, the last one first.
    pub(super) fn keys(&self) -> Vec<u64> {
        self.entries.keys().rev().copied().collect()
    }

    /// Settles a key after a change of the workers.
    pub(super) fn settle_key(&mut self, key: u64, workers: &Workers) {
        self.settle_wishes(key, workers);
        self.settle_removal(key, workers);
    }

    /// Settles the settings after a change of the workers.
    pub(super) fn settle_settings(&mut self, workers: &Workers) {
        let versions = self.settings.keys().chain(self.collective.keys());
        for version in versions.copied().collect::<Vec<_>>() {
            self.settle_setting(version, workers);
        }
    }

    /// Members that a wish or a removal waits for.
    pub(super) fn awaited(&self, ask: &Ask, workers: &Workers) -> Vec<Peer> {
        let entry = self.entries.get(&ask.key).filter(|_| ask.setting == 0);
        match entry {
            Some(entry) if !entry.removed_by.is_empty() => workers.absent(&entry.removed_by),
            _ => workers.lowest().map(Peer::worker).into_iter().collect(),
        }
    }

    pub(super) fn fail(&mut self, rank: u32, key: u64, request: u64, failure: &Failure) {
        let (generation, slice, failure) = (0, 0, failure.clone());
        let failed = Failed { key, generation, slice, request, failure };
        self.answers.push((rank, DirectoryAnswer::Failed(failed)));
    }
}

fn nothing(text: &str) -> Failure {
    Failure::new(Reason::KeyNotFound, text)
}

/// Failure of a look-up: no rank has begun to initialise the key.
pub(super) fn unknown() -> Failure {
    nothing("no worker has initialised the key")
}

/// `float32[3,4]`
fn describe(spec: &KeySpec) -> String {
    let bits = spec.dtype >> 8 & 0xff;
    let dtype = match spec.dtype & 0xff {
        0 => format!("int{bits}"),
        1 => format!("uint{bits}"),
        2 => format!("float{bits}"),
        4 => format!("bfloat{bits}"),
        5 => format!("complex{bits}"),
        6 => "bool".to_owned(),
        10 => "float8_e4m3fn".to_owned(),
        11 => "float8_e4m3fnuz".to_owned(),
        12 => "float8_e5m2".to_owned(),
        13 => "float8_e5m2fnuz".to_owned(),
        14 => "float8_e8m0fnu".to_owned(),
        _ => format!("dtype{bits}"),
    };
    let extents: Vec<_> = spec.shape.iter().map(ToString::to_string).collect();
    format!("{dtype}[{}]", extents.join(","))
}
