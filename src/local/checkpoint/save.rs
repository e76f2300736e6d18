//! Saves a store to a checkpoint.

use std::path::Path;
use std::sync::Arc;

use super::super::Local;
use super::super::apply::CallLimits;
use super::super::merger::Handling;
use super::super::table::{Slot, Value};
use super::{
    CODEC, CODEC_OPTIONS, FileRules, KeyParts, OPTIMIZER, OPTIONS, PREFIX, RULE, VERSION, WORKERS,
    add_key, add_numbers, at_file, check_byte_order,
};
use crate::checkpoint::{FileHeader, FileWriter, KeyName};
use crate::codec::Residuals;
#[cfg(feature = "cuda")]
use crate::device::KeyMemory;
use crate::error::{Result, fail};
use crate::key::{Key, KeyNames};
use crate::optim::OptimizerState;
use crate::tensor::Buffer;

/// The contents of a file to be written.
struct Snapshot {
    rules: FileRules,
    keys: Vec<SavedKey>,
}

/// A key, and which state it had when the header was made.
struct SavedKey {
    slot: Arc<Slot>,
    parts: KeyParts,
}

impl Local {
    /// Writes a checkpoint. The residuals of a key are those of so many workers, one of each, or of
    /// a single worker, one for each value.
    pub(crate) fn save(self: &Arc<Self>, path: &Path, workers: usize) -> Result<()> {
        check_byte_order("save")?;
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        let keys: Vec<Key> = self.keys.table.slots().iter().map(|slot| slot.key).collect();
        // Operations that this thread queued finish first. Other threads need not wait for the
        // disk: each key is locked only while it is written.
        self.in_turn("save", &keys, &patience, || Ok(()))?;
        while !self.try_save(path, workers, limits)? {
            if patience.end().is_over() {
                return Err(fail!(
                    Timeout,
                    "save: other threads add and remove keys, or set optimizers, all the time; \
                     nothing has changed"
                ));
            }
        }
        Ok(())
    }

    /// Writes a checkpoint, unless keys or their state are added or removed meanwhile: the header,
    /// which is written first, lists them.
    fn try_save(&self, path: &Path, workers: usize, limits: CallLimits<'_>) -> Result<bool> {
        let at_file = at_file("save", path);
        let snapshot = self.snapshot(workers, limits)?;
        let mut writer =
            FileWriter::create(path, snapshot.header(&self.keys.names)).map_err(&at_file)?;
        let (mut updates, mut carried, mut rounds) = (Vec::new(), Vec::new(), Vec::new());
        for SavedKey { slot, parts } in &snapshot.keys {
            let value = self.applier.look("save", slot, limits)?;
            if value.is_removed() || snapshot.parts(slot, &value) != *parts {
                return Ok(false);
            }
            let state = value.state.as_ref().filter(|_| parts.kept.is_some());
            let residuals = snapshot.residuals(&value);
            let copies = self.copies("save", slot, &value, limits)?;
            let arrays = state.iter().flat_map(|state| state.buffers());
            let unsent = residuals.iter().flat_map(|residuals| residuals.buffers());
            let kept = 1 + parts.kept.map_or(0, |it| it.states + usize::from(it.has_master));
            let own = std::iter::once(&value.buffer).filter(|_| copies.is_empty()).chain(arrays);
            let mut buffers = copies.iter().take(kept).chain(own).chain(unsent);
            buffers.try_for_each(|buffer| writer.tensor(buffer.bytes())).map_err(&at_file)?;
            let (count, number) = state.map_or((0, 0.0), OptimizerState::progress);
            updates.extend(count.to_le_bytes());
            carried.extend(number.to_le_bytes());
            for worker in 0..workers {
                let round = residuals.and_then(|it| it.rounds().get(worker));
                rounds.extend(round.copied().unwrap_or(0).to_le_bytes());
            }
        }
        let (optimizes, compresses) = (snapshot.rules.optimizes(), snapshot.rules.codec.is_some());
        let numbers = [(optimizes, updates), (optimizes, carried), (compresses, rounds)];
        let mut numbers = numbers.iter().filter(|(wanted, _)| *wanted);
        numbers
            .try_for_each(|(_, bytes)| writer.tensor(bytes))
            .and_then(|()| writer.finish())
            .map_err(&at_file)?;
        Ok(true)
    }

