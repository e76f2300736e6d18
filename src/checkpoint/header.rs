//! The header of a file: which tensors it has, where they lie, and texts by name.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::{CHECKSUM, PAD};
use crate::error::{Result, fail};
use crate::tensor::{DType, element_count, text_of};

/// The longest header that readers of the format accept.
pub(super) const MOST_BYTES: usize = 100_000_000;

/// Where the format keeps texts.
const METADATA: &str = "__metadata__";

/// Marks files of this library; its value is the version of what the tensors mean.
const FORMAT: (&str, &str) = ("kvstore.format", "1");

/// Begins the name of a text: the dtype of the tensor that the rest names. The format has another one
/// for it.
const DTYPE: &str = "kvstore.dtype:";

/// Dtypes of the format that no key can have.
const OTHER_DTYPES: &[&str] = &["F4", "F6_E2M3", "F6_E3M2"];

/// A tensor of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TensorEntry {
    pub(crate) name: String,
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<i64>,
    /// Its bytes, from the end of the header on.
    pub(super) place: Range<u64>,
}

impl TensorEntry {
    pub(crate) fn bytes(&self) -> u64 {
        self.place.end - self.place.start
    }

    /// Dtype and shape as people write them.
    pub(crate) fn text(&self) -> String {
        text_of(self.dtype, &self.shape)
    }

    /// The member of the header that stands for it.
    fn json(&self) -> String {
        let (name, (dtype, extent)) = (quote(&self.name), code(self.dtype));
        let shape = self.shape.iter().chain(&extent).map(ToString::to_string);
        let shape = shape.collect::<Vec<_>>().join(",");
        let (start, end) = (self.place.start, self.place.end);
        format!(
            "{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{start},{end}]}}"
        )
    }

    /// Takes a dtype that the format does not have, if that is how the tensor is written.
    fn restore(&mut self, dtype: DType) -> Option<()> {
        let (written, extent) = code(dtype);
        let has_parts = extent.is_some() && code(self.dtype) == (written, None);
        if !has_parts || self.shape.last().copied() != extent {
            return None;
        }
        self.shape.pop();
        self.dtype = dtype;
        Some(())
    }

    pub(crate) fn is_pad(&self) -> bool {
        self.name.starts_with(PAD)
    }
}

/// The tensors in the order of their bytes, and texts.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct FileHeader {
    pub(crate) texts: BTreeMap<String, String>,
    pub(crate) entries: Vec<TensorEntry>,
}

impl FileHeader {
    pub(crate) fn new() -> Self {
        let (format, version) = FORMAT;
        let texts = BTreeMap::from([(format.to_owned(), version.to_owned())]);
        Self { texts, entries: Vec::new() }
    }

    /// Adds a tensor behind the others.
    pub(crate) fn add(&mut self, name: String, dtype: DType, shape: &[i64]) {
        let (size, align) = (dtype.size() as u64, dtype.align() as u64);
        let bytes = element_count(shape).unwrap_or(0) as u64 * size;
        let odd = self.end() % align;
        if odd > 0 {
            let (name, pad) = (format!("{PAD}{}", self.entries.len()), align - odd);
            self.put(name, DType::U8, vec![pad.cast_signed()], pad);
        }
        self.put(name, dtype, shape.to_vec(), bytes);
    }

    /// Adds the checksums; no tensor may follow them.
    pub(crate) fn seal(&mut self) {
        let bytes = checksum_bytes(self.entries.len());
        self.put(CHECKSUM.to_owned(), DType::U8, vec![bytes.cast_signed()], bytes);
    }

    fn put(&mut self, name: String, dtype: DType, shape: Vec<i64>, bytes: u64) {
        let start = self.end();
        self.entries.push(TensorEntry { name, dtype, shape, place: start..start + bytes });
    }

    /// Where the last tensor ends.
    fn end(&self) -> u64 {
        self.entries.last().map_or(0, |last| last.place.end)
    }

