//! Driver host of a server: dispatches the machine's actions to slices, and returns the answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::round_weights::ContributionInfo;
use super::slice_digests::{DigestOptions, SliceDigests};
use super::slice_queue::{SliceQueue, SliceReply, SliceTask, TaskList};
use crate::codec::{self, Origin};
use crate::error::{Result, fail};
use crate::job::round_info;
use crate::job::row_runs::KeyPartition;
use crate::job::settings::Change;
use crate::job::wanted::{self, WANT_DIGEST, WANT_STATE};
use crate::key::Key;
use crate::local::Local;
use crate::local::merger::{Handling, Merger};
use crate::local::table::Slot;
use crate::log::{Level, log};
use crate::runtime::{Bytes, Driver, DriverHost, SpareLists};
use crate::sys::sync::{AtomicBool, Mutex, Ordering};
use crate::tensor::{DType, element_count};

use kvstore_protocol::{
    DigestScope, MOST_DIGESTS, Machine as _, Mode, Node, Placement, SeenDigests, Server,
    ServerAction, SliceName, SumOrder, Table,
};

/// Maximum settings kept. A push under an older setting is merged under the oldest of these.
const MOST_SETTINGS: usize = 4_096;

/// Batch size of answers, in bytes: small answers are sent in one step of the machine.
const TOGETHER: usize = 192 << 10;

/// Prefetch distance, in slices: workers mostly request slices in the order of their installation.
const AHEAD: usize = 4;

/// Maximum number of empty lists of tasks that are kept: as many slices may have tasks at a time.
const MOST_LISTS: usize = 16_384;

thread_local! {
    static SPARE: SpareLists<Arc<SliceQueue>> = const { SpareLists::new() };
    static REPLIES: SpareLists<SliceReply> = const { SpareLists::new() };
    static LISTS: SpareLists<TaskList> = const { SpareLists::new() };
}

pub(super) struct ServerDispatch {
    local: Arc<Local>,
    /// Whether all contributions are to be digested.
    digests_all: bool,
    /// Whether a round has one contribution only, whose digest is that of the value if it becomes the value.
    digests_only: bool,
    /// Whether contributions become values under the newest setting.
    assigns: AtomicBool,
    /// Lists that slices have given back.
    lists: Mutex<Vec<TaskList>>,
}

/// Slices and settings of a server: those of the job, and those of groups of workers, by their numbers.
pub(super) struct DispatchStates {
    job: DispatchState,
    groups: BTreeMap<u64, DispatchState>,
}

/// Slices and settings of the job, or of a group of workers.
#[derive(Default)]
pub(super) struct DispatchState {
    shards: Table<SliceName, Arc<SliceQueue>>,
    /// Cache of the last lookup, by position in `shards`: the actions of a slice are adjacent.
    last: Option<(SliceName, usize)>,
    /// Tasks of one slice that are not in its queue yet: all actions of a slice enter it at once.
    entering: Vec<SliceTask>,
    /// Merge settings, by the version from which on they apply.
    handlings: BTreeMap<u64, Arc<Handling>>,
    /// Asynchronous mode: each push is merged on its own, under the newest setting.
    asynchronous: bool,
    /// Sums of rounds are those of the tree over ranks.
    by_tree: bool,
    /// Empty lists for the tasks of slices.
    lists: Vec<TaskList>,
    /// What slices digest.
    digests: Option<DigestOptions>,
}

impl ServerDispatch {
    pub(super) fn new(local: Arc<Local>, workers: u32) -> Self {
        let digests = &local.settings.digests;
        let (digests_all, digests_only) = (digests.all, digests.values && workers == 1);
        let assigns = AtomicBool::new(true);
        Self { local, digests_all, digests_only, assigns, lists: Mutex::default() }
    }

    /// Queues the actions of a machine on their slices; adds the slices that have work.
    fn enter_all(
        &self,
        part: &mut Server<Bytes>,
        state: &mut DispatchState,
        todo: &mut Vec<Arc<SliceQueue>>,
    ) {
        let actions = part.actions();
        if state.lists.len() < actions.len() {
            state.lists.append(&mut self.lists.lock());
        }
        state.enter_all(actions, todo);
    }

    /// Keeps lists for the next tasks.
    fn keep(&self, lists: &mut Vec<TaskList>) {
        let mut kept = self.lists.lock();
        let room = MOST_LISTS.saturating_sub(kept.len());
        kept.extend(lists.drain(..).take(room));
    }
}

impl DispatchState {
    /// No slices, under a first setting.
    fn beginning_with(first: Arc<Handling>) -> Self {
        Self { handlings: [(0, first)].into(), ..Self::default() }
    }

    /// Whether contributions become values under the newest setting.
    fn assigns(&self) -> bool {
        let newest = self.handlings.last_key_value();
        newest.is_some_and(|(_, handling)| matches!(handling.merger, Merger::Assign))
    }

