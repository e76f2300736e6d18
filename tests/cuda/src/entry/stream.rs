//! Streams, events and captures.

use super::functions;
use super::pointers::{InOut, Out};
use crate::driver::{Driver, Thread, context_of};
use crate::error::{Code, Result};

/// The identity of a stream of the current context, and that of its handle.
fn stream_of(driver: &mut Driver, stream: u64) -> Result<u64> {
    let device = driver.current()?;
    driver.stream(stream, device)
}

functions! {
    fn cuStreamCreate(stream: Out<u64>, flags: u32) |driver| {
        let device = driver.current()?;
        stream.set(driver.create_stream(device, flags, 0)?)?;
    }

    fn cuStreamCreateWithPriority(stream: Out<u64>, flags: u32, priority: i32) |driver| {
        let device = driver.current()?;
        stream.set(driver.create_stream(device, flags, priority)?)?;
    }

    fn cuStreamDestroy_v2(stream: u64) |driver| {
        driver.current()?;
        driver.destroy_stream(stream)?;
    }

    fn cuStreamQuery(stream: u64) |driver| {
        let stream = stream_of(driver, stream)?;
        driver.query_stream(stream)?;
    }

    fn cuStreamSynchronize(stream: u64) |driver| {
        let stream = stream_of(driver, stream)?;
        driver.synchronize(stream)?;
    }

    fn cuStreamWaitEvent(stream: u64, event: u64, flags: u32) |driver| {
        if flags > 1 {
            return Err(Code::INVALID_VALUE);
        }
        driver.wait_event(stream, event)?;
    }

    fn cuStreamGetPriority(stream: u64, priority: Out<i32>) |driver| {
        let stream = stream_of(driver, stream)?;
        priority.set(driver.streams.get(stream)?.priority)?;
    }

    fn cuStreamGetId(stream: u64, id: Out<u64>) |driver| {
        let stream = stream_of(driver, stream)?;
        driver.check_not_captured(stream)?;
        id.set(stream)?;
    }

    fn cuStreamGetCtx(stream: u64, context: Out<u64>) |driver| {
        let stream = stream_of(driver, stream)?;
        context.set(context_of(driver.streams.get(stream)?.device))?;
    }

    fn cuStreamIsCapturing(stream: u64, status: Out<u32>) |driver| {
        let stream = stream_of(driver, stream)?;
        status.set(driver.capture_status(stream)?)?;
    }

    fn cuStreamBeginCapture_v2(stream: u64, mode: u32) |driver| {
        let stream = stream_of(driver, stream)?;
        driver.begin_capture(stream, mode)?;
    }

    fn cuStreamEndCapture(stream: u64, graph: Out<u64>) |driver| {
        let stream = stream_of(driver, stream)?;
        graph.set(0)?;
        graph.set(driver.end_capture(stream)?)?;
    }

    fn cuGraphDestroy(_graph: u64) |driver| {
        driver.check_initialized()?;
    }

    fn cuThreadExchangeStreamCaptureMode(mode: InOut<u32>) |driver| {
        driver.check_initialized()?;
        let wanted = mode.get()?;
        if wanted > 2 {
            return Err(Code::INVALID_VALUE);
        }
        mode.set(Thread::exchange_capture_mode(wanted))?;
    }

    fn cuEventCreate(event: Out<u64>, _flags: u32) |driver| {
        let device = driver.current()?;
        event.set(driver.create_event(device))?;
    }

    fn cuEventRecord(event: u64, stream: u64) |driver| {
        driver.record(event, stream)?;
    }

    fn cuEventQuery(event: u64) |driver| {
        driver.check_initialized()?;
        driver.check_unsafe_call()?;
        let event = driver.event(event)?;
        driver.query_event(&event)?;
    }

    fn cuEventSynchronize(event: u64) |driver| {
        driver.check_initialized()?;
        driver.check_unsafe_call()?;
        let event = driver.event(event)?;
        driver.synchronize_event(&event)?;
    }

    fn cuEventDestroy_v2(event: u64) |driver| {
        driver.check_initialized()?;
        driver.destroy_event(event)?;
    }
}