    /// The encoded header of a file, with its length in front.
    ///
    /// # Errors
    /// `Unsupported` if it is longer than the format allows.
    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        let mut texts = self.texts.clone();
        let others = self.entries.iter().filter(|entry| code(entry.dtype).1.is_some());
        texts.extend(others.map(|it| (format!("{DTYPE}{}", it.name), it.dtype.name().to_owned())));
        let texts = texts.iter().map(|(name, text)| format!("{}:{}", quote(name), quote(text)));
        let texts = format!("\"{METADATA}\":{{{}}}", texts.collect::<Vec<_>>().join(","));
        let members = std::iter::once(texts).chain(self.entries.iter().map(TensorEntry::json));
        let mut json = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        // Spaces, so that the tensors begin at a multiple of the largest element's size.
        json.extend(std::iter::repeat_n(' ', json.len().next_multiple_of(8) - json.len()));
        if json.len() > MOST_BYTES {
            return Err(fail!(
                Unsupported,
                "the names of {} tensors take {} bytes; a file has room for {MOST_BYTES}",
                self.entries.len(),
                json.len()
            ));
        }
        let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(json.as_bytes());
        Ok(bytes)
    }

    /// Reads the header of a file that has `data` bytes after it.
    ///
    /// # Errors
    /// `Unsupported` for a file of another program or of a later version, `Corrupt`.
    pub(crate) fn parse(json: &[u8], data: u64) -> Result<Self> {
        let header = Self::read(json)?;
        header.check(data)?;
        Ok(header)
    }

    /// Like [`FileHeader::parse`] without the file's size: places may lie behind the end of the
    /// file.
    pub(super) fn read(json: &[u8]) -> Result<Self> {
        let raw = Raw::parse(json)?;
        raw.check_format()?;
        let mut header = Self { texts: raw.texts, entries: Vec::with_capacity(raw.entries.len()) };
        for (name, entry) in raw.entries {
            header.accept(name, entry)?;
        }
        header.restore_dtypes()?;
        Ok(header)
    }

    /// The tensors of a file that another program has written, in the order of their bytes. None for a
    /// checkpoint of this library, or what was one.
    ///
    /// # Errors
    /// `Corrupt`; `Unsupported` for a dtype that no key can have.
    pub(super) fn parse_foreign(json: &[u8], data: u64) -> Result<Option<Vec<TensorEntry>>> {
        let mut raw = Raw::parse(json)?;
        let is_ours = raw.texts.contains_key(FORMAT.0)
            || raw.entries.iter().any(|(name, _)| name == CHECKSUM);
        if is_ours || raw.entries.is_empty() {
            return Ok(None);
        }
        raw.entries.sort_unstable_by_key(|(_, entry)| entry.data_offsets);
        let mut header = Self { texts: BTreeMap::new(), entries: Vec::new() };
        for (name, entry) in raw.entries {
            if OTHER_DTYPES.contains(&&*entry.dtype) {
                let dtype = entry.dtype;
                return Err(fail!(
                    Unsupported,
                    "its tensor {name:?} is {dtype}, and no key can hold that; write a file without it"
                ));
            }
            header.accept(name, entry)?;
        }
        header.check_cover(data)?;
        Ok(Some(header.entries))
    }

    /// Gives tensors the dtypes that texts name, and takes these texts away.
    fn restore_dtypes(&mut self) -> Result<()> {
        let is_dtype = |(name, _): &(String, String)| name.starts_with(DTYPE);
        let mut dtypes: BTreeMap<_, _>;
        (dtypes, self.texts) = std::mem::take(&mut self.texts).into_iter().partition(is_dtype);
        for entry in &mut self.entries {
            if dtypes.is_empty() {
                break;
            }
            let text = format!("{DTYPE}{}", entry.name);
            let wanted =
                dtypes.get(&text).and_then(|it| DType::ALL.iter().find(|d| d.name() == it));
            if wanted.and_then(|&wanted| entry.restore(wanted)).is_some() {
                dtypes.remove(&text);
            }
        }
        let Some((text, dtype)) = dtypes.pop_first() else { return Ok(()) };
        Err(fail!(
            Corrupt,
            "its header is damaged: {text:?} is {dtype:?}, and there is no such tensor"
        ))
    }

    /// Adds a tensor if its entry is consistent.
    fn accept(&mut self, name: String, raw: RawEntry) -> Result<()> {
        let bad = |what: String| fail!(Corrupt, "its header is damaged: tensor {name:?} {what}");
        let dtype = DType::ALL.iter().copied().find(|&it| code(it) == (&*raw.dtype, None));
        let dtype = dtype.ok_or_else(|| bad(format!("has the unknown dtype {:?}", raw.dtype)))?;
        let negative = raw.shape.iter().any(|&extent| extent < 0);
        let count = element_count(&raw.shape).filter(|_| !negative);
        let bytes = count.and_then(|count| count.checked_mul(dtype.size()));
        let (start, end) = raw.data_offsets;
        if start != self.end() || end.checked_sub(start) != bytes.map(|bytes| bytes as u64) {
            let place = format!("from byte {start} to {end}");
            return Err(bad(format!(
                "cannot lie {place}: its dtype and shape, or its place, differ"
            )));
        }
        self.entries.push(TensorEntry { name, dtype, shape: raw.shape, place: start..end });
        Ok(())
    }

    /// Refuses tensors that do not cover the file exactly, and a file without checksums.
    pub(super) fn check(&self, data: u64) -> Result<()> {
        self.check_cover(data)?;
        match self.entries.split_last() {
            Some((last, others))
                if last.name == CHECKSUM && last.bytes() == checksum_bytes(others.len()) =>
            {
                Ok(())
            }
            _ => Err(fail!(Corrupt, "its header is damaged: the last tensor must be {CHECKSUM}")),
        }
    }

    /// Refuses tensors that do not cover the file exactly.
    fn check_cover(&self, data: u64) -> Result<()> {
        let mut names = HashSet::with_capacity(self.entries.len());
        if let Some(twice) = self.entries.iter().find(|entry| !names.insert(&entry.name)) {
            return Err(fail!(
                Corrupt,
                "its header is damaged: {:?} stands there twice",
                twice.name
            ));
        }
        if self.end() != data {
            let less = if data < self.end() { "cut off" } else { "longer than it was" };
            return Err(fail!(
                Corrupt,
                "it is {less}: its tensors have {} bytes, and {data} follow its header",
                self.end()
            ));
        }
        Ok(())
    }
}

