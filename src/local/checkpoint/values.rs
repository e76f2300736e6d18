//! Values of files that other programs have written, for the keys that the caller names.

use super::super::Local;
use super::super::merger::KeyRules;
use super::super::table::Slot;
use super::FileRules;
use super::load::{Loaded, check_hashes, label, new_buffer, slot_of};
use super::naming::{KeyNamer, Names};
use crate::checkpoint::{ForeignTensors, KeyName};
use crate::error::Result;
use crate::sys::DefaultFloats;
use crate::tensor::{Array, Lent};

impl Local {
    /// The values of a file of another program. Floats become those of the keys that are there.
    pub(super) fn values_of(
        &self,
        foreign: &ForeignTensors,
        namer: Option<KeyNamer<'_>>,
    ) -> Result<Loaded> {
        let rules =
            FileRules { optimizer: None, keys: KeyRules::default(), codec: None, workers: 1 };
        let mut given = Names::new(namer, self.applier.serial);
        let (mut slots, mut names) = (Vec::new(), Vec::new());
        for (index, entry) in foreign.entries().enumerate() {
            let Some(text) = given.next(&entry.name)? else { continue };
            let name = KeyName::Text(&text);
            let mut slot = slot_of(name, entry)?;
            let mut buffer = new_buffer(&slot).map_err(|error| error.at(label(name)))?;
            foreign.read(index, &mut buffer.bytes_mut()[..slot.bytes()])?;
            slot.value.get_mut().buffer = buffer;
            slots.push(self.as_known(slot).map_err(|error| error.at(label(name)))?);
            names.push(text);
        }
        let keys = slots.iter().map(|slot| slot.key);
        check_hashes(keys.zip(names.iter().map(|it| KeyName::Text(it))))?;
        Ok(Loaded { rules, slots, names })
    }

    /// A slot of floats in the dtype of the key that is there, if that is another one of floats.
    fn as_known(&self, mut slot: Slot) -> Result<Slot> {
        let known = self.keys.table.get(slot.key);
        let Some(dtype) = known
            .map(|known| known.dtype)
            .filter(|&dtype| dtype != slot.dtype && dtype.is_float() && slot.dtype.is_float())
        else {
            return Ok(slot);
        };
        let mut wanted = Slot::new(slot.key, slot.order, dtype, &slot.shape, slot.count)?;
        let buffer = new_buffer(&wanted)?;
        let _floats = DefaultFloats::enter();
        let from = Lent::of(Array::of(&slot.value.get_mut().buffer, slot.dtype));
        self.keys.team.sum(&wanted, &[from], &buffer)?;
        wanted.value.get_mut().buffer = buffer;
        Ok(wanted)
    }
}
