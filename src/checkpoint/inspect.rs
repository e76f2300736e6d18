//! Reads the contents of a file, damaged or not, without a store.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::header::{FileHeader, TensorEntry};
use super::reader::{PREFIX, checksums, failed, header_bytes, open_file};
use super::{CHECKSUM, KeyName, PIECE_BYTES, split_part};
use crate::error::Result;
use crate::tensor::DType;

/// Pushes of each key under the optimizer.
const UPDATES: &str = "#updates";

/// The contents of a checkpoint. Nothing in the file is trusted, and damage is part of the answer
/// as far as the header can be read.
///
/// ```
/// use kvstore::{Config, Inspection, Store};
///
/// # fn main() -> kvstore::Result<()> {
/// # let path = std::env::temp_dir().join(format!("kvstore-inspect-{}", std::process::id()));
/// let store = Store::open("local", &Config::new())?;
/// store.init(7u64, &[1.0f32; 6])?;
/// store.save(&path)?;
/// let found = Inspection::read(&path)?;
/// assert_eq!(found.tensors[0].name, "#7");
/// assert!(found.is_intact());
/// # std::fs::remove_file(&path).unwrap();
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inspection {
    /// The size of the file.
    pub bytes: u64,
    /// The texts of its header, such as `kvstore.optimizer`.
    pub texts: BTreeMap<String, String>,
    /// All tensors but padding and the checksums, in the order of the file.
    pub tensors: Vec<InspectedTensor>,
    /// Pushes of each key under the optimizer, in the order of the keys; empty without one.
    pub updates: Vec<i64>,
    /// Damage of the file as a whole.
    pub damage: Vec<String>,
}

/// A tensor of a checkpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InspectedTensor {
    /// The name in the file.
    pub name: String,
    /// The key that it belongs to, as the file names it; None for what belongs to all keys.
    pub key: Option<String>,
    /// The part of the key, such as `state.0`; None for the value.
    pub part: Option<String>,
    /// The type of its elements.
    pub dtype: DType,
    /// Its extents.
    pub shape: Vec<i64>,
    /// Its size.
    pub bytes: u64,
    /// Where in the file it begins.
    pub offset: u64,
    /// Whether its bytes match their checksum.
    pub state: TensorState,
    /// The digest of its bytes, as [`Store::digest`](crate::Store::digest) gives it; None if
    /// they are missing or unchecked.
    pub digest: Option<u64>,
}

/// Result of comparing the bytes of a tensor with their checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TensorState {
    /// The checksum fits.
    Intact,
    /// The checksum differs.
    Altered,
    /// The file ends before them.
    Missing,
    /// The bytes are present, and the checksums are not.
    Unchecked,
}

impl TensorState {
    /// The result as a word.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TensorState::Intact => "ok",
            TensorState::Altered => "altered",
            TensorState::Missing => "missing",
            TensorState::Unchecked => "unchecked",
        }
    }
}

impl Inspection {
    /// Reads a whole file.
    ///
    /// # Errors
    /// `Io`; `Corrupt` if the header cannot be read; `Unsupported` for files of other programs and of
    /// later versions; `OutOfMemory`.
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        let (mut file, bytes) = open_file(path.as_ref())?;
        let head = header_bytes(&mut file, bytes)?;
        let start = head.len() as u64;
        let header = FileHeader::read(&head[PREFIX..])?;
        let mut damage = Vec::new();
        let sums = match header.check(bytes - start) {
            Ok(()) => Some(checksums(&file, &header, start)?),
            Err(error) => {
                damage.push(error.message().to_owned());
                None
            }
        };
        if sums.as_ref().is_some_and(|sums| sums[0] != kvstore_checksum::crc32c(&head)) {
            damage.push("its header is altered: the checksum differs".to_owned());
        }
        let mut found =
            Self { bytes, texts: header.texts, tensors: Vec::new(), updates: Vec::new(), damage };
        for (index, entry) in header.entries.iter().enumerate() {
            let sum = sums.as_ref().and_then(|sums| sums.get(index + 1)).copied();
            found.add(entry, &file, start, sum)?;
        }
        Ok(found)
    }

    /// Whether a store can load it, as far as the bytes are concerned.
    #[must_use]
    pub fn is_intact(&self) -> bool {
        self.damage.is_empty()
            && self.tensors.iter().all(|tensor| tensor.state == TensorState::Intact)
    }

    fn add(
        &mut self,
        entry: &TensorEntry,
        file: &BufReader<File>,
        start: u64,
        sum: Option<u32>,
    ) -> Result<()> {
        if entry.name == CHECKSUM {
            return Ok(());
        }
        let offset = start.saturating_add(entry.place.start);
        let is_there = start.saturating_add(entry.place.end) <= self.bytes;
        let (mut updates, mut digest) = (Vec::new(), None);
        let keys = self.tensors.iter().filter(|tensor| tensor.part.is_none()).count() as u64;
        let state = match sum {
            _ if !is_there => TensorState::Missing,
            None => TensorState::Unchecked,
            Some(sum) => {
                // Made up sizes may be larger than memory.
                let most = size_of::<i64>() as u64 * keys;
                let is_kept = entry.name == UPDATES && entry.bytes() <= most;
                let kept = is_kept.then_some(&mut updates);
                let found = summed(file.get_ref(), offset, entry.bytes(), kept)?;
                digest = Some(found.1);
                if found.0 == sum { TensorState::Intact } else { TensorState::Altered }
            }
        };
        if entry.is_pad() && state != TensorState::Altered {
            return Ok(());
        }
        if state == TensorState::Intact && !updates.is_empty() {
            let (numbers, _) = updates.as_chunks();
            self.updates = numbers.iter().map(|number| i64::from_le_bytes(*number)).collect();
        }
        let (key, part) = place_of(&entry.name);
        self.tensors.push(InspectedTensor {
            name: entry.name.clone(),
            key,
            part,
            dtype: entry.dtype,
            shape: entry.shape.clone(),
            bytes: entry.bytes(),
            offset,
            state,
            digest,
        });
        Ok(())
    }
}

/// The key and the part that the name of a tensor stands for.
fn place_of(name: &str) -> (Option<String>, Option<String>) {
    if KeyName::parse(name).is_some() {
        return (Some(name.to_owned()), None);
    }
    match split_part(name) {
        Some((part, key)) => (Some(key.to_string()), Some(part.to_owned())),
        None => (None, None),
    }
}

/// The checksum and the digest of a range of a file, all of which exists. Appends the bytes to `kept`.
fn summed(
    file: &File,
    from: u64,
    bytes: u64,
    mut kept: Option<&mut Vec<u8>>,
) -> Result<(u32, u64)> {
    let mut buffer = vec![0; PIECE_BYTES];
    let (mut sum, mut digest, mut done) = (0, 0, 0);
    while done < bytes {
        let count = usize::try_from(bytes - done).unwrap_or(PIECE_BYTES).min(PIECE_BYTES);
        let piece = &mut buffer[..count];
        file.read_exact_at(piece, from + done).map_err(|error| failed(&error))?;
        sum = kvstore_checksum::append(sum, piece);
        digest = kvstore_checksum::crc64::append(digest, piece);
        if let Some(kept) = &mut kept {
            kept.extend_from_slice(piece);
        }
        done += count as u64;
    }
    Ok((sum, digest))
}
