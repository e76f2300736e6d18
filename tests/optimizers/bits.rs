//! One result, bit for bit, whatever computes it and however tensors lie.

use kvstore::{Config, DType, ErrorKind, Key, Store, TensorMut};

use super::RULES;
use super::common::memory::Memory;
use super::common::random::Random;
use super::common::scalar::convert_bits;
use crate::with_type;

/// Enough elements for several pieces, several blocks of a norm, and threads to share them.
const SHAPE: [usize; 2] = [1201, 337];

/// How a push is made.
#[derive(Debug, Clone, Copy)]
struct Way {
    isa: &'static str,
    threads: &'static str,
    layout: Layout,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Layout {
    Plain,
    /// Axes turned around, so that no two neighbours in a row are neighbours in memory.
    Turned,
    /// Of f64, which every other float type goes into exactly.
    Widened,
}

const REFERENCE: Way = Way { isa: "scalar", threads: "1", layout: Layout::Plain };
const WAYS: &[Way] = &[
    Way { isa: "scalar", threads: "4", layout: Layout::Plain },
    Way { isa: "avx2", threads: "2", layout: Layout::Plain },
    Way { isa: "avx512", threads: "4", layout: Layout::Plain },
    Way { isa: "auto", threads: "1", layout: Layout::Plain },
    Way { isa: "auto", threads: "8", layout: Layout::Turned },
    Way { isa: "auto", threads: "1", layout: Layout::Widened },
];

impl Way {
    /// A store of this kind, if the processor has the instructions.
    fn open(self) -> Option<Store> {
        let config =
            Config::new().with("isa", self.isa).unwrap().with("threads", self.threads).unwrap();
        match Store::open("local", &config) {
            Err(error) if error.kind() == ErrorKind::Unsupported => None,
            opened => Some(opened.unwrap()),
        }
    }

    /// Elements, given as bits, the way they are pushed.
    fn array(self, dtype: DType, bits: &[u64]) -> Box<dyn Memory> {
        if self.layout == Layout::Widened {
            let wide: Vec<u64> =
                bits.iter().map(|bits| convert_bits(dtype, DType::F64, *bits)).collect();
            return array(DType::F64, &wide, false);
        }
        array(dtype, bits, self.layout == Layout::Turned)
    }
}

fn array(dtype: DType, bits: &[u64], turned: bool) -> Box<dyn Memory> {
    use super::common::scalar::Scalar;
    with_type!(dtype, T => {
        let [rows, columns] = SHAPE;
        let of = |i: usize, j: usize| T::of_bits(bits[i * columns + j]);
        let array = if turned {
            ndarray::Array2::from_shape_fn((columns, rows), |(j, i)| of(i, j)).reversed_axes()
        } else {
            ndarray::Array2::from_shape_fn((rows, columns), |(i, j)| of(i, j))
        };
        Box::new(array.into_dyn())
    })
}

/// A key's first value and what is pushed, as bits.
struct Numbers {
    dtype: DType,
    first: Vec<u64>,
    pushed: [Vec<u64>; 4],
}

impl Numbers {
    fn new(dtype: DType) -> Self {
        let mut random = Random::new(11);
        let mut number = |_| {
            let number = (random.next() >> 40) as f64 / f64::from(1 << 22) - 2.0;
            convert_bits(DType::F64, dtype, number.to_bits())
        };
        let mut numbers = || (0..SHAPE[0] * SHAPE[1]).map(&mut number).collect();
        Self { dtype, first: numbers(), pushed: [numbers(), numbers(), numbers(), numbers()] }
    }

