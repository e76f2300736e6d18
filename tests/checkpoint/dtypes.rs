//! Keys of every dtype in files: what stands there, byte for byte, and files that others write.

use std::fs;

use kvstore::{Complex, DType, ErrorKind, Inspection, Key, Tensor};

use super::common::folder::Folder;
use super::common::opaque::Elements;
use super::{loaded, open, refused, snapshot};

/// The names of the format, by the library's; complex128 has none.
const NAMES: &[(DType, &str)] = &[
    (DType::Bool, "BOOL"),
    (DType::I8, "I8"),
    (DType::U8, "U8"),
    (DType::I16, "I16"),
    (DType::U16, "U16"),
    (DType::I32, "I32"),
    (DType::U32, "U32"),
    (DType::I64, "I64"),
    (DType::U64, "U64"),
    (DType::F16, "F16"),
    (DType::BF16, "BF16"),
    (DType::F32, "F32"),
    (DType::F64, "F64"),
    (DType::C64, "C64"),
    (DType::F8E4M3FN, "F8_E4M3"),
    (DType::F8E4M3FNUZ, "F8_E4M3FNUZ"),
    (DType::F8E5M2, "F8_E5M2"),
    (DType::F8E5M2FNUZ, "F8_E5M2FNUZ"),
    (DType::F8E8M0FNU, "F8_E8M0"),
];

