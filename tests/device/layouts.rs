//! Values and outs of other strides and float types than their keys.

use kvstore::DType;

use super::array::{Array, Place, Random};
use super::dense::assert_same;
use super::store::{Call, Store};
use super::{gpu, is_child};

/// Shapes with strides of values and of outs.
type Layout = (&'static [i64], &'static [i64], &'static [i64]);

const LAYOUTS: [Layout; 6] = [
    (&[301], &[-3], &[2]),
    (&[17, 11], &[1, 17], &[11, 1]),
    (&[5, 7, 9], &[63, -9, 1], &[1, 45, -5]),
    (&[2, 3, 2, 4, 2, 3], &[0, 48, 24, -6, 3, 1], &[200, 60, 30, 7, 3, 1]),
    (&[], &[], &[]),
    (&[3, 0], &[9, 9], &[1, 1]),
];

/// Places of values, one call each, and of outs.
type Places = (&'static [[Place; 2]], [Place; 2]);

const ONE_GPU: Places = (
    &[[Place::Gpu, Place::Gpu], [Place::Gpu, Place::Host], [Place::Host; 2]],
    [Place::Gpu, Place::Host],
);

const TWO_GPUS: Places = (
    &[[Place::Gpu, Place::Other(1)], [Place::Other(1), Place::Host], [Place::Other(1); 2]],
    [Place::Other(1), Place::Gpu],
);

/// Pushes strided values of a dtype to a key of another, and pulls to strided outs.
fn push_and_pull(
    random: &mut Random,
    (kind, of_values_and_outs): (&str, Places),
    key: DType,
    other: DType,
    layout: Layout,
) {
    let (calls, to) = of_values_and_outs;
    let (shape, of_values, of_outs) = layout;
    let (store, peer) = (Store::new(kind), Store::new("local"));
    let mut arrays = Vec::new();
    let value = |place, dtype, strides: Option<&[i64]>, elements: &[u64]| {
        let mut array = Array::new(place, dtype, shape, strides);
        // Elements with a stride of 0 are one: the last is kept.
        array.set(elements);
        array
    };
    let count = shape.iter().product::<i64>() as usize;
    let elements = random.elements(key, count);
    let first = value(Place::Gpu, key, Some(of_values), &elements);
    let twin = value(Place::Host, key, Some(of_values), &elements);
    store.init(&[(1, &first)]).unwrap();
    peer.init(&[(1, &twin)]).unwrap();
    arrays.push(first);
    for &places in calls {
        let values = places.map(|place| {
            let elements = random.elements(other, count);
            let of = |place, value: &mut dyn FnMut(Place) -> Array| value(place);
            let mut make = |place| value(place, other, Some(of_values), &elements);
            (of(place, &mut make), of(Place::Host, &mut make))
        });
        let pushed = if key.is_opaque() { 1 } else { 2 };
        let here = &values.each_ref().map(|(here, _)| (1, here))[..pushed];
        let there = &values.each_ref().map(|(_, there)| (1, there))[..pushed];
        let outs = to.map(|place| Array::new(place, other, shape, Some(of_outs)));
        let wanted = to.map(|_| Array::new(Place::Host, other, shape, Some(of_outs)));
        let to_here = outs.each_ref().map(|out| (1, out));
        let to_there = wanted.each_ref().map(|out| (1, out));
        store.call(Call::PushPull, here, &to_here).unwrap();
        peer.call(Call::PushPull, there, &to_there).unwrap();
        for (out, wanted) in outs.iter().zip(&wanted) {
            assert_same(
                out,
                wanted,
                &format!(
                    "{kind}, {other:?} of {key:?}, {shape:?}, to {:?} from {places:?}",
                    out.place
                ),
            );
        }
        arrays.extend(values.into_iter().map(|(here, _)| here).chain(outs));
    }
    arrays.into_iter().for_each(Array::free);
}

#[test]
fn strides_and_float_types_are_converted_as_in_host_memory() {
    if !is_child("layouts::strides_and_float_types_are_converted_as_in_host_memory", &[]) {
        return;
    }
    gpu::start(0);
    let mut random = Random(5);
    for kind in ["device", "local"] {
        for &key in DType::ALL {
            let others =
                DType::ALL.iter().filter(|it| **it == key || it.is_float() && key.is_float());
            for (&other, layout) in others.flat_map(|it| LAYOUTS.map(|layout| (it, layout))) {
                push_and_pull(&mut random, (kind, ONE_GPU), key, other, layout);
            }
        }
    }
}

#[test]
fn those_of_another_gpu_are_converted_there() {
    let two = [("KV_CUDA_STAND_IN_DEVICES", "2"), ("KV_CUDA_STAND_IN_PEERS", "no")];
    if !is_child("layouts::those_of_another_gpu_are_converted_there", &two) {
        return;
    }
    gpu::start(0);
    let mut random = Random(6);
    for kind in ["device", "local"] {
        for (key, other) in [
            (DType::F32, DType::F32),
            (DType::F32, DType::F16),
            (DType::BF16, DType::F64),
            (DType::I8, DType::I8),
        ] {
            for layout in LAYOUTS {
                push_and_pull(&mut random, (kind, TWO_GPUS), key, other, layout);
            }
        }
    }
}

#[test]
fn an_out_may_be_a_value_of_its_key_and_the_last_out_of_several_keys_wins() {
    let test = "layouts::an_out_may_be_a_value_of_its_key_and_the_last_out_of_several_keys_wins";
    if !is_child(test, &[]) {
        return;
    }
    gpu::start(0);
    let number = |number: f32| u64::from(number.to_bits());
    for kind in ["device", "local"] {
        let store = Store::new(kind);
        let both = Array::plain(Place::Gpu, DType::F32, &[2]).with(&[number(1.0), number(2.0)]);
        store.init(&[(1, &both), (2, &both)]).unwrap();
        store.call(Call::PushPull, &[(1, &both), (1, &both)], &[(1, &both)]).unwrap();
        assert_eq!(both.get(), [number(2.0), number(4.0)], "{kind}");
        store.pull(&[(2, &both), (1, &both)]).unwrap();
        assert_eq!(both.get(), [number(1.0), number(2.0)], "{kind}");
    }
}
