//! The figures of MXNet 1.9.1, and of 2.0 beta for 1bit, in tests/golden/compression.json: every
//! pull bit for bit. Figures for other thresholds of 1bit are in `tests/golden/one_bit.json`, which says
//! how they were derived.

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

#[test]
fn any_finite_threshold_of_1bit_gives_the_figures_derived_for_it() {
    let golden: Value = serde_json::from_str(include_str!("../golden/one_bit.json")).unwrap();
    let cases = golden["cases"].as_array().unwrap();
    for case in cases {
        let (store, threshold) = (super::open(), &case["threshold"]);
        store.set_compression("1bit", &format!("threshold={threshold}")).unwrap();
        store.init(1u64, &vec![0.0f32; case["count"].as_u64().unwrap() as usize]).unwrap();
        for round in case["rounds"].as_array().unwrap() {
            let values: Vec<Vec<f32>> =
                round["values"].as_array().unwrap().iter().map(numbers).collect();
            let tensors: Vec<Tensor<'_>> = values.iter().map(Tensor::from).collect();
            store.push_list(&vec![Key::from(1u64); tensors.len()], &tensors).unwrap();
            let (out, figures) = (pull(&store, 1, values[0].len()), numbers(&round["expect"]));
            assert!(bits(&out) == bits(&figures), "threshold {threshold}: {out:?}");
        }
    }
    assert_eq!(cases.len(), 3);
}
