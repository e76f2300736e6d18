//! Memory as a user's program has it, and how much of it there is.

use std::fs;

/// Where malloc puts every large array: so many bytes past a multiple of 64.
pub const MALLOC: usize = 16;

/// A plain array that starts so many bytes past a multiple of 64, so that no run is lucky. No huge
/// pages are asked for.
pub struct Array<T> {
    memory: Vec<T>,
    start: usize,
    len: usize,
}

impl<T: Copy> Array<T> {
    pub fn new(offset: usize, len: usize, element: impl Fn(usize) -> T) -> Self {
        let (line, offset) = (64 / size_of::<T>(), offset / size_of::<T>());
        let mut memory: Vec<T> = Vec::with_capacity(len + 2 * line);
        let start = memory.as_ptr().align_offset(64) + offset;
        memory.extend((0..start).map(|_| element(0)));
        memory.extend((0..len).map(element));
        Self { memory, start, len }
    }

    pub fn get(&self) -> &[T] {
        &self.memory[self.start..self.start + self.len]
    }

    pub fn get_mut(&mut self) -> &mut [T] {
        &mut self.memory[self.start..self.start + self.len]
    }
}

/// Bytes that programs can still get, if the system tells.
pub fn available_bytes() -> Option<f64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0)
}
