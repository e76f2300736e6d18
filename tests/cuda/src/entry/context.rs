//! Primary contexts, and which one is current for a thread.

use super::functions;
use super::pointers::Out;
use crate::driver::{Thread, context_of};
use crate::error::Code;

functions! {
    fn cuDevicePrimaryCtxRetain(context: Out<u64>, device: i32) |driver| {
        let device = driver.ordinal(device)?;
        context.set(context_of(device))?;
        driver.retain(device);
    }

    fn cuDevicePrimaryCtxRelease_v2(device: i32) |driver| {
        let device = driver.ordinal(device)?;
        driver.release(device)?;
    }

    fn cuDevicePrimaryCtxGetState(device: i32, flags: Out<u32>, active: Out<i32>) |driver| {
        let device = driver.ordinal(device)?;
        flags.set(0)?;
        active.set(i32::from(driver.is_retained(device)))?;
    }

    fn cuCtxPushCurrent_v2(context: u64) |driver| {
        driver.check_initialized()?;
        Thread::push(driver.of_context(context)?);
    }

    fn cuCtxPopCurrent_v2(context: Out<u64>) |driver| {
        driver.check_initialized()?;
        let device = Thread::pop().ok_or(Code::INVALID_CONTEXT)?;
        context.set_if_there(context_of(device));
    }

    fn cuCtxSetCurrent(context: u64) |driver| {
        driver.check_initialized()?;
        Thread::set(if context == 0 { None } else { Some(driver.of_context(context)?) });
    }

    fn cuCtxGetCurrent(context: Out<u64>) |driver| {
        driver.check_initialized()?;
        context.set(Thread::current().map_or(0, context_of))?;
    }

    fn cuCtxGetDevice(device: Out<i32>) |driver| {
        driver.check_initialized()?;
        let current = Thread::current().ok_or(Code::INVALID_CONTEXT)?;
        device.set(i32::try_from(current).unwrap_or_default())?;
    }

    fn cuCtxSynchronize() |driver| {
        driver.synchronize_device()?;
    }

    fn cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) |driver| {
        driver.current()?;
        least.set_if_there(0);
        greatest.set_if_there(-5);
    }

    fn cuCtxEnablePeerAccess(peer: u64, flags: u32) |driver| {
        let device = driver.current()?;
        let peer = driver.of_context(peer)?;
        if flags != 0 || peer == device {
            return Err(Code::INVALID_VALUE);
        }
        if !driver.settings.has_peers {
            return Err(Code::NO_PEER_ACCESS);
        }
        let peers = &mut driver.machine.memories.peers;
        if peers.contains(&(device, peer)) {
            return Err(Code::PEER_ACCESS_ENABLED);
        }
        peers.push((device, peer));
    }
}
