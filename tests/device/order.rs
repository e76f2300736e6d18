//! Streams, tickets, deadlines, and how many calls of the driver a call makes.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};

use kvstore::DType;

use super::array::{Array, Place};
use super::store::{Call, Device, GPU, Store, set_stream, stream_of};
use super::{gpu, is_child};

fn bits(number: f32) -> u64 {
    u64::from(number.to_bits())
}

fn filled(place: Place, count: i64, number: f32) -> Array {
    let elements = vec![bits(number); count as usize];
    Array::plain(place, DType::F32, &[count]).with(&elements)
}

#[test]
fn a_thread_names_its_stream_of_a_device() {
    if !is_child(
        "order::a_thread_names_its_stream_of_a_device",
        &[("KV_CUDA_STAND_IN_DEVICES", "2")],
    ) {
        return;
    }
    gpu::start(0);
    assert_eq!(stream_of(GPU), Ok(0));
    let stream = gpu::stream();
    for named in [stream, 1, 2, 0, stream] {
        set_stream(GPU, named).unwrap();
        assert_eq!(stream_of(GPU), Ok(named));
    }
    assert_eq!(std::thread::spawn(|| stream_of(GPU)).join().unwrap(), Ok(0));
    let other = Device { id: 1, ..GPU };
    assert_eq!(stream_of(other), Ok(0));
    assert_eq!(set_stream(other, stream).unwrap_err().status, 1, "a stream of another device");
    if gpu::is_stand_in() {
        // Other drivers follow any handle.
        assert_eq!(set_stream(GPU, 0xABCD).unwrap_err().status, 1, "no stream");
    }
    for device in [Device { id: 2, ..GPU }, Device { id: -1, ..GPU }, Device { kind: 1, id: 0 }] {
        assert_eq!(set_stream(device, 0).unwrap_err().status, 1, "{device:?}");
    }
    assert_eq!(stream_of(GPU), Ok(stream));
}

