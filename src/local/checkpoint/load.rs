//! Loads a checkpoint into a store: the whole file is read and checked before anything changes.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use super::super::Local;
use super::super::apply::CallLimits;
use super::super::lock::WriteGuard;
use super::super::merger::{KeyRules, Merger, rule_of_keys};
use super::super::table::{Slot, Value};
use super::naming::{KeyNamer, check_name};
use super::{
    CODEC, CODEC_OPTIONS, FileRules, KeyParts, MASTER, OPTIMIZER, OPTIONS, PREFIX, RESIDUAL, RULE,
    STATE, WORKERS, add_key, add_numbers, at_file, check_byte_order,
};
use crate::checkpoint::{FileHeader, FileReader, ForeignTensors, KeyName, TensorEntry, split_part};
use crate::codec::{Codec, Residuals};
use crate::error::{Error, ErrorKind, Result, fail};
use crate::kernel::MAX_STATES;
use crate::key::Key;
use crate::optim::{KeptArrays, Optimizer, Stored};
use crate::tensor::{Array, Buffer, PageOffset, element_count};

/// Where in a page large arrays from `malloc` begin: a value is placed as if it had been copied
/// from one.
const CALLERS: usize = 16;

/// The contents of a file.
pub(super) struct Loaded {
    pub(super) rules: FileRules,
    pub(super) slots: Vec<Slot>,
    /// The names among the keys.
    pub(super) names: Vec<String>,
}

/// A key of a file: its slot has no memory yet.
struct LoadedKey<'a> {
    name: KeyName<'a>,
    slot: Slot,
    parts: KeyParts,
}

impl Local {
    /// Loads a checkpoint. Residuals are dropped if the number of workers differs.
    ///
    /// With a namer it takes values of other programs only, for the keys that it names.
    pub(crate) fn load(
        self: &Arc<Self>,
        path: &Path,
        namer: Option<KeyNamer<'_>>,
        workers: usize,
    ) -> Result<()> {
        check_byte_order("load")?;
        let at_file = at_file("load", path);
        let mut loaded = match (ForeignTensors::open(path).map_err(&at_file)?, namer) {
            (Some(foreign), _) => self.values_of(&foreign, namer).map_err(&at_file)?,
            (None, None) => Loaded::read(path).map_err(&at_file)?,
            (None, Some(_)) => {
                return Err(at_file(fail!(
                    Unsupported,
                    "it is a checkpoint of a store, whose keys have their names; load it without a \
                     function of names"
                )));
            }
        };
        if loaded.rules.workers != workers {
            loaded.slots.iter_mut().for_each(|slot| slot.value.get_mut().residuals = None);
        }
        let keys: Vec<Key> = loaded.slots.iter().map(|slot| slot.key).collect();
        let patience = self.patience();
        let limits = CallLimits { patience: &patience, cancel: None };
        self.in_turn("load", &keys, &patience, || {
            // Repeats if keys of the file have been added or removed during the wait.
            while !self.put(&mut loaded, limits)? {}
            Ok(())
        })
    }

    /// Puts keys and rules in their places, all or none. Gives false, and changes nothing, if keys
    /// of the file have been added or removed meanwhile.
    ///
    /// The values are locked first: while this waits for one, it holds neither the table nor the
    /// handling, and calls on other keys go on.
    fn put(&self, loaded: &mut Loaded, limits: CallLimits<'_>) -> Result<bool> {
        let Loaded { rules: FileRules { optimizer, keys, codec, .. }, slots, names } = loaded;
        let known: Vec<_> = slots.iter().map(|slot| self.keys.table.get(slot.key)).collect();
        for (known, slot) in known.iter().zip(&*slots) {
            known.as_ref().map_or(Ok(()), |known| self.alike(known, slot))?;
        }
        #[cfg(feature = "cuda")]
        self.move_to_devices(&known, slots, limits)?;
        let Some(locked) = self.lock_all(&known, limits)? else { return Ok(false) };
        let known_names = &self.keys.names;
        let intern = || names.iter().try_for_each(|name| known_names.intern(name).map(drop));
        self.change_handling_if(
            "load",
            |handling| {
                if let Some(optimizer) = optimizer {
                    handling.merger = Merger::Optimizer(Arc::clone(optimizer));
                }
                // A file with rules has those of all its keys.
                if optimizer.is_some() || !keys.is_empty() {
                    handling.rules = keys.clone();
                }
                handling.codec = codec.clone().or_else(|| handling.codec.take());
            },
            |handling| {
                self.check_keys("load", handling, &self.keys.table.slots())?;
                self.check_keys("load", handling, slots)?;
                let mut names = names.iter();
                names.try_for_each(|it| known_names.check(it)).map_err(|it| it.at("load"))?;
                self.keys.table.put(slots, &known, locked, intern)
            },
        )
    }