    fn handling(&self, version: u64) -> Option<Arc<Handling>> {
        let last = self.handlings.range(..=version).next_back();
        last.or(self.handlings.first_key_value()).map(|(_, handling)| Arc::clone(handling))
    }

    /// Digests of the slices behind `skip` of them, for an observer.
    fn digests_behind(&self, skip: usize) -> SeenDigests {
        let (scope, slices) = match &self.digests {
            None => (DigestScope::Off, 0),
            Some(options) if options.all => (DigestScope::All, self.shards.len()),
            Some(_) => (DigestScope::Values, self.shards.len()),
        };
        let from = skip.min(self.shards.len());
        let to = from.saturating_add(MOST_DIGESTS).min(self.shards.len());
        let shards = self.shards.range(from..to);
        let digests = shards.filter_map(|(name, shard)| shard.digests()?.shown(*name)).collect();
        SeenDigests { scope, slices: u32::try_from(slices).unwrap_or(u32::MAX), digests }
    }

    fn shard(&mut self, name: &SliceName) -> Option<&Arc<SliceQueue>> {
        let at = match self.last {
            Some((last, at)) if last == *name => at,
            _ => self.find(name)?,
        };
        self.shards.at(at)
    }

    /// Position of a slice; prefetches those that follow it.
    fn find(&mut self, name: &SliceName) -> Option<usize> {
        let at = self.shards.position(name)?;
        self.last = Some((*name, at));
        if let Some(next) = self.shards.at(at + AHEAD) {
            next.announce();
        }
        if let Some(next) = self.shards.at(at + AHEAD / 2).filter(|_| self.digests.is_some()) {
            next.digests().inspect(|it| it.announce());
        }
        Some(at)
    }

    /// Queues actions on their slices; adds the slices that have work.
    fn enter_all(
        &mut self,
        actions: impl Iterator<Item = ServerAction<Bytes>>,
        todo: &mut Vec<Arc<SliceQueue>>,
    ) {
        let mut entering = std::mem::take(&mut self.entering);
        let mut slice = None;
        for action in actions {
            // Earlier tasks are of the slice that has the name before these.
            if matches!(action, ServerAction::Install { .. } | ServerAction::Drop { .. }) {
                todo.extend(self.enter(slice.take(), &mut entering));
            }
            let Some((name, task)) = self.task(action) else { continue };
            if slice != Some(name) {
                todo.extend(self.enter(slice.replace(name), &mut entering));
            }
            entering.push(task);
        }
        todo.extend(self.enter(slice, &mut entering));
        self.entering = entering;
    }

    /// Queues tasks on their slice, and gives it; drops them if it is not here. The list is empty then.
    fn enter(
        &mut self,
        name: Option<SliceName>,
        tasks: &mut Vec<SliceTask>,
    ) -> Option<Arc<SliceQueue>> {
        let shard = name.and_then(|name| self.shard(&name).map(Arc::clone));
        match &shard {
            Some(shard) => shard.post(tasks, || self.lists.pop().unwrap_or_default()),
            None => tasks.clear(),
        }
        shard
    }

    /// The task of an action, and its slice; None if it is none, or of a slice that is not here.
    fn task(&mut self, action: ServerAction<Bytes>) -> Option<(SliceName, SliceTask)> {
        Some(match action {
            ServerAction::Install { slice, place, data } => {
                let shard = shard_of(slice, &place, self.digests.as_ref())
                    .inspect_err(|error| log(Level::Error, || format!("init: {error}")));
                self.last = None;
                self.shards.insert(slice, Arc::new(shard.ok()?));
                (slice, SliceTask::Install(data))
            }
            ServerAction::Add {
                slice,
                round,
                rank,
                first,
                codec,
                setting,
                weight,
                part,
                scale,
                data,
            } => {
                let by_tree = self.by_tree;
                let is_encoded = codec > 0 && !by_tree;
                let handling = if is_encoded { self.handling(setting) } else { None };
                let rows = codec == wanted::ROWS;
                let (rank, round) = (rank.into(), round - 1);
                let block = self.shard(&slice)?.first_block();
                let origin = Origin { key: slice.key, rank, round, block };
                let [weight, scale] = [weight, scale].map(round_info::number_of);
                let info = ContributionInfo { weight, leaves: round_info::leaves_of(part), scale };
                (slice, SliceTask::Add { first, by_tree, rows, data, origin, info, handling })
            }
            ServerAction::Restore { slice, data } => {
                (slice, SliceTask::Restore(data, self.handling(u64::MAX)?))
            }
            ServerAction::Close { slice, round, setting } => {
                let setting = if self.asynchronous { u64::MAX } else { setting };
                let (by_tree, handling) = (self.by_tree, self.handling(setting)?);
                (slice, SliceTask::Close { round, by_tree, handling })
            }
            ServerAction::Answer(answer) => {
                let first = answer.wanted.as_ref().and_then(|wanted| wanted.in_block()?.first());
                let wants_state = first.is_some_and(|it| [WANT_STATE, WANT_DIGEST].contains(it));
                let handling = if wants_state { self.handling(u64::MAX) } else { None };
                (answer.slice, SliceTask::Answer(answer, handling))
            }
            ServerAction::Setting { version, fields } => {
                self.set(version, &fields);
                return None;
            }
            ServerAction::Drop { key, generation, slices } => {
                self.last = None;
                for slice in 0..slices {
                    self.shards.remove(&SliceName { key, generation, slice });
                }
                return None;
            }
        })
    }

