//! Files of safetensors that other programs have written: tensors by name, in one file or in several that an
//! index names (also called: shards). They have no checksums.

use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::Deserialize;

use super::header::{FileHeader, MOST_BYTES, TensorEntry};
use super::reader::{failed, header_bytes, open_file};
use crate::error::{Result, fail};

/// The tensors of one file or of several.
pub(crate) struct ForeignTensors {
    files: Vec<OpenFile>,
    /// With the numbers of their files.
    tensors: Vec<(usize, TensorEntry)>,
}

struct OpenFile {
    file: File,
    /// Where its tensors begin.
    start: u64,
}

/// An index of Hugging Face: the file of each tensor.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl ForeignTensors {
    /// Reads and checks the headers of a file, or of those of an index, whose name ends with `.json`. None for
    /// a checkpoint of this library.
    ///
    /// # Errors
    /// `Io`, `Corrupt`, `Unsupported` for a dtype that no key can have.
    pub(crate) fn open(path: &Path) -> Result<Option<Self>> {
        if path.extension().is_some_and(|it| it == "json") {
            return Self::open_index(path).map(Some);
        }
        Ok(open_one(path)?.map(|(file, entries)| {
            let tensors = entries.into_iter().map(|entry| (0, entry)).collect();
            Self { files: vec![file], tensors }
        }))
    }

    fn open_index(path: &Path) -> Result<Self> {
        let about = fs::metadata(path).map_err(|error| failed(&error))?;
        if !about.is_file() || about.len() > MOST_BYTES as u64 {
            return Err(fail!(Corrupt, "it is no index of files: it has {} bytes", about.len()));
        }
        let text = fs::read(path).map_err(|error| failed(&error))?;
        let index: Index = serde_json::from_slice(&text)
            .map_err(|error| fail!(Corrupt, "it is no index of files: {error}"))?;
        let mut all = Self { files: Vec::new(), tensors: Vec::new() };
        let mut found: HashMap<&str, HashMap<String, (usize, TensorEntry)>> = HashMap::new();
        for (tensor, name) in &index.weight_map {
            if !found.contains_key(&**name) {
                let entries = all.open_part(path, name).map_err(|error| error.at(name))?;
                found.insert(name, entries);
            }
            let entry = found.get_mut(&**name).and_then(|entries| entries.remove(tensor));
            let missing = || fail!(Corrupt, "{name}: tensor {tensor:?} of the index is not there");
            all.tensors.push(entry.ok_or_else(missing)?);
        }
        if all.tensors.is_empty() {
            return Err(fail!(Corrupt, "it is an index without tensors"));
        }
        // In the order of their bytes.
        all.tensors.sort_unstable_by_key(|(file, entry)| (*file, entry.place.start));
        Ok(all)
    }

    /// Opens a file that an index names beside itself.
    fn open_part(
        &mut self,
        index: &Path,
        name: &str,
    ) -> Result<HashMap<String, (usize, TensorEntry)>> {
        let is_plain = Path::new(name).file_name().is_some_and(|it| it == name);
        if !is_plain {
            return Err(fail!(Corrupt, "an index may name only files beside itself"));
        }
        let opened = open_one(&index.with_file_name(name))?;
        let (file, entries) =
            opened.ok_or_else(|| fail!(Corrupt, "it is a checkpoint, and no part of a model"))?;
        let number = self.files.len();
        self.files.push(file);
        Ok(entries.into_iter().map(|entry| (entry.name.clone(), (number, entry))).collect())
    }

    pub(crate) fn entries(&self) -> impl Iterator<Item = &TensorEntry> {
        self.tensors.iter().map(|(_, entry)| entry)
    }

    /// Reads a tensor by its number, which has as many bytes as `into`.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub(crate) fn read(&self, tensor: usize, into: &mut [u8]) -> Result<()> {
        let (file, entry) = &self.tensors[tensor];
        let OpenFile { file, start } = &self.files[*file];
        debug_assert_eq!(entry.bytes(), into.len() as u64, "{}", entry.name);
        file.read_exact_at(into, start + entry.place.start).map_err(|error| failed(&error))
    }
}

/// A file and its tensors; None for a checkpoint of this library.
fn open_one(path: &Path) -> Result<Option<(OpenFile, Vec<TensorEntry>)>> {
    let (mut file, length) = open_file(path)?;
    let bytes = header_bytes(&mut file, length)?;
    let start = bytes.len() as u64;
    let entries = FileHeader::parse_foreign(&bytes[size_of::<u64>()..], length - start)?;
    Ok(entries.map(|entries| (OpenFile { file: file.into_inner(), start }, entries)))
}