    /// Moves loaded values to the devices on which the keys' values are.
    #[cfg(feature = "cuda")]
    fn move_to_devices(
        &self,
        known: &[Option<Arc<Slot>>],
        slots: &mut [Slot],
        limits: CallLimits<'_>,
    ) -> Result<()> {
        for (known, slot) in known.iter().zip(slots) {
            let wanted = known.as_ref().and_then(|known| known.device());
            let place = || format!("load: {}", self.keys.names.label(slot.key));
            match (wanted, slot.device()) {
                (Some(ordinal), None) => {
                    let place = place();
                    let opened = self.devices.open(ordinal);
                    let applier = &self.applier;
                    let moved =
                        opened.and_then(|device| applier.move_to_device(slot, device, limits));
                    moved.map_err(|error| error.at(place))?;
                }
                // The first try has moved it, and the key was made again in host memory since.
                (None, Some(_)) if known.is_some() => {
                    let place = place();
                    return Err(fail!(
                        Timeout,
                        "{place}: other threads remove and add it; nothing has changed"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Locks the values of the keys that are known, in processing order, as every call does that
    /// holds several; None if one has been removed.
    fn lock_all<'a>(
        &'a self,
        known: &'a [Option<Arc<Slot>>],
        limits: CallLimits<'_>,
    ) -> Result<Option<Vec<Option<WriteGuard<'a, Value>>>>> {
        let mut locked: Vec<_> = known.iter().map(|_| None).collect();
        let mut waiting: Vec<_> = known.iter().zip(&mut locked).collect();
        waiting.sort_unstable_by_key(|(known, _)| known.as_ref().map(|slot| slot.order));
        for (known, place) in waiting {
            let Some(slot) = known else { continue };
            let value = self.applier.take("load", slot, limits)?;
            if value.is_removed() {
                return Ok(None);
            }
            *place = Some(value);
        }
        Ok(Some(locked))
    }

    /// Refuses a key of the file that differs from the store's.
    fn alike(&self, known: &Slot, slot: &Slot) -> Result<()> {
        if (known.dtype, &known.shape) == (slot.dtype, &slot.shape) {
            return Ok(());
        }
        let key = self.applier.names.label(known.key);
        let (stored, loaded) = (known.text(), slot.text());
        let text = format!(
            "load: {key} is {loaded} in the file, {stored} in the store; load it into another \
             store, or remove the key first"
        );
        if known.dtype == slot.dtype {
            return Err(Error::new(ErrorKind::ShapeMismatch, text));
        }
        Err(Error::new(ErrorKind::DtypeMismatch, text))
    }
}

impl Loaded {
    /// Reads and checks a whole file.
    fn read(path: &Path) -> Result<Self> {
        let mut reader = FileReader::open(path)?;
        let mut names = Vec::new();
        let header = reader.header();
        let (optimizer, keys) = rules_of(&header, &mut names)?;
        let codec = codec_of(&header)?.map(Arc::new);
        let rules = FileRules { optimizer, keys, codec, workers: workers_of(&header)? };
        let found = keys_of(&header.entries, &rules)?;
        let mut slots = Vec::with_capacity(found.len());
        for found in found {
            if let KeyName::Text(name) = found.name {
                names.push(name.to_owned());
            }
            let name = found.name;
            let slot = fill(found, &rules, &mut reader);
            slots.push(slot.map_err(|error| match error.kind() {
                ErrorKind::OutOfMemory => error.at(label(name)),
                // It names the tensor.
                _ => error,
            })?);
        }
        read_numbers(&mut slots, &rules, &mut reader)?;
        Ok(Self { rules, slots, names })
    }
}

/// The codec of a file.
fn codec_of(header: &FileHeader) -> Result<Option<Codec>> {
    let Some(name) = header.texts.get(CODEC) else { return Ok(None) };
    let options = header.texts.get(CODEC_OPTIONS).map_or("", String::as_str);
    Codec::new(name, options).map_err(|error| {
        let why = error.message();
        fail!(Unsupported, "its codec is not one of this library: {why}; use a newer library")
    })
}

/// The number of workers with residuals.
fn workers_of(header: &FileHeader) -> Result<usize> {
    let Some(text) = header.texts.get(WORKERS) else { return Ok(1) };
    let workers = text.parse().ok().filter(|workers| (2..=i32::MAX as usize).contains(workers));
    workers.ok_or_else(|| fail!(Corrupt, "its header is damaged: {text:?} workers"))
}

/// The optimizer of a file, and the rules of single keys, with their multipliers. Adds the names of these.
fn rules_of(
    header: &FileHeader,
    names: &mut Vec<String>,
) -> Result<(Option<Arc<Optimizer>>, KeyRules)> {
    let foreign = |error: Error| {
        let why = error.message();
        fail!(Unsupported, "its optimizer is not one of this library: {why}; use a newer library")
    };
    let options = header.texts.get(OPTIONS).map_or("", String::as_str);
    let of_store = header.texts.get(OPTIMIZER).map(|name| Optimizer::new(name, options));
    let mut of_store = of_store.transpose().map_err(foreign)?;
    let mut of_keys = HashMap::new();
    let texts = texts_of_keys(header)?;
    for &(what, key, text) in &texts {
        if let KeyName::Text(name) = key {
            names.push(check_name(name)?.to_owned());
        }
        if what == RULE {
            let (name, options) = text.split_once(' ').unwrap_or((text, ""));
            let merger = rule_of_keys(name, options).map_err(foreign)?;
            of_keys.extend(merger.map(|merger| (key_of(key), merger)));
        }
    }
    for (option, key, text) in texts.into_iter().filter(|(what, ..)| *what != RULE) {
        let damaged = || fail!(Corrupt, "its header is damaged: {option:?} is {text:?}");
        let (key, value) = (key_of(key), text.parse().map_err(|_| damaged())?);
        let optimizer = match of_keys.get_mut(&key) {
            Some(Merger::Optimizer(optimizer)) => Some(Arc::make_mut(optimizer)),
            Some(_) => None,
            None => of_store.as_mut(),
        };
        optimizer.ok_or_else(damaged)?.set_key(key, option, value).map_err(foreign)?;
    }
    Ok((of_store.map(Arc::new), KeyRules::from(of_keys)))
}

/// The texts of single keys in a header: what they are, the key, and the text.
fn texts_of_keys(header: &FileHeader) -> Result<Vec<(&str, KeyName<'_>, &str)>> {
    let mut found = Vec::new();
    for (name, text) in &header.texts {
        let Some((what, key)) = name.strip_prefix(PREFIX).and_then(|it| it.split_once(':')) else {
            continue;
        };
        let key = KeyName::parse(key);
        let key =
            key.ok_or_else(|| fail!(Corrupt, "its header is damaged: {name:?} is {text:?}"))?;
        found.push((what, key, text.as_str()));
    }
    Ok(found)
}

/// The keys of a file whose tensors are exactly those that [`Local::save`] would write for them.
fn keys_of<'a>(entries: &'a [TensorEntry], rules: &FileRules) -> Result<Vec<LoadedKey<'a>>> {
    let mut found: Vec<LoadedKey<'a>> = Vec::new();
    for entry in entries {
        if let Some(name) = KeyName::parse(&entry.name) {
            let parts = KeyParts { kept: Some(KeptArrays::default()), residuals: 0 };
            found.push(LoadedKey { name, slot: slot_of(name, entry)?, parts });
        } else if let (Some((part, _)), Some(last)) = (split_part(&entry.name), found.last_mut()) {
            let KeyParts { kept, residuals } = &mut last.parts;
            if let Some(kept) = kept {
                kept.states = MAX_STATES.min(kept.states + usize::from(part.starts_with(STATE)));
                kept.has_master |= part == MASTER;
            }
            *residuals += usize::from(part.starts_with(RESIDUAL));
        }
    }
    let mut expected = FileHeader::new();
    for LoadedKey { name, slot, parts } in &found {
        if rules.workers > 1 && ![0, rules.workers].contains(&parts.residuals) {
            let (label, workers) = (label(*name), rules.workers);
            return Err(fail!(
                Corrupt,
                "its header is damaged: {label} has not what each of {workers} workers has left"
            ));
        }
        add_key(&mut expected, *name, slot, rules, *parts);
    }
    add_numbers(&mut expected, rules, found.len());
    expected.seal();
    let mut pairs = expected.entries.iter().zip(entries);
    if let Some((expected, entry)) = pairs.find(|(expected, entry)| expected != entry) {
        let (name, text) = (&entry.name, entry.text());
        let (wanted, as_text) = (&expected.name, expected.text());
        return Err(fail!(
            Corrupt,
            "its header is damaged: {name:?}, {text}, is where {wanted:?}, {as_text}, must be"
        ));
    }
    if expected.entries.len() != entries.len() {
        return Err(fail!(Corrupt, "its header is damaged: a tensor is missing"));
    }
    check_hashes(found.iter().map(|found| (found.slot.key, found.name)))?;
    Ok(found)
}

/// A slot for a key of a file.
pub(super) fn slot_of(name: KeyName<'_>, entry: &TensorEntry) -> Result<Slot> {
    match name {
        KeyName::Text(text) => _ = check_name(text)?,
        KeyName::Number(number) if Key::from(number).is_name() => {
            return Err(fail!(Corrupt, "its header is damaged: key {number} is too large"));
        }
        KeyName::Number(_) => {}
    }
    // Checked with the header.
    let count = element_count(&entry.shape).unwrap_or(0);
    Slot::new(key_of(name), 0, entry.dtype, &entry.shape, count)
}

/// Refuses names of a file that have the same hash.
pub(super) fn check_hashes<'a>(keys: impl Iterator<Item = (Key, KeyName<'a>)>) -> Result<()> {
    let mut keys: Vec<_> = keys.collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    match keys.windows(2).find(|pair| pair[0].0 == pair[1].0) {
        None => Ok(()),
        Some(pair) => {
            let (one, other) = (label(pair[0].1), label(pair[1].1));
            Err(fail!(NameCollision, "{one} and {other} have the same hash"))
        }
    }
}

