//! Differences of two checkpoints, tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, bail};
use kvstore::{DType, InspectedTensor, Inspection};
use serde::Serialize;

/// Bytes of each file in memory, a multiple of every element's size.
const PIECE: u64 = 1 << 20;

/// In what two checkpoints differ.
#[derive(Debug, Serialize)]
struct Differences {
    tensors: usize,
    differ: Vec<TensorDifference>,
    only_a: Vec<String>,
    only_b: Vec<String>,
    /// Texts of the headers: the optimizer, its options and multipliers, the codec.
    texts: BTreeMap<String, (Option<String>, Option<String>)>,
}

#[derive(Debug, Serialize)]
struct TensorDifference {
    name: String,
    /// How dtype or shape differ; the elements are not compared then.
    form: Option<String>,
    elements: u64,
    of: u64,
    /// Index of the first one, in row-major order.
    first: Option<u64>,
    /// Largest distance in units of the last place; of integers the difference. None if one is a NaN,
    /// and for opaque dtypes.
    distance: Option<u64>,
    #[serde(skip)]
    is_opaque: bool,
}

pub(super) fn compare(a: &Path, b: &Path, json: bool) -> anyhow::Result<(String, bool)> {
    let (here, there) = (inspect(a)?, inspect(b)?);
    let files = (open(a)?, open(b)?);
    let by_name = |found: &Inspection| -> BTreeMap<String, InspectedTensor> {
        found.tensors.iter().map(|tensor| (tensor.name.clone(), tensor.clone())).collect()
    };
    let (all_a, all_b) = (by_name(&here), by_name(&there));
    let only = |some: &BTreeMap<String, _>, other: &BTreeMap<String, _>| -> Vec<String> {
        some.keys().filter(|name| !other.contains_key(*name)).cloned().collect()
    };
    let mut found = Differences {
        tensors: all_a.len(),
        differ: Vec::new(),
        only_a: only(&all_a, &all_b),
        only_b: only(&all_b, &all_a),
        texts: texts(&here, &there),
    };
    // In the order of the file.
    for tensor in &here.tensors {
        let Some(other) = all_b.get(&tensor.name) else { continue };
        found.differ.extend(differ((&files.0, tensor), (&files.1, other))?);
    }
    let is_same = found.differ.is_empty()
        && found.only_a.is_empty()
        && found.only_b.is_empty()
        && found.texts.is_empty();
    let text = if json { serde_json::to_string_pretty(&found)? + "\n" } else { report(&found) };
    Ok((text, is_same))
}

fn inspect(path: &Path) -> anyhow::Result<Inspection> {
    let shown = path.display();
    let found = Inspection::read(path)
        .map_err(|error| anyhow::anyhow!("\"{shown}\": {}", error.message()))?;
    if !found.is_intact() {
        bail!("\"{shown}\" is damaged; kvstore inspect names the tensor");
    }
    Ok(found)
}

fn open(path: &Path) -> anyhow::Result<File> {
    File::open(path).with_context(|| format!("\"{}\"", path.display()))
}

/// Texts that differ. That of the version of the library may.
fn texts(a: &Inspection, b: &Inspection) -> BTreeMap<String, (Option<String>, Option<String>)> {
    let names: BTreeSet<&String> = a.texts.keys().chain(b.texts.keys()).collect();
    let both = |name: &String| (a.texts.get(name).cloned(), b.texts.get(name).cloned());
    let differ = names.into_iter().map(|name| (name.clone(), both(name)));
    differ.filter(|(name, (a, b))| a != b && name != "kvstore.version").collect()
}

fn differ(
    (file_a, a): (&File, &InspectedTensor),
    (file_b, b): (&File, &InspectedTensor),
) -> anyhow::Result<Option<TensorDifference>> {
    let size = a.dtype.size() as u64;
    let of = a.bytes / size.max(1);
    let mut found = TensorDifference {
        name: a.name.clone(),
        form: None,
        elements: 0,
        of,
        first: None,
        distance: Some(0),
        is_opaque: a.dtype.is_opaque(),
    };
    let form = |it: &InspectedTensor| format!("{}{:?}", it.dtype.name(), it.shape);
    if form(a) != form(b) {
        found.form = Some(format!("{} in A, {} in B", form(a), form(b)));
        return Ok(Some(found));
    }
    let mut done = 0;
    while done < a.bytes {
        let count = PIECE.min(a.bytes - done);
        let read = |file: &File, tensor: &InspectedTensor| -> anyhow::Result<Vec<u8>> {
            let mut bytes = vec![0; usize::try_from(count)?];
            file.read_exact_at(&mut bytes, tensor.offset + done)?;
            Ok(bytes)
        };
        let (here, there) = (read(file_a, a)?, read(file_b, b)?);
        if here != there {
            let first = done / size;
            found.add(a.dtype, first, &here, &there);
        }
        done += count;
    }
    Ok((found.elements > 0).then_some(found))
}