/// A text as a JSON string.
fn quote(text: &str) -> String {
    // Writing a text to memory does not fail.
    serde_json::to_string(text).unwrap_or_default()
}

/// The size of the checksums of a header and of so many tensors.
fn checksum_bytes(tensors: usize) -> u64 {
    (tensors as u64 + 1) * size_of::<u32>() as u64
}

/// The name of a dtype in the format. For one that the format does not have: that of its parts, and how
/// many of these an element has, which is an extent behind those of the tensor.
fn code(dtype: DType) -> (&'static str, Option<i64>) {
    let name = match dtype {
        DType::C128 => return ("F64", Some(2)),
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::I64 => "I64",
        DType::U8 => "U8",
        DType::U16 => "U16",
        DType::U32 => "U32",
        DType::U64 => "U64",
        DType::F16 => "F16",
        DType::F32 => "F32",
        DType::F64 => "F64",
        DType::BF16 => "BF16",
        DType::C64 => "C64",
        DType::Bool => "BOOL",
        DType::F8E4M3FN => "F8_E4M3",
        DType::F8E5M2 => "F8_E5M2",
        DType::F8E4M3FNUZ => "F8_E4M3FNUZ",
        DType::F8E5M2FNUZ => "F8_E5M2FNUZ",
        DType::F8E8M0FNU => "F8_E8M0",
    };
    (name, None)
}

/// A header in its JSON form.
struct Raw {
    texts: BTreeMap<String, String>,
    entries: Vec<(String, RawEntry)>,
}

impl Raw {
    fn parse(json: &[u8]) -> Result<Self> {
        serde_json::from_slice(json)
            .map_err(|error| fail!(Corrupt, "its header is damaged: {error}"))
    }

