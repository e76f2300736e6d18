//! The order between streams.

use crate::api::{
    Outcome, check, cuCtxSynchronize, cuEventCreate, cuEventDestroy_v2, cuEventQuery,
    cuEventRecord, cuEventSynchronize, cuMemFree_v2, cuMemsetD8Async, cuStreamCreate,
    cuStreamCreateWithPriority, cuStreamDestroy_v2, cuStreamGetCtx, cuStreamGetId,
    cuStreamGetPriority, cuStreamQuery, cuStreamSynchronize, cuStreamWaitEvent, function, kernels,
    launch, made, memory, seed, start, words_at,
};
use crate::is_child;

const BLOCKING: u32 = 0;
const NON_BLOCKING: u32 = 1;

fn stream(flags: u32) -> u64 {
    made(|stream| cuStreamCreate(stream, flags)).unwrap()
}

/// On how many of 100 seeds a fill on the second stream comes after one on the first.
fn in_order(first: u64, second: u64, between: impl Fn(u64, u64)) -> usize {
    let address = memory(1);
    let comes_after = |number: &u64| {
        seed(*number);
        check(cuMemsetD8Async(address, 1, 4, first)).unwrap();
        between(first, second);
        check(cuMemsetD8Async(address, 2, 4, second)).unwrap();
        check(cuCtxSynchronize()).unwrap();
        words_at(address, 1, second).unwrap() == [0x0202_0202]
    };
    (1..=100).filter(comes_after).count()
}

#[test]
fn only_events_and_the_legacy_stream_restrict_the_order() {
    let test = "streams::only_events_and_the_legacy_stream_restrict_the_order";
    if !is_child(test, &[]) {
        return;
    }
    start(0);
    let (legacy, per_thread) = (0, 2);
    let (blocking, other) = (stream(BLOCKING), stream(BLOCKING));
    let free = stream(NON_BLOCKING);
    let nothing = |_, _| {};
    for (first, second) in [(legacy, blocking), (blocking, legacy), (legacy, per_thread), (1, 0)] {
        assert_eq!(in_order(first, second, nothing), 100, "{first:#x} before {second:#x}");
    }
    let loose = [(blocking, other), (free, legacy), (legacy, free), (per_thread, blocking)];
    for (first, second) in loose {
        let count = in_order(first, second, nothing);
        assert!((10..90).contains(&count), "{count} of 100, {first:#x} before {second:#x}");
    }
    let event: u64 = made(|event| cuEventCreate(event, 0)).unwrap();
    let waits = |first, second| {
        check(cuEventRecord(event, first)).unwrap();
        check(cuStreamWaitEvent(second, event, 0)).unwrap();
    };
    for (first, second) in loose {
        assert_eq!(in_order(first, second, waits), 100, "{first:#x} before {second:#x}");
    }
    // A wait is for the record before it, whatever the event records later.
    let third = stream(NON_BLOCKING);
    let records_again = |first, second| {
        waits(first, second);
        check(cuEventRecord(event, third)).unwrap();
    };
    for (first, second) in loose {
        assert_eq!(in_order(first, second, records_again), 100, "{first:#x} before {second:#x}");
    }
    // The legacy stream carries an order from one blocking stream to another.
    let carries = |_, _| {
        check(cuMemsetD8Async(memory(1), 1, 4, legacy)).unwrap();
    };
    assert_eq!(in_order(blocking, other, carries), 100);
}

#[test]
fn nothing_runs_before_a_caller_waits_or_queries() {
    if !is_child("streams::nothing_runs_before_a_caller_waits_or_queries", &[]) {
        return;
    }
    start(0);
    let (one, event) = (stream(NON_BLOCKING), made(|event| cuEventCreate(event, 0)).unwrap());
    let mut polls = 0;
    for number in 1..=100 {
        seed(number);
        let event: u64 = event;
        assert_eq!(check(cuEventQuery(event)), Ok(()), "never recorded, or passed");
        for _ in 0..10 {
            check(cuMemsetD8Async(memory(1), 1, 4, one)).unwrap();
        }
        check(cuEventRecord(event, one)).unwrap();
        while cuEventQuery(event) != 0 {
            polls += 1;
        }
        check(cuStreamQuery(one)).unwrap();
        check(cuEventRecord(event, one)).unwrap();
        check(cuEventSynchronize(event)).unwrap();
    }
    assert!(polls > 200, "{polls} polls found the event not ready");
}