    /// What a push and a pushpull under each rule make of a key; None if the instructions are not
    /// there.
    fn results(&self, way: Way, rules: &[(&str, &str)]) -> Option<Vec<Vec<u64>>> {
        let (store, key, dtype) = (way.open()?, Key::from(7u64), self.dtype);
        let first = array(dtype, &self.first, false);
        let values = self.pushed.each_ref().map(|bits| way.array(dtype, bits));
        let values = values.each_ref().map(|value| value.tensor());
        let (mut out, mut pulled) =
            (way.array(dtype, &self.first), array(dtype, &self.first, false));
        let result = |(rule, options): &(&str, &str)| {
            store.init(key, first.tensor()).unwrap();
            store.set_optimizer(rule, options).unwrap();
            store.push_list(&[key; 2], &values[..2]).unwrap();
            let outs = &mut [out.tensor_mut()];
            store.pushpull_list(&[key; 2], &values[2..], &[key], outs).unwrap();
            store.pull(key, pulled.tensor_mut()).unwrap();
            store.remove(&[key]).unwrap();
            let (mut out, pulled) = (out.bits(), pulled.bits());
            if way.layout == Layout::Widened {
                out.iter_mut().for_each(|bits| *bits = convert_bits(DType::F64, dtype, *bits));
            }
            assert!(out == pulled, "{rule} of {}: {way:?}: out and pull differ", dtype.name());
            assert!(pulled != self.first, "{rule} of {}: {way:?}: no change", dtype.name());
            pulled
        };
        Some(rules.iter().map(result).collect())
    }

    fn check(&self, rules: &[(&str, &str)], ways: &[Way]) {
        let expected = self.results(REFERENCE, rules).unwrap();
        for &way in ways {
            let Some(found) = self.results(way, rules) else { continue };
            for ((rule, found), expected) in rules.iter().zip(found).zip(&expected) {
                assert!(found == *expected, "{rule:?} of {}: {way:?}", self.dtype.name());
            }
        }
    }
}

/// All rules with the same options.
fn all(options: &str) -> Vec<(&str, &str)> {
    RULES.iter().map(|rule| (*rule, options)).collect()
}

#[test]
fn threads_instructions_and_layouts_change_no_bit() {
    Numbers::new(DType::F32).check(&all("wd=0.01"), WAYS);
}

#[test]
fn nor_do_they_for_other_types() {
    let ways = &[WAYS[2], WAYS[4]];
    Numbers::new(DType::F64).check(&all("wd=0.01"), ways);
    Numbers::new(DType::F16).check(&all("learning_rate=0.1"), ways);
    Numbers::new(DType::BF16).check(&all("learning_rate=0.1,multi_precision=true"), ways);
}

#[test]
fn variants_by_options_change_no_bit_either() {
    let rules = [
        ("rmsprop", "centered=true,clip_weights=0.5"),
        ("nag", "momentum=0.9"),
        ("signum", "momentum=0"),
        ("dcasgd", "momentum=0.9"),
        ("lars", "momentum=0.9"),
        ("lamb", "bias_correction=false,lower_bound=0.1,upper_bound=10"),
    ];
    Numbers::new(DType::F32).check(&rules, &[WAYS[2], WAYS[4]]);
}

#[test]
fn large_keys_take_outs_past_the_caches_with_the_same_bits() {
    // 12 MB a tensor, two outs that lie differently in their cache lines.
    const COUNT: usize = 3 << 20;
    for rule in ["sgd", "momentum", "adam", "adamax", "lars", "lamb"] {
        let run = |outs_too: bool| {
            let (store, key) = (super::open(), Key::from(1u64));
            let value: Vec<f32> = (0..COUNT).map(|i| (i % 251) as f32 - 125.0).collect();
            store.init(key, &value).unwrap();
            store.set_optimizer(rule, "wd=0.01").unwrap();
            let (mut one, mut two) = (vec![0.0f32; COUNT], vec![0.0f32; COUNT + 1]);
            if outs_too {
                let outs = &mut [TensorMut::from(&mut one), TensorMut::from(&mut two[1..])];
                store.pushpull_list(&[key], &[(&value).into()], &[key; 2], outs).unwrap();
                assert!(one == two[1..], "{rule}");
            } else {
                store.push(key, &value).unwrap();
                store.pull(key, &mut one).unwrap();
            }
            one
        };
        assert!(run(true) == run(false), "{rule}");
    }
}
