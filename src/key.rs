//! Keys: integers and interned names, which never alias, and the names of a store.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use crate::error::{Result, fail};
use crate::sys::sync::RwLock;
use crate::tensor::DType;

/// A key: an integer of yours, 0 to 2^63-1, or the number of an interned name, top bit set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Key(u64);

const NAME: u64 = 1 << 63;

/// The key of the second hash of names: the bytes 0 to 15, that of the published test vectors.
#[cfg(feature = "dist")]
const SECOND: (u64, u64) = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);

impl Key {
    /// The key of a name: the top bit and the low 63 bits of SipHash-2-4 (zero key) over its bytes.
    #[must_use]
    pub fn of_name(name: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        Self(hasher.finish() | NAME)
    }

    /// A second hash of a name, independent of its key: SipHash-2-4 with the key of bytes 0 to 15, and 1
    /// where that is 0, which stands for no name. Processes of a job compare it, because names that have
    /// one key are one key there.
    #[cfg(feature = "dist")]
    pub(crate) fn second_hash_of(name: &[u8]) -> u64 {
        let mut hasher = SipHasher24::new_with_keys(SECOND.0, SECOND.1);
        hasher.write(name);
        hasher.finish().max(1)
    }

    /// The number of the C interface.
    #[must_use]
    pub fn id(self) -> u64 {
        self.0
    }

    /// Whether it stands for a name.
    #[must_use]
    pub fn is_name(self) -> bool {
        self.0 & NAME != 0
    }
}

impl From<u64> for Key {
    fn from(id: u64) -> Self {
        Self(id)
    }
}

impl From<u32> for Key {
    fn from(id: u32) -> Self {
        Self(id.into())
    }
}

impl TryFrom<i64> for Key {
    type Error = crate::Error;

    fn try_from(id: i64) -> Result<Self> {
        match u64::try_from(id) {
            Ok(id) => Ok(Self(id)),
            Err(_) => Err(fail!(InvalidArgument, "key {id} is negative; integer keys start at 0")),
        }
    }
}

/// The first value's type: what a key was initialised with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// The element type.
    pub dtype: DType,
    /// The extent of each dimension.
    pub shape: Box<[i64]>,
}

/// The last round of a key: who took part in it.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct KeyRound {
    /// In a job the last closed round of the key; in a local store its pushes since its init. 0 before the first.
    pub round: u64,
    /// Number of workers whose pushes the round has.
    pub contributors: u64,
    /// Sum of the weights of these pushes; 0 if they had none.
    pub total_weight: f64,
}

/// The interned names of a store. None is ever freed, so that pointers to them stay valid.
#[derive(Default)]
pub(crate) struct KeyNames {
    by_key: RwLock<HashMap<Key, CString>>,
}

impl KeyNames {
    pub(crate) fn intern(&self, name: &str) -> Result<Key> {
        let Ok(text) = CString::new(name) else {
            return Err(fail!(InvalidArgument, "intern: a name must not contain a NUL byte"));
        };
        let key = Key::of_name(name);
        if let Some(known) = self.by_key.read().get(&key) {
            return same_name(key, known, &text);
        }
        let mut names = self.by_key.write();
        let known = names.entry(key).or_insert_with(|| text.clone());
        same_name(key, known, &text)
    }

    /// Refuses a name that cannot be interned.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        let text = CString::new(name).unwrap_or_default();
        let key = Key::of_name(name);
        self.by_key.read().get(&key).map_or(Ok(key), |known| same_name(key, known, &text)).map(drop)
    }

    /// The name of a key. The pointer inside stays valid as long as the store.
    pub(crate) fn with<T>(&self, key: Key, use_name: impl FnOnce(&CStr) -> T) -> Option<T> {
        self.by_key.read().get(&key).map(|name| use_name(name))
    }

    /// Visits all names.
    #[cfg(feature = "dist")]
    pub(crate) fn each(&self, mut visit: impl FnMut(Key, &CStr)) {
        self.by_key.read().iter().for_each(|(key, name)| visit(*key, name));
    }

    pub(crate) fn knows(&self, key: Key) -> bool {
        self.by_key.read().contains_key(&key)
    }

    /// The second hash of a key's name; 0 for an integer, and for a name that is not known here.
    #[cfg(feature = "dist")]
    pub(crate) fn second_hash(&self, key: Key) -> u64 {
        if !key.is_name() {
            return 0;
        }
        self.with(key, |name| Key::second_hash_of(name.to_bytes())).unwrap_or(0)
    }

    /// A key as error texts show it: `key 7`, `key "fc1.weight"`.
    pub(crate) fn label(&self, key: Key) -> String {
        if !key.is_name() {
            return format!("key {}", key.id());
        }
        self.with(key, |name| format!("key {:?}", name.to_string_lossy())).unwrap_or_else(|| {
            format!("key {:#018x} (a name never interned in this store)", key.id())
        })
    }
}

fn same_name(key: Key, known: &CStr, name: &CStr) -> Result<Key> {
    if known == name {
        return Ok(key);
    }
    Err(fail!(
        NameCollision,
        "intern: the names {:?} and {:?} have the same hash {:#018x}; rename one of them",
        known.to_string_lossy(),
        name.to_string_lossy(),
        key.id()
    ))
}

#[cfg(test)]
mod tests {
    use super::Key;

    #[test]
    fn names_hash_by_siphash_2_4_with_a_zero_key() {
        // The reference implementation (Aumasson and Bernstein, 2012) with a zero key.
        assert_eq!(Key::of_name("").id(), 0x1e92_4b9d_7377_00d7 | 1 << 63);
        assert!(Key::of_name("fc1.weight").is_name());
    }

    #[cfg(feature = "dist")]
    #[test]
    fn second_hashes_are_siphash_2_4_with_the_key_of_the_published_vectors() {
        let bytes: Vec<u8> = (0..15).collect();
        assert_eq!(Key::second_hash_of(&bytes), 0xa129_ca61_49be_45e5);
        assert_eq!(Key::second_hash_of(b""), 0x726f_db47_dd0e_0e31);
        // The pair of docs/use/semantics.md.
        let (one, other) = ("zydjx7v77kn7f", "57er3422k45qg");
        assert_eq!(Key::of_name(one), Key::of_name(other));
        let second = |name: &str| Key::second_hash_of(name.as_bytes());
        assert_ne!(second(one), second(other));
    }

    #[cfg(feature = "dist")]
    #[test]
    fn the_documented_second_hashes_are_right() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/use/semantics.md");
        let text = std::fs::read_to_string(page).unwrap();
        let table = text.split("| name | second hash |\n|---|---|\n").nth(1).unwrap();
        let mut checked = 0;
        for row in table.lines().take_while(|row| row.starts_with('|')) {
            let mut cells = row.trim_matches('|').split('|').map(|it| it.trim().trim_matches('`'));
            let (name, hash) = (cells.next().unwrap(), cells.next().unwrap());
            let name = if name == "(empty)" { "" } else { name };
            assert_eq!(format!("{:016x}", Key::second_hash_of(name.as_bytes())), hash, "{name:?}");
            checked += 1;
        }
        assert_eq!(checked, 6);
    }

    #[test]
    fn negative_integers_are_refused() {
        assert!(Key::try_from(-4i64).is_err());
        assert_eq!(Key::try_from(4i64).unwrap(), Key::from(4u64));
    }
}