impl TensorDifference {
    fn add(&mut self, dtype: DType, first: u64, here: &[u8], there: &[u8]) {
        let size = dtype.size();
        let pairs = here.chunks_exact(size).zip(there.chunks_exact(size));
        for (at, (a, b)) in (first..).zip(pairs) {
            if a != b {
                self.elements += 1;
                self.first = self.first.or(Some(at));
                let distance = distance(dtype, a, b);
                self.distance = self.distance.zip(distance).map(|(most, one)| most.max(one));
            }
        }
    }
}

/// The distance of two elements in units of the last place; None if one is a NaN, and for opaque
/// dtypes.
fn distance(dtype: DType, a: &[u8], b: &[u8]) -> Option<u64> {
    if dtype.is_opaque() {
        return None;
    }
    let place = |bytes: &[u8]| -> Option<i128> {
        let mut wide = [0; 8];
        wide[..bytes.len()].copy_from_slice(bytes);
        let bits = u64::from_le_bytes(wide);
        let width = 8 * bytes.len();
        let sign = 1_u64 << (width - 1);
        let mantissa = match dtype {
            DType::F32 => 23,
            DType::F64 => 52,
            DType::F16 => 10,
            DType::BF16 => 7,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => return Some(bits.into()),
            _ => {
                let is_negative = bits & sign != 0;
                return Some(i128::from(bits) - if is_negative { 1_i128 << width } else { 0 });
            }
        };
        let magnitude = bits & !sign;
        // All bits of the exponent are set, and one of the mantissa.
        let infinity = (sign - 1) >> mantissa << mantissa;
        if magnitude > infinity {
            return None;
        }
        let magnitude = i128::from(magnitude);
        Some(if bits & sign == 0 { magnitude } else { -magnitude })
    };
    let far = place(a)?.abs_diff(place(b)?);
    Some(u64::try_from(far).unwrap_or(u64::MAX))
}

fn report(found: &Differences) -> String {
    let mut out = String::new();
    for (name, (a, b)) in &found.texts {
        let shown =
            |text: &Option<String>| text.as_ref().map_or("none".into(), |it| format!("{it:?}"));
        let _ = writeln!(out, "{name:?} is {} in A and {} in B", shown(a), shown(b));
    }
    for (only, file) in [(&found.only_a, "A"), (&found.only_b, "B")] {
        for name in only {
            let _ = writeln!(out, "{name:?} is in {file} only");
        }
    }
    for tensor in &found.differ {
        let TensorDifference { name, form, elements, of, first, distance, is_opaque } = tensor;
        if let Some(form) = form {
            let _ = writeln!(out, "{name:?}: {form}");
            continue;
        }
        let far = match distance {
            Some(far) => format!(", at most {far} ulp apart"),
            None if *is_opaque => String::new(),
            None => ", one of them a NaN".to_owned(),
        };
        let first = first.unwrap_or(0);
        let _ = writeln!(
            out,
            "{name:?}: {elements} of {of} elements differ, the first is {first}{far}"
        );
    }
    if out.is_empty() {
        return format!("same: {} tensors\n", found.tensors);
    }
    format!("different:\n{out}")
}

#[cfg(test)]
mod tests {
    use super::distance;
    use kvstore::DType;

    #[test]
    fn distances_are_steps_between_adjacent_numbers() {
        let f32s = |a: f32, b: f32| distance(DType::F32, &a.to_le_bytes(), &b.to_le_bytes());
        assert_eq!(f32s(1.0, f32::from_bits(1.0f32.to_bits() + 3)), Some(3));
        assert_eq!(f32s(0.0, -0.0), Some(0));
        assert_eq!(f32s(f32::from_bits(1), -f32::from_bits(1)), Some(2));
        assert_eq!(f32s(f32::MAX, f32::INFINITY), Some(1));
        assert_eq!(f32s(1.0, f32::NAN), None);
        let integers = |a: i64, b: i64| distance(DType::I64, &a.to_le_bytes(), &b.to_le_bytes());
        assert_eq!(integers(-5, 7), Some(12));
        assert_eq!(integers(i64::MIN, i64::MAX), Some(u64::MAX));
        assert_eq!(distance(DType::U8, &[250], &[3]), Some(247));
        assert_eq!(distance(DType::I8, &[0xff], &[1]), Some(2));
        assert_eq!(distance(DType::I16, &[0xff, 0xff], &[1, 0]), Some(2));
        assert_eq!(distance(DType::U16, &[0xff, 0xff], &[1, 0]), Some(0xfffe));
        assert_eq!(distance(DType::U64, &[0; 8], &[0xff; 8]), Some(u64::MAX));
        assert_eq!(distance(DType::C128, &[0; 16], &[0xff; 16]), None);
    }
}
