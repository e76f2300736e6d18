//! Copies and fills.

use super::functions;
use super::pointers::Host;

functions! {
    fn cuMemcpyHtoDAsync_v2(to: u64, from: Host, bytes: usize, stream: u64) |driver| {
        driver.copy_from_host(to, from.span(bytes)?, stream)?;
    }

    fn cuMemcpyDtoHAsync_v2(to: Host, from: u64, bytes: usize, stream: u64) |driver| {
        driver.copy_to_host(to.span(bytes)?, from, stream)?;
    }

    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) |driver| {
        driver.copy(to, from, bytes, stream)?;
    }

    fn cuMemcpyPeerAsync(
        to: u64,
        to_context: u64,
        from: u64,
        from_context: u64,
        bytes: usize,
        stream: u64,
    ) |driver| {
        let to = (driver.of_context(to_context)?, to);
        let from = (driver.of_context(from_context)?, from);
        driver.copy_peer(to, from, bytes, stream)?;
    }

    fn cuMemsetD8Async(to: u64, byte: u8, bytes: usize, stream: u64) |driver| {
        driver.fill(to, byte, bytes, stream)?;
    }
}