#[test]
fn a_list_is_one_launch_and_copies_a_table_and_waits_for_nothing() {
    if !is_child("order::a_list_is_one_launch_and_copies_a_table_and_waits_for_nothing", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let stream = gpu::stream();
    set_stream(GPU, stream).unwrap();
    let arrays: Vec<_> = (0..100).map(|key| (key, filled(Place::Gpu, 50, 1.0))).collect();
    gpu::stream_wait(1);
    let pairs: Vec<_> = arrays.iter().map(|(key, array)| (*key, array)).collect();
    store.init(&pairs).unwrap();
    // A table is copied unless two earlier calls had the same; the numbers of adam change with each step.
    for (rule, copies, calls) in [("sgd", 0, 1), ("sgd", 0, 100), ("adam", 1, 1), ("adam", 1, 100)]
    {
        store.set_optimizer(rule, "learning_rate=0.5").unwrap();
        for _ in 0..3 {
            store.call(Call::PushPull, &pairs[..calls], &pairs[..calls]).unwrap();
            gpu::stream_wait(stream);
        }
        gpu::forget_counts();
        store.call(Call::PushPull, &pairs[..calls], &pairs[..calls]).unwrap();
        assert_eq!(gpu::calls(c"cuLaunchKernel"), 1);
        assert_eq!(gpu::calls(c"cuMemcpyHtoDAsync_v2"), copies, "{rule}, {calls} keys");
        for none in [
            c"cuMemcpyDtoHAsync_v2",
            c"cuStreamSynchronize",
            c"cuEventSynchronize",
            c"cuCtxSynchronize",
            c"cuStreamWaitEvent",
            c"wait for a pageable copy",
            c"cuMemHostAlloc",
            c"cuModuleLoadDataEx",
        ] {
            assert_eq!(gpu::calls(none), 0, "{none:?}");
        }
    }
}

#[test]
fn a_table_of_an_earlier_call_is_used_again_on_its_stream() {
    if !is_child("order::a_table_of_an_earlier_call_is_used_again_on_its_stream", &[]) {
        return;
    }
    gpu::start(0);
    for (rule, params) in
        [("sgd", "learning_rate=0.5,momentum=0.9"), ("adam", ""), ("lamb", ""), ("lars", "")]
    {
        let [store, host] = ["device", "local"].map(Store::new);
        let own = |place| (1..=3).map(|key| (key, filled(place, 40, key as f32))).collect();
        let (values, outs): (Vec<_>, Vec<_>) = (own(Place::Gpu), own(Place::Gpu));
        let (of_host, out_of_host): (Vec<_>, Vec<_>) = (own(Place::Host), own(Place::Host));
        gpu::stream_wait(1);
        let lists = [&values, &outs, &of_host, &out_of_host].map(|arrays| {
            arrays.iter().map(|(key, array)| (*key, array)).collect::<Vec<(u64, &Array)>>()
        });
        for (store, values) in [(&store, &lists[0]), (&host, &lists[2])] {
            store.init(values).unwrap();
            store.set_optimizer(rule, params).unwrap();
        }
        let streams = [gpu::stream(), gpu::stream()];
        for round in 0..6 {
            set_stream(GPU, streams[round / 3]).unwrap();
            gpu::forget_counts();
            store.call(Call::PushPull, &lists[0], &lists[1]).unwrap();
            if gpu::is_stand_in() && rule == "sgd" {
                // A table stays from its second use on, and then on each stream.
                let copies = u64::from([0, 1, 3].contains(&round));
                assert_eq!(gpu::calls(c"cuMemcpyHtoDAsync_v2"), copies, "round {round}");
            }
            gpu::stream_wait(streams[round / 3]);
            host.call(Call::PushPull, &lists[2], &lists[3]).unwrap();
            for ((_, out), (_, right)) in outs.iter().zip(&out_of_host) {
                assert_eq!(out.get(), right.get(), "{rule}, round {round}");
            }
        }
    }
}

#[test]
fn pinned_memory_beyond_its_bound_is_freed() {
    let bound = ("KV_PINNED_BYTES", "40000");
    if !is_child("order::pinned_memory_beyond_its_bound_is_freed", &[bound]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let arrays: Vec<_> = (0..20).map(|key| (key, filled(Place::Gpu, 50, key as f32))).collect();
    gpu::stream_wait(1);
    store.init(&arrays.iter().map(|(key, array)| (*key, array)).collect::<Vec<_>>()).unwrap();
    gpu::stream_wait(1);
    for _ in 0..5 {
        let outs: Vec<_> = (0..20).map(|key| (key, filled(Place::Host, 50, 9.0))).collect();
        store.pull(&outs.iter().map(|(key, out)| (*key, out)).collect::<Vec<_>>()).unwrap();
        for (key, out) in &outs {
            assert_eq!(out.get(), vec![bits(*key as f32); 50]);
        }
        let kept = gpu::calls(c"cuMemHostAlloc") - gpu::calls(c"cuMemFreeHost");
        assert!((1..10).contains(&kept), "{kept} blocks of 4096 bytes or more are kept");
    }
}

#[test]
fn stores_with_tensors_in_host_memory_alone_touch_no_driver() {
    if !is_child("order::stores_with_tensors_in_host_memory_alone_touch_no_driver", &[]) {
        return;
    }
    for kind in ["device", "local"] {
        let store = Store::new(kind);
        let (value, out) = (filled(Place::Host, 50, 1.0), filled(Place::Host, 50, 0.0));
        store.init(&[(1, &value)]).unwrap();
        store.set_optimizer("adam", "").unwrap();
        store.call(Call::PushPull, &[(1, &value), (1, &value)], &[(1, &out)]).unwrap();
        let ticket = store.submit(Call::Push, &[(1, &value)], &[]).unwrap();
        store.wait(ticket, 10_000).unwrap();
        store.remove(&[1]).unwrap();
    }
    for none in [c"cuInit", c"cuDriverGetVersion", c"cuDeviceGetCount"] {
        assert_eq!(gpu::calls(none), 0, "{none:?}");
    }
}

#[test]
fn a_wait_ends_at_its_deadline_and_names_the_key_and_the_gpu() {
    if !is_child("order::a_wait_ends_at_its_deadline_and_names_the_key_and_the_gpu", &[]) {
        return;
    }
    gpu::start(0);
    for (kind, call) in [("device", Call::Pull), ("local", Call::Push)] {
        let store = Store::with(kind, &[("timeout_ms", "1000")]).unwrap();
        let (value, out) = (filled(Place::Gpu, 9, 3.0), filled(Place::Host, 9, 0.0));
        gpu::stream_wait(1);
        set_stream(GPU, 1).unwrap();
        store.init(&[(7, &value)]).unwrap();
        let stream = gpu::stream();
        set_stream(GPU, stream).unwrap();
        let hang = filled(Place::Gpu, 1, 0.0);
        gpu::fail(c"cuMemcpyHtoDAsync_v2:1=hang");
        gpu::write(gpu::memory(4), &[0; 4], stream);
        let (values, outs) = ([(7, &value)], [(7, &out)]);
        let result = match call {
            Call::Pull => store.pull(&outs),
            _ => store.push(&values),
        };
        let failure = result.unwrap_err();
        assert_eq!(failure.status, 20, "{failure:?}");
        for part in ["key 7", "GPU 0", "your stream"] {
            assert!(failure.text.contains(part), "{failure:?}");
        }
        drop(hang);
        gpu::seed(1);
    }
}

/// Each call of a store with `device_wait` waits for the GPU with the deadline, and so does a call that
/// waits for a ticket.
#[test]
fn a_wait_for_a_gpu_that_never_comes_to_it_ends_at_its_deadline() {
    if !is_child("order::a_wait_for_a_gpu_that_never_comes_to_it_ends_at_its_deadline", &[]) {
        return;
    }
    gpu::start(0);
    for wait in ["yes", "no"] {
        let options = [("timeout_ms", "1500"), ("device_wait", wait), ("threads", "1")];
        let store = Store::with("device", &options).unwrap();
        let value = filled(Place::Gpu, 9, 3.0);
        gpu::stream_wait(1);
        set_stream(GPU, 1).unwrap();
        store.init(&[(7, &value)]).unwrap();
        let stream = gpu::stream();
        set_stream(GPU, stream).unwrap();
        gpu::fail(c"cuMemcpyHtoDAsync_v2:1=hang");
        gpu::write(gpu::memory(4), &[0; 4], stream);
        if wait == "yes" {
            let failure = store.push(&[(7, &value)]).unwrap_err();
            assert_eq!(failure.status, 20, "{failure:?}");
            for part in ["push: key 7", "GPU 0", "uses the tensors until"] {
                assert!(failure.text.contains(part), "{failure:?}");
            }
        } else {
            store.push(&[(7, &value)]).unwrap();
            let ticket = store.submit(Call::Push, &[(7, &value)], &[]).unwrap();
            // Others go on, on one thread too.
            set_stream(GPU, 1).unwrap();
            store.init(&[(8, &value)]).unwrap();
            let others = [(8, &value)].map(|pair| store.submit(Call::Push, &[pair], &[]).unwrap());
            others.iter().for_each(|other| store.wait(*other, 60_000).unwrap());
            store.watch(ticket).unwrap();
            assert_eq!(store.next_done(), (0, 0), "its GPU is not done");
            for failure in [store.wait(ticket, 100), store.cancel(ticket)] {
                let failure = failure.unwrap_err();
                assert_eq!(failure.status, 20, "{failure:?}");
                assert!(failure.text.contains("push of key 7"), "{failure:?}");
            }
        }
        gpu::seed(1);
    }
}

#[test]
fn a_ticket_is_done_when_the_gpu_is_and_later_calls_come_behind_it() {
    if !is_child("order::a_ticket_is_done_when_the_gpu_is_and_later_calls_come_behind_it", &[]) {
        return;
    }
    gpu::start(0);
    for kind in ["device", "local"] {
        let store = Store::new(kind);
        let stream = gpu::stream();
        set_stream(GPU, stream).unwrap();
        let on = || Array::on(stream, Place::Gpu, DType::F32, &[40], None);
        let value = on().with(&[bits(2.0); 40]);
        store.init(&[(1, &value)]).unwrap();
        store.set_optimizer("test", "").unwrap();
        let mut out = on();
        let both = [(1, &value), (1, &value)];
        let tickets: Vec<_> =
            (0..5).map(|_| store.submit(Call::Push, &both, &[]).unwrap()).collect();
        store.pull(&[(1, &out)]).unwrap();
        assert_eq!(out.get(), vec![bits(22.0); 40], "{kind}");
        for ticket in tickets {
            store.wait(ticket, 10_000).unwrap();
            store.cancel(ticket).unwrap();
        }
        let ticket = store.submit(Call::PushPull, &both, &[(1, &out)]).unwrap();
        store.wait(ticket, 10_000).unwrap();
        // On another stream: the ticket is done.
        out.stream = 1;
        assert_eq!(out.get(), vec![bits(26.0); 40], "{kind}");
    }
}

static ENDED: AtomicU64 = AtomicU64::new(0);

extern "C" fn note_end(_: *mut c_void, ticket: u64, status: i32) {
    ENDED.store(ticket + u64::from(status.unsigned_abs()), Ordering::SeqCst);
}

#[test]
fn the_end_of_a_ticket_is_told_when_the_gpu_is_done() {
    if !is_child("order::the_end_of_a_ticket_is_told_when_the_gpu_is_done", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let stream = gpu::stream();
    set_stream(GPU, stream).unwrap();
    let value = Array::on(stream, Place::Gpu, DType::F32, &[40], None).with(&[bits(2.0); 40]);
    store.init(&[(1, &value)]).unwrap();
    let ticket = store.submit(Call::Push, &[(1, &value)], &[]).unwrap();
    store.watch(ticket).unwrap();
    store.on_done(ticket, note_end).unwrap();
    store.wait(ticket, 10_000).unwrap();
    assert_eq!(store.next_done(), (ticket, 0));
    assert_eq!(store.next_done(), (0, 0));
    // Returns when the function has.
    drop(store);
    assert_eq!(ENDED.load(Ordering::SeqCst), ticket);
}

#[test]
fn a_captured_stream_is_refused_and_nothing_changes() {
    if !is_child("order::a_captured_stream_is_refused_and_nothing_changes", &[]) {
        return;
    }
    gpu::start(0);
    let store = Store::new("device");
    let (value, out) = (filled(Place::Gpu, 5, 1.0), filled(Place::Gpu, 5, 0.0));
    let more = filled(Place::Gpu, 5, 9.0);
    gpu::stream_wait(1);
    store.init(&[(1, &value)]).unwrap();
    let stream = gpu::stream();
    set_stream(GPU, stream).unwrap();
    assert_eq!(gpu::begin_capture(stream, 0), 0);
    for failure in [store.push(&[(1, &more)]), store.pull(&[(1, &out)]), store.init(&[(2, &more)])]
    {
        let failure = failure.unwrap_err();
        assert!(failure.status == 2 && failure.text.contains("captured"), "{failure:?}");
    }
    assert_eq!(gpu::end_capture(stream, &mut 0), 0);
    store.pull(&[(1, &out)]).unwrap();
    gpu::stream_wait(stream);
    assert_eq!(out.get(), value.get());
    assert_eq!(store.key_device(2).unwrap_err().status, 4);
}