    /// Copies of the arrays of a key on a device; empty if they are in host memory.
    #[cfg(feature = "cuda")]
    pub(in crate::local) fn copies(
        &self,
        call: &'static str,
        slot: &Slot,
        value: &Value,
        limits: CallLimits<'_>,
    ) -> Result<Vec<Buffer>> {
        let download = |memory: &KeyMemory| self.applier.download(call, slot, memory, limits);
        value.device.as_deref().map_or(Ok(Vec::new()), download)
    }

    #[cfg(not(feature = "cuda"))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "the other build copies")]
    pub(in crate::local) fn copies(
        &self,
        _: &'static str,
        _: &Slot,
        _: &Value,
        _: CallLimits<'_>,
    ) -> Result<Vec<Buffer>> {
        Ok(Vec::new())
    }

    fn snapshot(&self, workers: usize, limits: CallLimits<'_>) -> Result<Snapshot> {
        let handling = self.handling.read().clone();
        let optimizer = handling.merger.optimizer().cloned();
        let Handling { rules: keys, codec, .. } = handling;
        let rules = FileRules { optimizer, keys, codec, workers };
        let mut snapshot = Snapshot { rules, keys: Vec::new() };
        for slot in self.keys.table.slots() {
            let value = self.applier.look("save", &slot, limits)?;
            let (removed, parts) = (value.is_removed(), snapshot.parts(&slot, &value));
            drop(value);
            if !removed {
                snapshot.keys.push(SavedKey { slot, parts });
            }
        }
        Ok(snapshot)
    }
}

impl Snapshot {
    fn parts(&self, slot: &Slot, value: &Value) -> KeyParts {
        let optimizer = self.rules.optimizer_of(slot.key);
        let kept = optimizer.and_then(|it| it.kept(value.state.as_ref()));
        #[cfg(feature = "cuda")]
        let kept = kept.map(|kept| value.device.as_ref().map_or(kept, |memory| memory.kept()));
        let residuals = self.residuals(value).map_or(0, |it| it.buffers().len());
        KeyParts { kept, residuals }
    }

    /// The codec residuals of a key.
    fn residuals<'a>(&self, value: &'a Value) -> Option<&'a Residuals> {
        let codec = self.rules.codec.as_ref()?;
        value.residuals.as_deref().filter(|residuals| residuals.belong_to(codec))
    }

    fn header(&self, names: &KeyNames) -> FileHeader {
        let mut header = FileHeader::new();
        let mut say = |name: String, text: String| header.texts.insert(name, text);
        say(VERSION.to_owned(), crate::VERSION.to_owned());
        if let Some(optimizer) = &self.rules.optimizer {
            say(OPTIMIZER.to_owned(), optimizer.name().to_owned());
            say(OPTIONS.to_owned(), optimizer.options_text());
            let of_store = optimizer.multipliers().into_iter();
            for (key, option, value) in of_store.filter(|it| self.rules.keys.get(it.0).is_none()) {
                say(text_name(names, option, key), value.to_string());
            }
        }
        for (key, merger) in self.rules.keys.iter() {
            say(text_name(names, RULE, key), merger.saved_text());
            let multipliers = merger.optimizer().map(|it| it.multipliers()).unwrap_or_default();
            for (_, option, value) in multipliers.into_iter().filter(|it| it.0 == key) {
                say(text_name(names, option, key), value.to_string());
            }
        }
        if let Some(codec) = &self.rules.codec {
            say(CODEC.to_owned(), codec.name().to_owned());
            say(CODEC_OPTIONS.to_owned(), codec.params());
            if self.rules.workers > 1 {
                say(WORKERS.to_owned(), self.rules.workers.to_string());
            }
        }
        for SavedKey { slot, parts } in &self.keys {
            with_name(names, slot.key, |name| {
                add_key(&mut header, name, slot, &self.rules, *parts);
            });
        }
        add_numbers(&mut header, &self.rules, self.keys.len());
        header
    }
}

/// The name of a text of a single key.
fn text_name(names: &KeyNames, what: &str, key: Key) -> String {
    with_name(names, key, |name| format!("{PREFIX}{what}:{name}"))
}

/// Calls `work` with a key as files name it. A name that is not interned here is its number.
fn with_name<T>(names: &KeyNames, key: Key, work: impl FnOnce(KeyName<'_>) -> T) -> T {
    let text = names.with(key, |name| name.to_string_lossy().into_owned());
    work(text.as_deref().map_or(KeyName::Number(key.id()), KeyName::Text))
}
