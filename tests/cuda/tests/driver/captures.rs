//! Captures into graphs.

use crate::api::{
    Outcome, check, cuMemAlloc_v2, cuMemsetD8Async, cuStreamBeginCapture_v2, cuStreamCreate,
    cuStreamEndCapture, cuStreamIsCapturing, cuStreamQuery, cuStreamSynchronize,
    cuThreadExchangeStreamCaptureMode, made, memory, start, words_at,
};
use crate::is_child;

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

fn status(stream: u64) -> Outcome<u32> {
    made(|status| cuStreamIsCapturing(stream, status))
}

fn allocates() -> Outcome<u64> {
    made(|address| cuMemAlloc_v2(address, 4))
}

#[test]
fn a_captured_stream_runs_nothing() {
    if !is_child("captures::a_captured_stream_runs_nothing", &[]) {
        return;
    }
    start(0);
    let (stream, address): (u64, u64) = (made(|it| cuStreamCreate(it, 1)).unwrap(), memory(1));
    check(cuMemsetD8Async(address, 1, 4, stream)).unwrap();
    assert_eq!(status(stream), Ok(0));
    check(cuStreamBeginCapture_v2(stream, GLOBAL)).unwrap();
    assert_eq!(status(stream), Ok(1));
    check(cuMemsetD8Async(address, 2, 4, stream)).unwrap();
    assert!(made(|graph| cuStreamEndCapture(stream, graph)).is_ok_and(|graph: u64| graph != 0));
    assert_eq!(words_at(address, 1, stream).unwrap(), [0x0101_0101]);
    check(cuStreamBeginCapture_v2(stream, RELAXED)).unwrap();
    let unsupported = Err("CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED".into());
    assert_eq!(check(cuStreamSynchronize(stream)), unsupported);
    assert_eq!((status(stream), check(cuStreamQuery(stream))), (Ok(2), unsupported.clone()));
    let graph: Outcome<u64> = made(|graph| cuStreamEndCapture(stream, graph));
    assert_eq!(graph, Err("CUDA_ERROR_STREAM_CAPTURE_INVALIDATED".into()));
    assert_eq!((status(stream), check(cuStreamBeginCapture_v2(0, GLOBAL))), (Ok(0), unsupported));
}

#[test]
fn a_capture_forbids_calls_of_threads_by_its_mode() {
    if !is_child("captures::a_capture_forbids_calls_of_threads_by_its_mode", &[]) {
        return;
    }
    start(0);
    let elsewhere = || {
        let other = std::thread::spawn(|| {
            start(0);
            allocates().is_ok()
        });
        other.join().unwrap()
    };
    let blocking: u64 = made(|it| cuStreamCreate(it, 0)).unwrap();
    for (mode, here, there) in
        [(GLOBAL, false, false), (THREAD_LOCAL, false, true), (RELAXED, true, true)]
    {
        check(cuStreamBeginCapture_v2(blocking, mode)).unwrap();
        assert_eq!((allocates().is_ok(), elsewhere()), (here, there), "mode {mode}");
        let mut exchanged = RELAXED;
        let before = check(cuThreadExchangeStreamCaptureMode(&mut exchanged)).map(|()| exchanged);
        assert_eq!((before, allocates().is_ok()), (Ok(GLOBAL), true));
        check(cuThreadExchangeStreamCaptureMode(&mut { GLOBAL })).unwrap();
        // The legacy stream would have to wait for the captured one.
        let legacy = status(0);
        let implicit = Err("CUDA_ERROR_STREAM_CAPTURE_IMPLICIT".into());
        assert_eq!(legacy, if mode == RELAXED { Ok(0) } else { implicit });
        made(|graph: &mut u64| cuStreamEndCapture(blocking, graph)).unwrap();
    }
}