    /// The worker that sends a setting has validated it.
    fn set(&mut self, version: u64, fields: &[u8]) {
        let Some(before) = self.handling(version) else { return };
        match Change::decode(fields).and_then(|change| change.apply(&before)) {
            Ok(mut handling) => {
                handling.version = version;
                self.handlings.insert(version, Arc::new(handling));
                if self.handlings.len() > MOST_SETTINGS {
                    self.handlings.pop_first();
                }
            }
            Err(error) => log(Level::Error, || format!("setting {version}: {error}")),
        }
    }
}

impl DriverHost for ServerDispatch {
    type Machine = Node<Bytes, Server<Bytes>>;
    type Todo = Vec<Arc<SliceQueue>>;
    type Registry = DispatchStates;

    fn registry(&self) -> DispatchStates {
        let first = Arc::new(self.local.handling.read().clone());
        let (log, settings) = (self.local.applier.digests.get(), &self.local.settings.digests);
        let digests =
            settings.values.then(|| DigestOptions { log: log.map(Arc::clone), all: settings.all });
        let job = DispatchState { digests, ..DispatchState::beginning_with(first) };
        DispatchStates { job, groups: BTreeMap::new() }
    }

    fn digests_pushes(&self) -> bool {
        // Relaxed: a digest that is not there is made later.
        self.digests_all || self.digests_only && self.assigns.load(Ordering::Relaxed)
    }

    fn todo() -> Vec<Arc<SliceQueue>> {
        SpareLists::take(&SPARE)
    }

    fn collect(
        &self,
        node: &mut Self::Machine,
        states: &mut DispatchStates,
        todo: &mut Vec<Arc<SliceQueue>>,
    ) {
        let asynchronous = node.limits().mode != Mode::Sync;
        let by_tree = node.limits().sum_order == SumOrder::Tree;
        let mut enter = |part: &mut Server<Bytes>, state: &mut DispatchState| {
            (state.asynchronous, state.by_tree) = (asynchronous, by_tree);
            self.enter_all(part, state, todo);
        };
        enter(&mut node.part, &mut states.job);
        self.assigns.store(states.job.assigns(), Ordering::Relaxed);
        // A group begins with no rule: an updater of this process gets keys of the job only.
        let plain = || DispatchState::beginning_with(Arc::new(Handling::PLAIN));
        node.each_group(|id, part| enter(part, states.groups.entry(id).or_insert_with(plain)));
        for id in node.ended_groups() {
            states.groups.remove(&id);
        }
        for look in node.digest_looks() {
            node.show_digests(&look, &states.job.digests_behind(look.skip));
        }
    }

    fn carry_out(&self, driver: &Arc<Driver<Self>>, mut todo: Vec<Arc<SliceQueue>>) {
        let (mut replies, mut bytes) = (SpareLists::take(&REPLIES), 0);
        let mut lists = SpareLists::take(&LISTS);
        for shard in todo.drain(..) {
            lists.extend(shard.work(&self.local, &driver.tracer, &driver.blocks, &mut |reply| {
                replies.push(reply);
                bytes += shard.bytes();
            }));
            if bytes > TOGETHER {
                reply(driver, &mut replies);
                bytes = 0;
            }
        }
        self.keep(&mut lists);
        reply(driver, &mut replies);
        SpareLists::keep(&LISTS, lists);
        SpareLists::keep(&REPLIES, replies);
        SpareLists::keep(&SPARE, todo);
    }
}

/// Passes answers to the machine.
fn reply(driver: &Arc<Driver<ServerDispatch>>, replies: &mut Vec<SliceReply>) {
    if replies.is_empty() {
        return;
    }
    driver.step(|node, _| {
        for (answer, value) in replies.drain(..) {
            let Some(part) = node.part_of(answer.group) else { continue };
            match value {
                Ok(data) => part.value(&answer, data),
                Err(failure) => part.no_value(&answer, &failure),
            }
        }
    });
}

