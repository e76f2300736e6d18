//! Keys of a store: their names, what they hold, and digests of it.

use std::ffi::c_char;

use super::{CallClass, Store};
use crate::digest::KeyDigest;
use crate::error::{Error, Result, fail};
use crate::key::{Key, KeyInfo, KeyRound};
use crate::spans;

impl Store {
    /// Key of a name; the store keeps the name.
    ///
    /// # Errors
    /// `NameCollision` if another name of this store has the same hash.
    pub fn intern(&self, name: &str) -> Result<Key> {
        self.enter(CallClass::Now, |local| local.keys.names.intern(name))
    }

    /// The name that a key was interned with.
    ///
    /// # Errors
    /// `KeyNotFound` for an integer key, and for a name that was not interned in this store.
    pub fn key_name(&self, key: Key) -> Result<String> {
        self.enter(CallClass::Look, |local| {
            let name = local.keys.names.with(key, |name| name.to_string_lossy().into_owned());
            name.ok_or_else(|| no_name(key))
        })
    }

    /// The name of a key as a C string that lives as long as the store.
    pub(crate) fn name_ptr(&self, key: Key) -> Result<*const c_char> {
        self.enter(CallClass::Look, |local| {
            local.keys.names.with(key, std::ffi::CStr::as_ptr).ok_or_else(|| no_name(key))
        })
    }

    /// A key's element type and shape.
    ///
    /// # Errors
    /// `KeyNotFound`.
    pub fn key_info(&self, key: impl Into<Key>) -> Result<KeyInfo> {
        let key = key.into();
        if let Some(remote) = &self.remote
            && self.callback().is_none()
        {
            self.enter(CallClass::Look, |_| remote.look_up("key_info", key))?;
        }
        self.enter(CallClass::Look, |local| match local.keys.table.get(key) {
            Some(slot) => Ok(KeyInfo { dtype: slot.dtype, shape: slot.shape.as_slice().into() }),
            None => {
                Err(fail!(KeyNotFound, "key_info: {} is not there", local.keys.names.label(key)))
            }
        })
    }

    /// The initialised keys: integers ascending, then names in order of their init.
    pub fn keys(&self) -> Result<Vec<Key>> {
        self.enter(CallClass::Now, |local| {
            Ok(local.keys.table.slots().iter().map(|slot| slot.key).collect())
        })
    }

    /// Round and digests of each key: what this thread's earlier pushes have made of it, at one moment between
    /// two rounds. docs/use/semantics.md defines the digests; equal bits have equal ones, however they were
    /// merged.
    ///
    /// # Errors
    /// `KeyNotFound`; `Timeout` if a key stays in use, or in a job a worker's push is missing.
    pub fn digest(&self, keys: &[Key]) -> Result<Vec<KeyDigest>> {
        let _span = spans::enter!("digest", keys = keys.len());
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.digest(keys),
            None => local.digest(keys),
        })
    }

    /// The last round of a key with this thread's pushes: how many workers took part in it, and the sum of their
    /// weights.
    ///
    /// # Errors
    /// As [`Store::digest`]; the error of the round if it was not merged.
    pub fn last_round(&self, key: impl Into<Key>) -> Result<KeyRound> {
        let key = key.into();
        self.enter(CallClass::Work, |local| match &self.remote {
            Some(remote) => remote.last_round(key),
            None => local.last_round(key),
        })
    }
}

fn no_name(key: Key) -> Error {
    fail!(KeyNotFound, "key_name: key {} was not interned in this store", key.id())
}
