//! A store on its way into a file.

use std::path::Path;
use std::sync::Arc;

use super::super::apply::Limits;
use super::super::local::Local;
use super::super::merger::Merger;
use super::super::table::{Slot, Value};
use super::{OPTIMIZER, OPTIONS, PREFIX, VERSION, add_key, add_numbers, at_file, check_byte_order};
use crate::checkpoint::{Header, KeyName, Writer};
use crate::error::{Result, fail};
use crate::key::{Key, Names};
use crate::optim::{Kept, Optimizer};

/// What a file will have.
struct Survey {
    optimizer: Option<Arc<Optimizer>>,
    keys: Vec<Found>,
}

/// A key, and what the optimizer had for it when it was looked at.
struct Found {
    slot: Arc<Slot>,
    kept: Option<Kept>,
}

impl Local {
    /// Writes a checkpoint.
    pub(in super::super) fn save(self: &Arc<Self>, path: &Path) -> Result<()> {
        check_byte_order("save")?;
        let patience = self.patience();
        let limits = Limits { patience: &patience, cancel: None };
        let keys: Vec<Key> = self.keys.table.slots().iter().map(|slot| slot.key).collect();
        // What this thread queued before comes first. Others need not wait for the disk: each key
        // is locked while it is written.
        self.in_turn("save", &keys, &patience, || Ok(()))?;
        while !self.try_save(path, limits)? {
            if patience.end().has_passed() {
                return Err(fail!(
                    Timeout,
                    "save: other threads add and remove keys, or set optimizers, all the time; \
                     nothing has changed"
                ));
            }
        }
        Ok(())
    }

    /// Writes a checkpoint, unless keys or what is kept for them come or go meanwhile: the header,
    /// which is written first, says what there is.
    fn try_save(&self, path: &Path, limits: Limits<'_>) -> Result<bool> {
        let at_file = at_file("save", path);
        let survey = self.survey(limits)?;
        let mut writer = Writer::create(path, survey.header(&self.keys.names)).map_err(&at_file)?;
        let (mut updates, mut carried) = (Vec::new(), Vec::new());
        for Found { slot, kept } in &survey.keys {
            let value = self.applier.look("save", slot, limits)?;
            if value.removed || survey.kept(&value) != *kept {
                return Ok(false);
            }
            let state = value.state.as_ref().filter(|_| kept.is_some());
            let arrays = state.iter().flat_map(|state| state.buffers());
            let mut buffers = std::iter::once(&value.buffer).chain(arrays);
            buffers.try_for_each(|buffer| writer.tensor(buffer.bytes())).map_err(&at_file)?;
            let (count, number) = state.map_or((0, 0.0), |state| state.progress());
            updates.extend(count.to_le_bytes());
            carried.extend(number.to_le_bytes());
        }
        let numbers = [updates, carried];
        let mut numbers = numbers.iter().filter(|_| survey.optimizer.is_some());
        numbers
            .try_for_each(|bytes| writer.tensor(bytes))
            .and_then(|()| writer.finish())
            .map_err(&at_file)?;
        Ok(true)
    }

    fn survey(&self, limits: Limits<'_>) -> Result<Survey> {
        let optimizer = match &*self.merger.read() {
            Merger::Optimizer(optimizer) => Some(Arc::clone(optimizer)),
            Merger::Assign | Merger::Updater(_) => None,
        };
        let mut survey = Survey { optimizer, keys: Vec::new() };
        for slot in self.keys.table.slots() {
            let value = self.applier.look("save", &slot, limits)?;
            let (removed, kept) = (value.removed, survey.kept(&value));
            drop(value);
            if !removed {
                survey.keys.push(Found { slot, kept });
            }
        }
        Ok(survey)
    }
}

impl Survey {
    /// What the optimizer has for a key.
    fn kept(&self, value: &Value) -> Option<Kept> {
        self.optimizer.as_ref()?.kept(value.state.as_deref())
    }

    fn header(&self, names: &Names) -> Header {
        let mut header = Header::new();
        let mut say = |name: String, text: String| header.texts.insert(name, text);
        say(VERSION.to_owned(), crate::VERSION.to_owned());
        if let Some(optimizer) = &self.optimizer {
            say(OPTIMIZER.to_owned(), optimizer.name().to_owned());
            say(OPTIONS.to_owned(), optimizer.options_text());
            for (key, option, value) in optimizer.multipliers() {
                let name = with_name(names, key, |name| format!("{PREFIX}{option}:{name}"));
                say(name, value.to_string());
            }
        }
        let optimizer = self.optimizer.as_deref();
        for Found { slot, kept } in &self.keys {
            let kept = kept.unwrap_or_default();
            with_name(names, slot.key, |name| add_key(&mut header, name, slot, optimizer, kept));
        }
        add_numbers(&mut header, optimizer, self.keys.len());
        header
    }
}

/// Calls `work` with a key as files name it. A name that is not known here is its number.
fn with_name<T>(names: &Names, key: Key, work: impl FnOnce(KeyName<'_>) -> T) -> T {
    let text = names.with(key, |name| name.to_string_lossy().into_owned());
    work(text.as_deref().map_or(KeyName::Number(key.id()), KeyName::Text))
}