/// A slice as a key of its own, for the arithmetic. The only slice of an uncut key has the key's shape.
fn shard_of(
    name: SliceName,
    place: &Placement,
    digests: Option<&DigestOptions>,
) -> Result<SliceQueue> {
    let key = Key::from(name.key);
    let unknown = || fail!(Unsupported, "key {} has a dtype or a shape that is unknown", key.id());
    let dtype = DType::from_code(place.spec.dtype).ok_or_else(unknown)?;
    let (start, bytes) = place.range(name.slice);
    let unit = KeyPartition::new(place).unit as u64;
    let whole = place.servers.len() == 1;
    let shape: Vec<i64> = if whole {
        extents(place)
    } else {
        vec![extent(bytes / dtype.size() as u64 / unit), extent(unit)]
    };
    let count = element_count(&shape).ok_or_else(unknown)?;
    let block = start / dtype.size() as u64 / codec::BLOCK as u64;
    let slot = Slot::new(key, 0, dtype, &shape, count)?;
    let digests = digests.map(|options| {
        let of_key = element_count(&extents(place)).map_or(0, |count| count * dtype.size());
        Box::new(SliceDigests::new(options.clone(), (start, bytes), of_key as u64))
    });
    Ok(SliceQueue::new(slot, name.slice, (block, whole), digests))
}

/// The shape of a key.
fn extents(place: &Placement) -> Vec<i64> {
    place.spec.shape.iter().map(|number| extent(*number)).collect()
}

fn extent(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Config, Settings};
    use crate::local::kind::StoreKind;
    use crate::runtime::BlockPool;
    use crate::trace::Tracer;
    use kvstore_protocol::KeySpec;

    const OLD: SliceName = SliceName { key: 7, generation: 1, slice: 0 };
    const OTHER: SliceName = SliceName { key: 8, generation: 1, slice: 0 };

    fn install(slice: SliceName, value: u8, blocks: &Arc<BlockPool>) -> ServerAction<Bytes> {
        let spec = KeySpec { dtype: DType::U8.code(), shape: vec![4], whole: false };
        let place = Arc::new(Placement { spec, slice_bytes: 4, servers: vec![0] });
        let data = Bytes::of_block(blocks.join(&[&[value; 4]]).unwrap());
        ServerAction::Install { slice, place, data }
    }

    /// A push, and the end of its round.
    fn push(slice: SliceName, value: u8, blocks: &Arc<BlockPool>) -> [ServerAction<Bytes>; 2] {
        let data = Bytes::of_block(blocks.join(&[&[value; 4]]).unwrap());
        let (round, setting) = (1, 0);
        let add = ServerAction::Add {
            slice,
            round,
            rank: 0,
            first: true,
            codec: 0,
            setting,
            weight: 0,
            part: 0,
            scale: 0,
            data,
        };
        [add, ServerAction::Close { slice, round, setting }]
    }

    /// The values of the slices that have work, in its order, after it.
    fn values(actions: Vec<ServerAction<Bytes>>, blocks: &Arc<BlockPool>) -> Vec<u8> {
        let local = Local::new(1, 1, Settings::new(&Config::new()).unwrap(), StoreKind::DistSync);
        let tracer = Tracer::new(None, std::time::Instant::now());
        let mut state = DispatchState::beginning_with(Arc::new(Handling::PLAIN));
        let mut todo = Vec::new();
        state.enter_all(actions.into_iter(), &mut todo);
        for shard in &todo {
            shard.work(&local, &tracer, blocks, &mut |_| panic!("an answer"));
        }
        todo.iter().map(|shard| shard.stored(blocks)[0]).collect()
    }

    #[test]
    fn tasks_of_a_slice_enter_together_and_never_another_slice_of_the_name() {
        let blocks = &Arc::default();
        let [[add, close], [add_other, close_other]] =
            [push(OLD, 2, blocks), push(OTHER, 9, blocks)];
        let actions = vec![install(OLD, 1, blocks), add, close];
        assert_eq!(values(actions, blocks), [2], "one entry for three tasks");
        // The key is initialised again behind its push, with another one between.
        let [add, close] = push(OLD, 2, blocks);
        let actions = vec![
            install(OTHER, 8, blocks),
            install(OLD, 1, blocks),
            add,
            close,
            install(OLD, 3, blocks),
            add_other,
            close_other,
        ];
        assert_eq!(values(actions, blocks), [9, 2, 3, 9]);
        // What is removed has its tasks before, and none behind.
        let [add, close] = push(OLD, 2, blocks);
        let [late, close_late] = push(OLD, 4, blocks);
        let drop = ServerAction::Drop { key: OLD.key, generation: OLD.generation, slices: 1 };
        let other = install(OTHER, 5, blocks);
        let actions = vec![install(OLD, 1, blocks), add, close, drop, late, close_late, other];
        assert_eq!(values(actions, blocks), [2, 5]);
    }
}
