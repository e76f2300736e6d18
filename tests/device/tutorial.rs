//! The tutorial on four GPUs prints what it prints in host memory. "Device" `i` of
//! `examples/rust/tutorial.rs` is GPU `i` here.

use std::fmt::Write;
use std::sync::{Arc, Mutex};

use kvstore::{Config, DType, DeviceSlice, Key, Store, Tensor, TensorMut};

use super::array::{Array, Place};
use super::is_child;

const SHAPE: [i64; 2] = [2, 3];
const DEVICES: usize = 4;

/// An array on each of some devices, with the slices that stand for them.
struct Arrays {
    arrays: Vec<Array>,
    slices: Vec<DeviceSlice>,
}

impl Arrays {
    fn full(count: usize, value: f32) -> Self {
        let array = |device: usize| {
            let place = Place::Other(device as i32);
            Array::plain(place, DType::F32, &SHAPE).with(&[u64::from(value.to_bits()); 6])
        };
        let arrays: Vec<_> = (0..count).map(array).collect();
        let slices = arrays.iter().map(Array::slice).collect();
        Self { arrays, slices }
    }

    fn values(&self) -> Vec<Tensor<'_>> {
        self.slices.iter().map(|slice| slice.tensor(&SHAPE).unwrap()).collect()
    }

    fn outs(&mut self) -> Vec<TensorMut<'_>> {
        self.slices.iter_mut().map(|slice| slice.tensor_mut(&SHAPE).unwrap()).collect()
    }
}

/// What has been printed.
#[derive(Default)]
struct Page(String);

impl Page {
    fn line(&mut self, name: &str, value: impl std::fmt::Display) {
        writeln!(self.0, "{name}: {value}").unwrap();
    }

    /// The value that all elements of all arrays have.
    fn show(&mut self, name: &str, arrays: &Arrays) {
        let elements: Vec<_> = arrays.arrays.iter().flat_map(Array::get).collect();
        assert!(elements.iter().all(|element| *element == elements[0]), "{name}: {elements:x?}");
        let digits = format!("{:.5}", f32::from_bits(elements[0] as u32));
        self.line(name, digits.trim_end_matches('0').trim_end_matches('.'));
    }

    fn pull(&mut self, name: &str, store: &Store, key: Key) {
        let mut out = Arrays::full(1, 0.0);
        store.pull_list(&[key], &mut out.outs()).unwrap();
        self.show(name, &out);
    }
}

type Calls = Arc<Mutex<Vec<u64>>>;

fn set_updater(store: &Store, factor: f32) -> Calls {
    let calls = Calls::default();
    let noted = Arc::clone(&calls);
    let updater = move |key: Key, input: &Tensor<'_>, stored: &mut TensorMut<'_>| {
        noted.lock().unwrap().push(key.id());
        let input = input.as_slice::<f32>().ok_or("no floats of the host")?;
        let stored = stored.as_mut_slice::<f32>().ok_or("no floats of the host")?;
        stored.iter_mut().zip(input).for_each(|(stored, input)| *stored += factor * input);
        Ok(())
    };
    store.set_updater(updater).unwrap();
    calls
}

fn first(page: &mut Page) {
    let store = Store::open("local", &Config::new()).unwrap();
    let key = Key::from(3u64);
    let push = |arrays: &Arrays| {
        let keys = vec![key; arrays.slices.len()];
        store.push_list(&keys, &arrays.values()).unwrap();
    };
    store.init_list(&[key], &Arrays::full(1, 2.0).values()).unwrap();
    page.pull("init", &store, key);
    push(&Arrays::full(1, 8.0));
    page.pull("push", &store, key);
    push(&Arrays::full(DEVICES, 1.0));
    page.pull("four devices", &store, key);
    let calls = set_updater(&store, 2.0);
    page.pull("updater set", &store, key);
    push(&Arrays::full(1, 1.0));
    page.pull("updater push", &store, key);
    let called = std::mem::take(&mut *calls.lock().unwrap());
    page.line("updater calls", called.len());
    page.line("updater key", called[0]);
    let mut outs = Arrays::full(DEVICES, 0.0);
    store.pull_list(&[key; DEVICES], &mut outs.outs()).unwrap();
    page.show("four outs", &outs);

    let keys = [5u64, 7, 9].map(Key::from);
    let mut arrays = Arrays::full(3, 1.0);
    store.init_list(&keys, &arrays.values()).unwrap();
    store.push_list(&keys, &arrays.values()).unwrap();
    store.pull_list(&keys, &mut arrays.outs()).unwrap();
    page.show("keys 5 7 9", &arrays);
    let order: Vec<_> = calls.lock().unwrap().iter().map(u64::to_string).collect();
    page.line("updater order", order.join(" "));
    let mut out = Arrays::full(1, 0.0);
    keys.iter().for_each(|&key| store.pull_list(&[key], &mut out.outs()).unwrap());
    page.show("one out of three keys", &out);
    let ones = Arrays::full(DEVICES, 1.0);
    let each_four_times = keys.map(|key| [key; DEVICES]).concat();
    store.push_list(&each_four_times, &ones.values().repeat(3)).unwrap();
    keys.iter().for_each(|&key| store.pull_list(&[key; DEVICES], &mut outs.outs()).unwrap());
    page.show("list of lists", &outs);
}

fn second(page: &mut Page) {
    let store = Store::open("device", &Config::new()).unwrap();
    let key = Key::from(3u64);
    let push = |arrays: &Arrays| {
        let keys = vec![key; arrays.slices.len()];
        store.push_list(&keys, &arrays.values()).unwrap();
    };
    store.init_list(&[key], &Arrays::full(1, -2.0).values()).unwrap();
    page.pull("device init", &store, key);
    push(&Arrays::full(1, -7.0));
    page.pull("device push", &store, key);
    push(&Arrays::full(3, 1.0));
    page.pull("device three ones", &store, key);

    let keys = [7u64, 11, 13, 17].map(Key::from);
    let mut arrays = Arrays::full(DEVICES, -3.0);
    store.init_list(&keys, &arrays.values()).unwrap();
    let devices = keys.map(|key| store.key_device(key).unwrap());
    assert_eq!(devices, [0, 1, 2, 3].map(Some), "each stays where it was initialised");
    store.pull_list(&keys, &mut arrays.outs()).unwrap();
    page.show("device keys", &arrays);
    let tenths = Arrays::full(3, -0.1);
    let each_three_times = keys.map(|key| [key; 3]).concat();
    store.push_list(&each_three_times, &tenths.values().repeat(4)).unwrap();
    store.pull_list(&keys, &mut arrays.outs()).unwrap();
    page.show("device multi push", &arrays);
    set_updater(&store, 0.01);
    page.pull("device updater set", &store, key);
    push(&Arrays::full(1, 5.0));
    page.pull("device updater push", &store, key);
}

#[test]
fn the_tutorial_on_four_gpus_has_the_numbers_of_host_memory() {
    let test = "tutorial::the_tutorial_on_four_gpus_has_the_numbers_of_host_memory";
    if !is_child(test, &[("KV_CUDA_STAND_IN_DEVICES", "4")]) {
        return;
    }
    let mut page = Page::default();
    first(&mut page);
    second(&mut page);
    assert_eq!(page.0, include_str!("../golden/tutorial.txt"));
}