/// Memory for the value of a key.
pub(super) fn new_buffer(slot: &Slot) -> Result<Buffer> {
    let mut buffer = Buffer::zeroed(slot.bytes(), false)?;
    buffer.place(std::ptr::without_provenance(CALLERS), PageOffset::Stored);
    Ok(buffer)
}

/// Reads the value of a key and its state.
fn fill(found: LoadedKey<'_>, rules: &FileRules, reader: &mut FileReader) -> Result<Slot> {
    let LoadedKey { mut slot, parts: KeyParts { kept, residuals }, .. } = found;
    let mut buffer = new_buffer(&slot)?;
    reader.tensor(buffer.bytes_mut())?;
    let (array, count) = (Array::of(&buffer, slot.dtype), slot.count);
    let (stored, kept) = (Stored { array, count, rows: slot.rows() }, kept.unwrap_or_default());
    let mut read = |bytes: &mut [u8]| reader.tensor(bytes);
    let state = rules.optimizer_of(slot.key).map(|it| it.restore(&stored, kept, &mut read));
    let state = state.transpose()?;
    let restore =
        |it: &Arc<Codec>| Residuals::restore(it, residuals, count, buffer.as_ptr(), &mut read);
    let residuals = rules.codec.as_ref().map(restore).transpose()?;
    let value = slot.value.get_mut();
    (value.buffer, value.state, value.residuals) = (buffer, state, residuals);
    Ok(slot)
}

