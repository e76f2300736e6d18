//! Handles: numbers that look like pointers. A free one is given out again at once, as drivers may.

use crate::error::{Code, Result};

#[derive(Debug)]
pub(crate) struct Handles<T> {
    first: u64,
    values: Vec<Option<T>>,
}

impl<T> Handles<T> {
    const STEP: u64 = 64;

    pub(crate) fn new(first: u64) -> Self {
        Self { first, values: Vec::new() }
    }

    pub(crate) fn add(&mut self, value: T) -> u64 {
        let free = self.values.iter().position(Option::is_none);
        let index = free.unwrap_or_else(|| {
            self.values.push(None);
            self.values.len() - 1
        });
        self.values[index] = Some(value);
        self.first + Self::STEP * index as u64
    }

    fn index(&self, handle: u64) -> Result<usize> {
        let distance = handle.checked_sub(self.first).ok_or(Code::INVALID_HANDLE)?;
        let is_handle = distance.is_multiple_of(Self::STEP);
        is_handle.then_some((distance / Self::STEP) as usize).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn get(&self, handle: u64) -> Result<&T> {
        let value = self.values.get(self.index(handle)?);
        value.and_then(Option::as_ref).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn get_mut(&mut self, handle: u64) -> Result<&mut T> {
        let index = self.index(handle)?;
        self.values.get_mut(index).and_then(Option::as_mut).ok_or(Code::INVALID_HANDLE)
    }

    pub(crate) fn remove(&mut self, handle: u64) -> Result<T> {
        let index = self.index(handle)?;
        self.values.get_mut(index).and_then(Option::take).ok_or(Code::INVALID_HANDLE)
    }
}

#[cfg(test)]
mod tests {
    use super::{Code, Handles};

    #[test]
    fn a_free_handle_is_given_out_at_once() {
        let mut handles = Handles::new(0x1000);
        let (one, two) = (handles.add('a'), handles.add('b'));
        assert_eq!((handles.get(one), handles.get(two)), (Ok(&'a'), Ok(&'b')));
        assert_eq!(handles.remove(one), Ok('a'));
        assert_eq!(handles.get(one), Err(Code::INVALID_HANDLE));
        assert_eq!(handles.add('c'), one);
        for wrong in [0, one + 1, two + 64] {
            assert_eq!(handles.remove(wrong), Err(Code::INVALID_HANDLE));
        }
    }
}
