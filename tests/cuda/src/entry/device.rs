//! Start, version, devices.

use std::ffi::{CStr, c_char};

use super::functions;
use super::pointers::Out;
use crate::driver::{attribute, uuid};
use crate::error::Code;

const NAME: &[u8] = b"CUDA stand-in\0";

functions! {
    fn cuInit(flags: u32) |driver| {
        if flags != 0 {
            return Err(Code::INVALID_VALUE);
        }
        driver.initialize()?;
    }

    fn cuDriverGetVersion(version: Out<i32>) |driver| {
        version.set(i32::try_from(driver.settings.version).unwrap_or(i32::MAX))?;
    }

    fn cuDeviceGetCount(count: Out<i32>) |driver| {
        driver.check_initialized()?;
        count.set(i32::try_from(driver.settings.devices).unwrap_or(i32::MAX))?;
    }

    fn cuDeviceGet(device: Out<i32>, ordinal: i32) |driver| {
        driver.ordinal(ordinal)?;
        device.set(ordinal)?;
    }

    fn cuDeviceGetName(name: Out<u8>, length: i32, device: i32) |driver| {
        driver.ordinal(device)?;
        let room = usize::try_from(length).unwrap_or(0);
        if room < NAME.len() {
            return Err(Code::INVALID_VALUE);
        }
        name.set(0)?;
        name.set_all(NAME);
    }

    fn cuDeviceGetUuid(out: Out<[u8; 16]>, device: i32) |driver| {
        out.set(uuid(driver.ordinal(device)?))?;
    }

    fn cuDeviceGetUuid_v2(out: Out<[u8; 16]>, device: i32) |driver| {
        out.set(uuid(driver.ordinal(device)?))?;
    }

    fn cuDeviceGetAttribute(value: Out<i32>, number: u32, device: i32) |driver| {
        let device = driver.ordinal(device)?;
        value.set(attribute(&driver.settings, device, number)?)?;
    }

    fn cuDeviceTotalMem_v2(bytes: Out<usize>, device: i32) |driver| {
        let device = driver.ordinal(device)?;
        bytes.set(driver.machine.memories.info(device).1 as usize)?;
    }

    fn cuDeviceCanAccessPeer(can: Out<i32>, device: i32, peer: i32) |driver| {
        let (device, peer) = (driver.ordinal(device)?, driver.ordinal(peer)?);
        can.set(i32::from(driver.settings.has_peers && device != peer))?;
    }

    fn cuGetErrorName(error: u32, text: Out<*const c_char>) |_driver| {
        text.set(Code(error).texts().map_or(std::ptr::null(), |(name, _)| name.as_ptr()))?;
        Code(error).texts().map(drop).ok_or(Code::INVALID_VALUE)?;
    }

    fn cuGetErrorString(error: u32, text: Out<*const c_char>) |_driver| {
        let found: Option<&CStr> = Code(error).texts().map(|(_, text)| text);
        text.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
        found.map(drop).ok_or(Code::INVALID_VALUE)?;
    }
}