    /// Refuses files of other programs and of later versions.
    fn check_format(&self) -> Result<()> {
        let (format, version) = FORMAT;
        match self.texts.get(format) {
            Some(found) if found == version => Ok(()),
            Some(found) => Err(fail!(
                Unsupported,
                "its format is {found:?}, this library reads {version:?}; use a newer library"
            )),
            None if self.entries.iter().any(|(name, _)| name == CHECKSUM) => {
                Err(fail!(Corrupt, "its header is damaged: {format} is missing"))
            }
            None => Err(fail!(
                Unsupported,
                "it is a file of safetensors without what a checkpoint needs; `kv_load` takes its \
                 values, if it has tensors"
            )),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawEntry {
    dtype: String,
    shape: Vec<i64>,
    data_offsets: (u64, u64),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> std::result::Result<Self, D::Error> {
        struct Fields;

        impl<'de> Visitor<'de> for Fields {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("tensors by name")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Raw, A::Error> {
                let (mut texts, mut entries) = (None, Vec::new());
                while let Some(name) = map.next_key::<String>()? {
                    if name != METADATA {
                        entries.push((name, map.next_value()?));
                    } else if texts.replace(map.next_value()?).is_some() {
                        return Err(A::Error::duplicate_field(METADATA));
                    }
                }
                Ok(Raw { texts: texts.unwrap_or_default(), entries })
            }
        }

        from.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn sealed() -> FileHeader {
        let mut header = FileHeader::new();
        header.texts.insert("a \"text\"\n".to_owned(), "\u{e4}\\".to_owned());
        header.add("bytes".to_owned(), DType::U8, &[3]);
        header.add("\"quoted\"".to_owned(), DType::F64, &[]);
        header.add("none".to_owned(), DType::BF16, &[2, 0]);
        header.add("halves".to_owned(), DType::F16, &[1, 3]);
        header.add("floats".to_owned(), DType::F32, &[2]);
        header.add("complex".to_owned(), DType::C128, &[1, 3]);
        header.seal();
        header
    }

    fn json(header: &FileHeader) -> String {
        String::from_utf8(header.to_bytes().unwrap().split_off(8)).unwrap()
    }

    fn refused(json: &str, data: u64) -> crate::Error {
        FileHeader::parse(json.as_bytes(), data).unwrap_err()
    }

    #[test]
    fn a_header_comes_back_as_it_was_and_tensors_are_aligned() {
        let header = sealed();
        let bytes = header.to_bytes().unwrap();
        assert_eq!(bytes.len() % 8, 0);
        assert_eq!(bytes[..8], (bytes.len() as u64 - 8).to_le_bytes());
        assert_eq!(FileHeader::parse(&bytes[8..], header.end()).unwrap(), header);
        for entry in &header.entries {
            assert_eq!(entry.place.start % entry.dtype.align() as u64, 0, "{}", entry.name);
        }
        let pads: Vec<u64> =
            header.entries.iter().filter(|it| it.is_pad()).map(TensorEntry::bytes).collect();
        assert_eq!(pads, [5, 2]);
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        let (header, json) = (sealed(), json(&sealed()));
        let end = header.end();
        for (from, to, says) in [
            ("\"U8\",\"shape\":[3]", "\"U8\",\"shape\":[4]", "byte 0 to 3"),
            ("\"U8\",\"shape\":[3]", "\"U8\",\"shape\":[-1,-3]", "byte 0 to 3"),
            ("[2,0]", "[9223372036854775807,0,-1]", "cannot lie"),
            ("[1,3]", "[4611686018427387904,4611686018427387904]", "cannot lie"),
            ("[1,3]", "[1.0,3]", "damaged"),
            ("[0,3]", "[3,0]", "cannot lie"),
            ("[0,3]", "[0,3,3]", "damaged"),
            ("[0,3]", "[1,4]", "cannot lie"),
            ("[0,3]", "[18446744073709551615,2]", "cannot lie"),
            ("\"F64\"", "\"F8\"", "unknown dtype \"F8\""),
            ("\"none\"", "\"bytes\"", "twice"),
            ("#checksum", "#checksun", "#checksum"),
            ("\"floats\"", "\"__metadata__\"", "damaged"),
            ("{\"dtype\"", "{\"more\":1,\"dtype\"", "damaged"),
            ("}", "", "damaged"),
            ("kvstore.dtype:complex", "kvstore.dtype:complete", "no such tensor"),
            ("\"complex128\"", "\"float64\"", "no such tensor"),
            ("\"complex128\"", "\"complex256\"", "no such tensor"),
            ("[1,3,2]", "[1,2,3]", "no such tensor"),
            ("kvstore.format\":\"1", "kvstore.format\":\"2", "newer"),
            ("kvstore.format", "format", "kvstore.format is missing"),
        ] {
            assert!(json.contains(from), "{from}");
            let error = refused(&json.replacen(from, to, 1), end);
            assert!(error.message().contains(says), "{to}: {error}");
        }
        assert!(refused(&json, end - 1).message().contains("cut off"));
        assert!(refused(&json, end + 1).message().contains("longer"));
        for nothing in ["", "{}", "[]", "7", "{\"__metadata__\":{\"kvstore.format\":\"1\"}}"] {
            refused(nothing, 0);
        }
        assert_eq!(refused(&json, end - 1).kind(), ErrorKind::Corrupt);
        assert_eq!(refused("{}", 0).kind(), ErrorKind::Unsupported);
    }
}
