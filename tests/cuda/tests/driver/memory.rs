//! Memory: bounds, first writes, frees, pools, pinned blocks, peers.

use crate::api::{
    Outcome, Pinned, calls, check, cuCtxEnablePeerAccess, cuCtxPushCurrent_v2, cuMemAlloc_v2,
    cuMemAllocFromPoolAsync, cuMemFree_v2, cuMemFreeAsync, cuMemFreeHost, cuMemGetInfo_v2,
    cuMemHostGetFlags, cuMemPoolCreate, cuMemPoolDestroy, cuMemPoolSetAttribute, cuMemPoolTrimTo,
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoHAsync_v2, cuMemcpyHtoDAsync_v2, cuMemcpyPeerAsync,
    cuMemsetD8Async, cuPointerGetAttribute, cuPointerGetAttributes, cuStreamCreate,
    cuStreamSynchronize, function, kernels, launch, made, memory, message, seed, start, touch,
    words_at,
};
use crate::{child, is_child};

const ILLEGAL: &str = "CUDA_ERROR_ILLEGAL_ADDRESS";

#[test]
fn the_host_may_not_touch_the_memory_of_a_device() {
    let test = "memory::the_host_may_not_touch_the_memory_of_a_device";
    if let Some((status, text)) = child(test, &[]) {
        use std::os::unix::process::ExitStatusExt;
        assert_eq!(status.signal(), Some(libc::SIGSEGV), "{text}");
        return;
    }
    start(0);
    let address = memory(16);
    check(cuMemsetD8Async(address, 1, 64, 0)).unwrap();
    touch(address);
}

#[test]
fn accesses_of_commands_are_checked() {
    if !is_child("memory::accesses_of_commands_are_checked", &[]) {
        return;
    }
    start(0);
    let set = function(kernels(), c"set");
    let run = |count: u64| {
        seed(1);
        let address = memory(40);
        launch(set, 2, 0, &[address, 7, count]).and_then(|()| words_at(address, 40, 0))
    };
    assert_eq!(run(40).unwrap(), (7..47).collect::<Vec<u32>>());
    assert_eq!(run(41), Err(ILLEGAL.into()), "one element beyond");
    assert!(message().contains("kernel set: Address, 4 bytes"), "{}", message());
    let later: Outcome<u64> = made(|address| cuMemAlloc_v2(address, 4));
    assert_eq!(later, Err(ILLEGAL.into()), "the error stays");
    assert_eq!(run(39), Err(ILLEGAL.into()), "the last word was never written");
    assert!(message().contains("copy to the host: Uninitialized"), "{}", message());
    seed(1);
    let address = memory(40);
    check(cuMemFree_v2(address)).unwrap();
    launch(set, 2, 0, &[address, 7, 40]).unwrap();
    assert_eq!(check(cuStreamSynchronize(0)), Err(ILLEGAL.into()), "after the free");
    seed(1);
    assert_eq!(check(cuMemFree_v2(address)), Err("CUDA_ERROR_INVALID_VALUE".into()));
}

#[test]
fn copies_take_the_notes_of_what_was_written_along() {
    if !is_child("memory::copies_take_the_notes_of_what_was_written_along", &[]) {
        return;
    }
    start(0);
    let (one, two) = (memory(40), memory(40));
    check(cuMemsetD8Async(one, 3, 80, 0)).unwrap();
    check(cuMemcpyDtoDAsync_v2(two, one, 160, 0)).unwrap();
    assert_eq!(words_at(two, 20, 0).unwrap(), [0x0303_0303; 20]);
    assert_eq!(words_at(two, 21, 0), Err(ILLEGAL.into()));
}

#[test]
fn memory_may_be_little_and_pools_keep_some() {
    let test = "memory::memory_may_be_little_and_pools_keep_some";
    if !is_child(test, &[("MEMORY", "1000")]) {
        return;
    }
    start(0);
    let free = || {
        let mut total = 0;
        let free: usize = made(|free| cuMemGetInfo_v2(free, &mut total)).unwrap();
        assert_eq!(total, 1_000);
        free
    };
    let memory = |bytes| -> Outcome<u64> { made(|address| cuMemAlloc_v2(address, bytes)) };
    let mut properties = [0; 22];
    (properties[0], properties[2]) = (1, 1);
    let pool: u64 = made(|pool| cuMemPoolCreate(pool, &properties)).unwrap();
    check(cuMemPoolSetAttribute(pool, 4, &mut u64::MAX.clone())).unwrap();
    let taken: u64 = made(|it| cuMemAllocFromPoolAsync(it, 800, pool, 0)).unwrap();
    check(cuMemFreeAsync(taken, 0)).unwrap();
    check(cuStreamSynchronize(0)).unwrap();
    assert_eq!((free(), memory(300)), (200, Err("CUDA_ERROR_OUT_OF_MEMORY".into())));
    check(cuMemPoolTrimTo(pool, 0)).unwrap();
    let taken = memory(300).unwrap();
    assert_eq!(free(), 700);
    check(cuMemFree_v2(taken)).unwrap();
    assert_eq!(free(), 1_000);
    check(cuMemPoolDestroy(pool)).unwrap();
}