/// Reads the tensors with one number for each key.
fn read_numbers(slots: &mut [Slot], rules: &FileRules, reader: &mut FileReader) -> Result<()> {
    let mut read = |each: usize| {
        let mut bytes = vec![0; slots.len() * each * size_of::<u64>()];
        reader.tensor(&mut bytes).map(|()| bytes)
    };
    let numbers = rules.optimizes().then(|| Ok([read(1)?, read(1)?])).transpose()?;
    let rounds = rules.codec.as_ref().map(|_| read(rules.workers)).transpose()?;
    if let Some([updates, carried]) = numbers {
        let (updates, carried) = (updates.as_chunks().0, carried.as_chunks().0);
        for (slot, (updates, carried)) in slots.iter_mut().zip(updates.iter().zip(carried)) {
            let updates = count_of(*updates)?;
            if let Some(state) = &mut slot.value.get_mut().state {
                state.go_on_from(updates, f64::from_le_bytes(*carried));
            }
        }
    }
    let rounds = rounds.iter().flat_map(|it| it.as_chunks().0.chunks_exact(rules.workers));
    for (slot, rounds) in slots.iter_mut().zip(rounds) {
        let rounds: Vec<u64> =
            rounds.iter().map(|round| count_of(*round)).collect::<Result<_>>()?;
        if let Some(residuals) = &mut slot.value.get_mut().residuals {
            residuals.set_rounds(&rounds);
        }
    }
    Ok(())
}

/// How often a key has been pushed.
fn count_of(number: [u8; 8]) -> Result<u64> {
    let count = i64::from_le_bytes(number);
    u64::try_from(count).map_err(|_| fail!(Corrupt, "a key has been pushed {count} times"))
}

fn key_of(name: KeyName<'_>) -> Key {
    match name {
        KeyName::Number(number) => Key::from(number),
        KeyName::Text(text) => Key::of_name(text),
    }
}

/// A key as error texts show it.
pub(super) fn label(name: KeyName<'_>) -> String {
    match name {
        KeyName::Number(number) => format!("key {number}"),
        KeyName::Text(text) => format!("key {text:?}"),
    }
}