#[test]
fn threads_use_their_own_streams_at_once() {
    if !is_child("streams::threads_use_their_own_streams_at_once", &[("DEVICES", "2")]) {
        return;
    }
    let work = |number: u32| {
        start(i32::try_from(number % 2).unwrap());
        let set = function(kernels(), c"set");
        let stream = if number < 2 { 2 } else { stream(NON_BLOCKING) };
        for round in 0..50 {
            let address = memory(40);
            let first = 1_000 * number + round;
            launch(set, 2, stream, &[address, first.into(), 40]).unwrap();
            let expected: Vec<u32> = (first..first + 40).collect();
            assert_eq!(words_at(address, 40, stream).unwrap(), expected);
            check(cuMemFree_v2(address)).unwrap();
        }
    };
    std::thread::scope(|scope| {
        for number in 0..4 {
            scope.spawn(move || work(number));
        }
    });
}

#[test]
fn a_wait_is_for_the_last_record_before_it() {
    if !is_child("streams::a_wait_is_for_the_last_record_before_it", &[]) {
        return;
    }
    start(0);
    let (one, two) = (stream(NON_BLOCKING), stream(NON_BLOCKING));
    let event: u64 = made(|event| cuEventCreate(event, 0)).unwrap();
    // Never recorded: nothing to wait for.
    check(cuStreamWaitEvent(two, event, 0)).unwrap();
    check(cuStreamSynchronize(two)).unwrap();
    let count = in_order(one, two, |first, second| {
        check(cuStreamWaitEvent(second, event, 0)).unwrap();
        check(cuEventRecord(event, first)).unwrap();
    });
    assert!(count < 90, "{count} of 100: a later record does not concern the wait");
    // A destroyed event still passes.
    let count = in_order(one, two, |first, second| {
        let event: u64 = made(|event| cuEventCreate(event, 0)).unwrap();
        check(cuEventRecord(event, first)).unwrap();
        check(cuStreamWaitEvent(second, event, 0)).unwrap();
        check(cuEventDestroy_v2(event)).unwrap();
    });
    assert_eq!(count, 100);
}

#[test]
fn a_destroyed_stream_runs_on_and_its_handle_is_used_again() {
    let test = "streams::a_destroyed_stream_runs_on_and_its_handle_is_used_again";
    if !is_child(test, &[]) {
        return;
    }
    let context = start(0);
    let id = |stream| -> Outcome<u64> { made(|id| cuStreamGetId(stream, id)) };
    let (one, address) = (stream(NON_BLOCKING), memory(1));
    let first = id(one).unwrap();
    check(cuMemsetD8Async(address, 1, 4, one)).unwrap();
    check(cuStreamDestroy_v2(one)).unwrap();
    assert_eq!(id(one), Err("CUDA_ERROR_INVALID_HANDLE".into()));
    let two: u64 = made(|it| cuStreamCreateWithPriority(it, 1, -3)).unwrap();
    assert_eq!((two, made(|priority| cuStreamGetPriority(two, priority))), (one, Ok(-3)));
    assert_ne!(id(two).unwrap(), first);
    assert_eq!(made(|it| cuStreamGetCtx(two, it)), Ok(context));
    check(cuCtxSynchronize()).unwrap();
    assert_eq!(words_at(address, 1, two).unwrap(), [0x0101_0101]);
    let threads: Vec<u64> = vec![
        id(2).unwrap(),
        std::thread::spawn(|| {
            start(0);
            made(|id| cuStreamGetId(2, id)).unwrap()
        })
        .join()
        .unwrap(),
    ];
    assert_ne!(threads[0], threads[1], "each thread has its own default stream");
    assert_eq!(id(0), id(1));
}
