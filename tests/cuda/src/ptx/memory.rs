//! The memory that kernels load from and store to.

use std::fmt;

/// Why a kernel stops.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultKind {
    /// The address is in no memory that the kernel may use.
    Address,
    /// The address is no multiple of the size.
    Misaligned,
    /// The bytes were never written.
    Uninitialized,
    /// Two threads of the launch share the address, and one of them writes.
    Race,
    /// The result of an integer division by zero is unspecified.
    DivisionByZero,
    /// A thread ran more than 2^28 instructions.
    Endless,
    /// The launch does not fit the kernel: numbers of arguments or threads.
    Launch,
}

/// The instruction and the thread of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line of the text of PTX.
    pub line: usize,
    /// The index of the block.
    pub block: [u32; 3],
    /// The index of the thread in its block.
    pub thread: [u32; 3],
}

/// What stopped a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fault {
    /// Why.
    pub kind: FaultKind,
    /// The address of the access; 0 where there is none.
    pub address: u64,
    /// The size of the access; 0 where there is none.
    pub bytes: usize,
    /// Where, once the interpreter has added it.
    pub place: Option<Place>,
}

impl Fault {
    /// A fault of an access.
    #[must_use]
    pub fn new(kind: FaultKind, address: u64, bytes: usize) -> Self {
        Self { kind, address, bytes, place: None }
    }

    pub(super) fn without_access(kind: FaultKind) -> Self {
        Self::new(kind, 0, 0)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{:?}", self.kind)?;
        if self.bytes > 0 {
            write!(out, ", {} bytes at {:#x}", self.bytes, self.address)?;
        }
        if let Some(Place { line, block, thread }) = self.place {
            write!(out, ", line {line} of the PTX, block {block:?}, thread {thread:?}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

/// What a kernel sees as global memory.
pub trait Memory {
    /// Loads 1, 2, 4 or 8 bytes, little-endian. The address is a multiple of their number.
    fn load(&mut self, address: u64, bytes: usize) -> Result<u64, Fault>;

    /// Stores the low bytes of a value, little-endian. The address is a multiple of their number.
    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Result<(), Fault>;

    /// The accesses that follow are those of this thread of the launch.
    fn enter(&mut self, _thread: u32) {}
}

/// Host buffers with addresses of their own, between which there are gaps.
#[derive(Debug, Default)]
pub struct HostMemory {
    buffers: Vec<(u64, Vec<u8>)>,
    /// The buffer of the last access.
    last: usize,
}

impl HostMemory {
    const FIRST: u64 = 0x1000_0000;
    const ALIGNMENT: u64 = 256;

    /// A memory without buffers.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a buffer; returns its address, a multiple of 256.
    pub fn add(&mut self, bytes: impl Into<Vec<u8>>) -> u64 {
        let end = |(address, bytes): &(u64, Vec<u8>)| address + bytes.len() as u64;
        let end = self.buffers.last().map_or(Self::FIRST, end);
        let address = end.next_multiple_of(Self::ALIGNMENT) + Self::ALIGNMENT;
        self.buffers.push((address, bytes.into()));
        address
    }

    /// The bytes of the buffer at an address that `add` returned.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[must_use]
    pub fn bytes(&self, address: u64) -> &[u8] {
        let buffer = self.buffers.iter().find(|buffer| buffer.0 == address);
        &buffer.expect("a buffer at this address").1
    }

    fn find(&mut self, address: u64, bytes: usize) -> Result<&mut [u8], Fault> {
        let range = |(start, buffer): &(u64, Vec<u8>)| {
            let offset = usize::try_from(address.checked_sub(*start)?).ok()?;
            let end = offset.checked_add(bytes)?;
            (end <= buffer.len()).then_some(offset..end)
        };
        let (index, range) = match self.buffers.get(self.last).and_then(range) {
            Some(found) => (self.last, found),
            None => (self.buffers.iter().enumerate())
                .find_map(|(index, buffer)| Some((index, range(buffer)?)))
                .ok_or(Fault::new(FaultKind::Address, address, bytes))?,
        };
        self.last = index;
        Ok(&mut self.buffers[index].1[range])
    }
}

impl Memory for HostMemory {
    fn load(&mut self, address: u64, bytes: usize) -> Result<u64, Fault> {
        Ok(number(self.find(address, bytes)?))
    }

    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Result<(), Fault> {
        put(self.find(address, bytes)?, value);
        Ok(())
    }
}

/// At most 8 bytes as a little-endian number.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    match *bytes {
        [a] => a.into(),
        [a, b] => u16::from_le_bytes([a, b]).into(),
        [a, b, c, d] => u32::from_le_bytes([a, b, c, d]).into(),
        _ => bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)),
    }
}

/// Puts the low bytes of a number, little-endian.
pub(crate) fn put(bytes: &mut [u8], value: u64) {
    let length = bytes.len();
    bytes.copy_from_slice(&value.to_le_bytes()[..length]);
}
