//! The figures of MXNet 1.9.1, and of 2.0 beta for 1bit, in tests/golden/compression.json: every
//! pull bit for bit.

use kvstore::{Config, Key, Store, Tensor};
use serde_json::Value;

use super::{bits, pull};

const CASES: usize = 10;

fn numbers(list: &Value) -> Vec<f32> {
    list.as_array().unwrap().iter().map(|it| it.as_f64().unwrap() as f32).collect()
}

fn play(case: &Value, kind: &str) {
    let store = Store::open(kind, &Config::new()).unwrap();
    let compression = &case["compression"];
    let params = format!("threshold={}", compression["threshold"]);
    store.set_compression(compression["type"].as_str().unwrap(), &params).unwrap();
    let mut pulls = 0;
    for op in case["ops"].as_array().unwrap() {
        let key = op["key"].as_u64().unwrap();
        match op["op"].as_str().unwrap() {
            "init" => store.init(key, &numbers(&op["value"])).unwrap(),
            "push" => {
                let values: Vec<Vec<f32>> =
                    op["values"].as_array().unwrap().iter().map(numbers).collect();
                let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
                store.push_list(&vec![Key::from(key); tensors.len()], &tensors).unwrap();
            }
            "pull" => {
                let figures = numbers(&op["expect"]);
                let out = pull(&store, key, figures.len());
                assert!(bits(&out) == bits(&figures), "{}: {out:?}", case["name"]);
                pulls += 1;
            }
            other => panic!("unknown operation {other:?}"),
        }
    }
    assert!(pulls > 0, "{}", case["name"]);
}

#[test]
fn every_case_matches_bit_for_bit() {
    let golden: Value = serde_json::from_str(include_str!("../golden/compression.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        // MXNet compresses on `device` only.
        play(case, "device");
        play(case, "local");
    }
    assert_eq!(cases.len(), CASES);
}
