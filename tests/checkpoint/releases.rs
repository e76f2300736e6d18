//! Checkpoints of earlier releases: what they hold, and how training goes on from them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use kvstore::{DType, Store, Tensor, bf16, f16};
use serde_json::Value;

use super::common::folder::Folder;
use super::common::opaque::Elements;
use super::common::releases::{self, Files};
use super::{RULES, loaded, open, snapshot};

const ARCHIVE: &str = "checkpoints.tar";

/// A training from which a file is kept: under a rule or none, and a codec or none.
struct Case {
    name: String,
    half: bool,
    rule: Option<(&'static str, &'static str)>,
    codec: Option<(&'static str, &'static str)>,
}

fn cases() -> Vec<Case> {
    let plain = |name: &str| Case { name: name.into(), half: false, rule: None, codec: None };
    let of_rule = |rule| Case { rule: Some((rule, "wd=0.01")), ..plain(rule) };
    let codecs = [("1bit", ""), ("2bit", "threshold=0.75"), ("randomk", "ratio=0.5,seed=3")];
    let of_codec = |codec: (&'static str, _)| Case {
        rule: Some(("sgd", "learning_rate=0.01,momentum=0.9")),
        codec: Some(codec),
        ..plain(&format!("codec-{}", codec.0))
    };
    let master = ("adam", "multi_precision=true,lr_scheduler=factor,step=2,factor=0.5");
    let others =
        [plain("assign"), Case { half: true, rule: Some(master), ..plain("multi-precision") }];
    RULES.iter().copied().map(of_rule).chain(codecs.map(of_codec)).chain(others).collect()
}

impl Case {
    /// Begins with two keys, of which one has a multiplier.
    fn begin(&self) -> Store {
        let store = open();
        let weight = store.intern("weight").unwrap();
        if self.half {
            store.init(weight, &[f16::from_f32(0.5); 6]).unwrap();
            store.init(7u64, &[bf16::from_f32(-1.5); 5]).unwrap();
        } else {
            store.init(weight, Tensor::new(&[0.5f32; 6], &[2, 3]).unwrap()).unwrap();
            store.init(7u64, &[-1.5f32; 5]).unwrap();
        }
        if let Some((rule, options)) = self.rule {
            store.set_optimizer(rule, options).unwrap();
            store.set_key_hyperparameter(weight, "lr_mult", 0.5).unwrap();
        }
        if let Some((codec, options)) = self.codec {
            store.set_compression(codec, options).unwrap();
        }
        store
    }

    fn push(&self, store: &Store, step: u8) {
        let number = |at: u8| f32::from(at * 7 + step * 3) / 16.0 - 1.0;
        let (six, five) = ([0, 1, 2, 3, 4, 5].map(number), [6, 7, 8, 9, 10].map(number));
        let weight = store.intern("weight").unwrap();
        if self.half {
            store.push(weight, &six.map(f16::from_f32)).unwrap();
            store.push(7u64, &five.map(bf16::from_f32)).unwrap();
        } else {
            store.push(weight, Tensor::new(&six, &[2, 3]).unwrap()).unwrap();
            store.push(7u64, &five).unwrap();
        }
    }

    /// The file after three steps, and the one after the step behind them.
    fn files(&self, folder: &Folder) -> [(String, Vec<u8>); 2] {
        let store = self.begin();
        (0..3).for_each(|step| self.push(&store, step));
        let path = folder.file("file");
        let at_three = snapshot(&store, &path);
        self.push(&store, 3);
        [(self.name.clone(), at_three), (format!("{}.next", self.name), snapshot(&store, &path))]
    }
}

/// A file of every dtype, without a rule.
fn of_all_dtypes(folder: &Folder) -> Vec<u8> {
    let store = open();
    for (key, &dtype) in (1u64..).zip(DType::ALL) {
        store.init(key, Elements::random(dtype, &[3], key).tensor()).unwrap();
    }
    let rule = store.intern("with a rule").unwrap();
    store.init(rule, &[1.0f32]).unwrap();
    store.set_optimizer_for(&[rule], "sgd", "learning_rate=0.1").unwrap();
    snapshot(&store, &folder.file("dtypes"))
}

/// Texts and tensors of a file, without what depends on the file as a whole and on its writer.
fn content(file: &[u8]) -> BTreeMap<String, (String, Vec<u8>)> {
    let length = usize::try_from(u64::from_le_bytes(file[..8].try_into().unwrap())).unwrap();
    let header: Value = serde_json::from_slice(&file[8..8 + length]).unwrap();
    let mut parts = BTreeMap::new();
    for (name, of_name) in header.as_object().unwrap() {
        if name == "__metadata__" {
            for (text, value) in of_name.as_object().unwrap() {
                parts.insert(format!("text {text}"), (value.to_string(), Vec::new()));
            }
            continue;
        }
        let at = |end: usize| {
            8 + length + usize::try_from(of_name["data_offsets"][end].as_u64().unwrap()).unwrap()
        };
        let kind = format!("{} {}", of_name["dtype"], of_name["shape"]);
        parts.insert(name.clone(), (kind, file[at(0)..at(1)].to_vec()));
    }
    parts.retain(|name, _| name != "#checksum" && name != "text kvstore.version");
    parts
}

/// Checks that a store has all that a file of an earlier release has, and the same bits.
fn expect(store: &Store, earlier: &[u8], path: &Path, what: &str) {
    let now = content(&snapshot(store, path));
    for (name, part) in content(earlier) {
        if !name.starts_with("#pad.") {
            assert_eq!(now.get(&name), Some(&part), "{what}: {name}");
        }
    }
}

#[test]
fn training_goes_on_from_checkpoints_of_earlier_releases() {
    let folder = Folder::new("releases");
    releases::write(ARCHIVE, || {
        let mut files: Files = cases().iter().flat_map(|case| case.files(&folder)).collect();
        files.insert("dtypes".into(), of_all_dtypes(&folder));
        files
    });
    for version in releases::all() {
        let mut files = releases::read(&version, ARCHIVE);
        let path = folder.file("earlier");
        let mut load = |name: &str| {
            let file = files.remove(name)?;
            fs::write(&path, &file).unwrap();
            Some((loaded(&path), file))
        };
        for case in cases() {
            // An earlier release may lack the rule.
            let Some((store, file)) = load(&case.name) else { continue };
            let what = format!("{version}, {}", case.name);
            expect(&store, &file, &path, &what);
            case.push(&store, 3);
            let (_, next) = load(&format!("{}.next", case.name)).unwrap();
            expect(&store, &next, &path, &format!("{what}, one step later"));
        }
        let (store, file) = load("dtypes").unwrap();
        expect(&store, &file, &path, &format!("{version}, dtypes"));
        assert!(files.is_empty(), "not read: {:?}", files.keys());
    }
}