/// A file of the format: entries are a name, a dtype of the format, a shape and bytes.
fn file(entries: &[(&str, &str, &[i64], &[u8])]) -> Vec<u8> {
    let (mut members, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in entries {
        let (start, end) = (data.len(), data.len() + bytes.len());
        members.push(format!(
            "\"{name}\":{{\"dtype\":\"{dtype}\",\"shape\":{shape:?},\"data_offsets\":[{start},{end}]}}"
        ));
        data.extend_from_slice(bytes);
    }
    let header = format!("{{{}}}", members.join(","));
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()
}

/// The header of a saved file.
fn header(bytes: &[u8]) -> String {
    let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    String::from_utf8(bytes[8..8 + len].to_vec()).unwrap()
}

#[test]
fn keys_of_every_dtype_come_back_as_they_were() {
    let folder = Folder::new("dtypes");
    let path = folder.file("file");
    for shape in [&[][..], &[0, 3], &[3], &[5, 7]] {
        let store = open();
        for (key, &dtype) in (0u64..).zip(DType::ALL) {
            store.init(key, Elements::random(dtype, shape, key).tensor()).unwrap();
        }
        let first = snapshot(&store, &path);
        let other = loaded(&path);
        for (key, &dtype) in (0u64..).zip(DType::ALL) {
            let info = other.key_info(key).unwrap();
            assert_eq!((info.dtype, &info.shape[..]), (dtype, shape));
            let mut out = Elements::zeroed(dtype, shape);
            other.pull(key, out.tensor_mut()).unwrap();
            assert!(out.bytes() == Elements::random(dtype, shape, key).bytes(), "{dtype:?}");
        }
        assert!(snapshot(&other, &path) == first);
        store.load(&path).unwrap();
        assert!(snapshot(&store, &path) == first);
        let inspection = Inspection::read(&path).unwrap();
        let found = inspection.tensors.iter().filter(|it| !it.name.starts_with("#pad"));
        for (tensor, &dtype) in found.zip(DType::ALL) {
            assert_eq!((tensor.dtype, &tensor.shape[..]), (dtype, shape));
        }
    }
}

#[test]
fn a_file_has_the_names_and_bytes_of_the_format() {
    let folder = Folder::new("dtypes-names");
    let path = folder.file("file");
    for &(dtype, name) in NAMES {
        let (store, elements) = (open(), Elements::random(dtype, &[2, 3], 1));
        store.init(store.intern("key").unwrap(), elements.tensor()).unwrap();
        let bytes = snapshot(&store, &path);
        let (header, end) = (header(&bytes), elements.bytes().len());
        let entry =
            format!("\"key\":{{\"dtype\":\"{name}\",\"shape\":[2,3],\"data_offsets\":[0,{end}]}}");
        assert!(header.contains(&entry) && !header.contains("kvstore.dtype"), "{header}");
        assert!(&bytes[8 + header.len()..][..end] == elements.bytes(), "{name}");
    }
    assert_eq!(NAMES.len() + 1, DType::ALL.len(), "all but complex128");
}

#[test]
fn a_dtype_that_the_format_does_not_have_is_named_in_a_text() {
    let folder = Folder::new("dtypes-text");
    let path = folder.file("file");
    let store = open();
    let values = [Complex::new(1.0, -2.0), Complex::new(0.5, 1e300)];
    store.init(7u64, Tensor::new(&values, &[2, 1]).unwrap()).unwrap();
    store.init(store.intern("a \"b\"").unwrap(), &values[..1]).unwrap();
    let bytes = snapshot(&store, &path);
    let header = header(&bytes);
    for part in [
        r##""#7":{"dtype":"F64","shape":[2,1,2],"data_offsets":[0,32]}"##,
        r#""a \"b\"":{"dtype":"F64","shape":[1,2],"data_offsets":[32,48]}"#,
        r#""kvstore.dtype:#7":"complex128""#,
        r#""kvstore.dtype:a \"b\"":"complex128""#,
    ] {
        assert!(header.contains(part), "{part}: {header}");
    }
    let numbers = [1.0, -2.0, 0.5, 1e300, 1.0, -2.0].map(f64::to_le_bytes).concat();
    assert!(bytes[8 + header.len()..].starts_with(&numbers));
    let mut out = [Complex::default(); 2];
    loaded(&path).pull(7u64, kvstore::TensorMut::new(&mut out, &[2, 1]).unwrap()).unwrap();
    assert_eq!(out, values);
    // One whose tensor has other elements.
    for (from, to) in [("complex128", "complex64 "), (":#7", ":#8")] {
        let text = header.replacen(from, to, 1);
        assert_eq!(text.len(), header.len());
        let damaged = [&bytes[..8], text.as_bytes(), &bytes[8 + header.len()..]].concat();
        fs::write(&path, damaged).unwrap();
        refused(open().load(&path), ErrorKind::Corrupt, "");
    }
}

#[test]
fn files_of_other_programs_give_keys_of_these_dtypes() {
    let folder = Folder::new("dtypes-foreign");
    let path = folder.file("model.safetensors");
    let elements: Vec<_> =
        NAMES.iter().map(|&(dtype, name)| (name, Elements::random(dtype, &[3, 2], 5))).collect();
    let entries: Vec<(&str, &str, &[i64], &[u8])> =
        elements.iter().map(|(name, it)| (*name, *name, &[3, 2][..], it.bytes())).collect();
    fs::write(&path, file(&entries)).unwrap();
    let store = loaded(&path);
    for (name, elements) in &elements {
        let key = Key::of_name(name);
        let mut out = Elements::zeroed(elements.dtype, &[3, 2]);
        assert_eq!(store.key_info(key).unwrap().dtype, elements.dtype);
        store.pull(key, out.tensor_mut()).unwrap();
        assert!(out.bytes() == elements.bytes(), "{name}");
    }
    // Into a key of another dtype, and dtypes that no key can have.
    store.remove(&[Key::of_name("BOOL")]).unwrap();
    store.init(Key::of_name("BOOL"), Tensor::new(&[0u8; 6], &[3, 2]).unwrap()).unwrap();
    refused(store.load(&path), ErrorKind::DtypeMismatch, "bool[3,2]");
    for (dtype, bytes) in [("F4", 3), ("F6_E2M3", 9), ("F6_E3M2", 9)] {
        fs::write(&path, file(&[("part", dtype, &[3, 4], &vec![0; bytes])])).unwrap();
        refused(open().load(&path), ErrorKind::Unsupported, dtype);
    }
    fs::write(&path, file(&[("part", "BOOL", &[3], &[1, 0])])).unwrap();
    refused(open().load(&path), ErrorKind::Corrupt, "part");
}

#[test]
fn state_and_residuals_of_other_keys_stand_beside_them() {
    let folder = Folder::new("dtypes-beside");
    let path = folder.file("file");
    let store = open();
    for (key, &dtype) in (0u64..).zip(DType::ALL) {
        store.init(key, Elements::random(dtype, &[3], key).tensor()).unwrap();
        if !dtype.is_float() {
            store.set_optimizer_for(&[key.into()], "none", "").unwrap();
        }
    }
    store.set_optimizer("adam", "multi_precision=true").unwrap();
    let push = |store: &kvstore::Store| {
        for (key, &dtype) in (0u64..).zip(DType::ALL) {
            store.push(key, Elements::random(dtype, &[3], key + 90).tensor()).unwrap();
        }
    };
    push(&store);
    snapshot(&store, &path);
    let other = loaded(&path);
    push(&store);
    push(&other);
    let again = folder.file("again");
    assert!(snapshot(&store, &path) == snapshot(&other, &again));
}