#[test]
fn memory_of_a_pool_is_there_in_stream_order() {
    if !is_child("memory::memory_of_a_pool_is_there_in_stream_order", &[]) {
        return;
    }
    start(0);
    let mut properties = [0; 22];
    (properties[0], properties[2]) = (1, 1);
    let pool: u64 = made(|pool| cuMemPoolCreate(pool, &properties)).unwrap();
    let streams: [u64; 2] = [1, 1].map(|flags| made(|it| cuStreamCreate(it, flags)).unwrap());
    let outcome = |other: u64, number: u64| {
        seed(number);
        let address: u64 = made(|it| cuMemAllocFromPoolAsync(it, 16, pool, streams[0])).unwrap();
        check(cuMemsetD8Async(address, 1, 16, other)).unwrap();
        check(cuStreamSynchronize(other))
    };
    assert!((1..20).all(|number| outcome(streams[0], number).is_ok()));
    let found = (1..=100).filter(|number| outcome(streams[1], *number).is_err()).count();
    assert!(found > 20, "{found} of 100 seeds");
}

#[test]
fn pinned_memory_is_read_when_the_copy_runs_and_other_memory_at_the_call() {
    let test = "memory::pinned_memory_is_read_when_the_copy_runs_and_other_memory_at_the_call";
    if !is_child(test, &[]) {
        return;
    }
    start(0);
    let (pinned, address) = (Pinned::new(4), memory(4));
    let mut plain = [1_u32; 4];
    check(cuMemcpyHtoDAsync_v2(address, plain.as_mut_ptr() as u64, 16, 0)).unwrap();
    plain.fill(2);
    assert_eq!(words_at(address, 4, 0).unwrap(), [1; 4]);
    let late = |number: u64| {
        seed(number);
        pinned.set(&[1; 4]);
        check(cuMemcpyHtoDAsync_v2(address, pinned.address, 16, 0)).unwrap();
        pinned.set(&[2; 4]);
        words_at(address, 4, 0).unwrap()[0]
    };
    let read: Vec<u32> = (1..=40).map(late).collect();
    assert!(read.contains(&1) && read.iter().filter(|it| **it == 2).count() > 20, "{read:?}");
    // A copy to plain memory has run when the call returns.
    check(cuMemcpyDtoHAsync_v2(plain.as_mut_ptr() as u64, address, 16, 0)).unwrap();
    assert_eq!(plain, [*read.last().unwrap(); 4]);
    assert_eq!(calls(c"wait for a pageable copy"), 1);
    let is_found = |number: &u64| {
        seed(*number);
        let pinned = Pinned::new(4);
        check(cuMemcpyHtoDAsync_v2(address, pinned.address, 16, 0)).unwrap();
        check(cuMemFreeHost(pinned.address)).unwrap();
        check(cuStreamSynchronize(0)) == Err(ILLEGAL.into())
    };
    let found = (1..=40).filter(is_found).count();
    assert!(found > 20, "freed before the copy: found on {found} of 40 seeds");
}

#[test]
fn pointers_tell_what_they_are() {
    if !is_child("memory::pointers_tell_what_they_are", &[("DEVICES", "2")]) {
        return;
    }
    start(0);
    let context = start(1);
    let (address, pinned) = (memory(10), Pinned::new(10));
    let all = |pointer: u64| {
        let mut values = [0_u64; 4];
        // Context, type, device, beginning of the range.
        let [one, two, three, four] = &mut values;
        let outs: [*mut u64; 4] = [one, two, three, four];
        check(cuPointerGetAttributes(4, &[1, 2, 9, 11], &outs, pointer)).unwrap();
        values
    };
    assert_eq!(all(address + 36), [context, 2, 1, address]);
    assert_eq!(all(pinned.address), [context, 1, 1, pinned.address]);
    assert_eq!(all(address + 40), [0, 0, 0xffff_fffe, 0], "beyond the end");
    assert_eq!(made(|value| cuPointerGetAttribute(value, 12, address)), Ok(40));
    let plain = 7_u64;
    let unknown: Outcome<u64> =
        made(|value| cuPointerGetAttribute(value, 2, std::ptr::from_ref(&plain) as u64));
    assert_eq!(unknown, Err("CUDA_ERROR_INVALID_VALUE".into()));
    assert_eq!(made(|flags| cuMemHostGetFlags(flags, pinned.address)), Ok(0));
    let wrong: Outcome<u32> = made(|flags| cuMemHostGetFlags(flags, address));
    assert_eq!(wrong, Err("CUDA_ERROR_INVALID_VALUE".into()));
}

#[test]
fn another_device_needs_peer_access_or_a_copy_between_them() {
    let test = "memory::another_device_needs_peer_access_or_a_copy_between_them";
    if !is_child(test, &[("DEVICES", "2")]) {
        return;
    }
    let (one, two) = (start(0), start(1));
    let there = memory(32);
    check(cuCtxPushCurrent_v2(one)).unwrap();
    let (set, here) = (function(kernels(), c"set"), memory(32));
    launch(set, 1, 0, &[here, 5, 32]).unwrap();
    check(cuMemcpyPeerAsync(there, two, here, one, 128, 0)).unwrap();
    check(cuStreamSynchronize(0)).unwrap();
    launch(set, 1, 0, &[there, 6, 32]).unwrap();
    assert_eq!(check(cuStreamSynchronize(0)), Err(ILLEGAL.into()));
    seed(1);
    check(cuCtxEnablePeerAccess(two, 0)).unwrap();
    let again = check(cuCtxEnablePeerAccess(two, 0));
    assert_eq!(again, Err("CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED".into()));
    launch(set, 1, 0, &[there, 6, 32]).unwrap();
    check(cuStreamSynchronize(0)).unwrap();
    check(cuCtxPushCurrent_v2(two)).unwrap();
    assert_eq!(words_at(there, 2, 0).unwrap(), [6, 7]);
}
