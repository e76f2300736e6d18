//! Finds threads that share an address.

use std::collections::HashMap;

use super::memory::{Fault, FaultKind, Memory};

/// Bytes whose notes lie together.
const PAGE: u64 = 1024;
/// No thread.
const NONE: u32 = 0;
/// More than one thread.
const MANY: u32 = u32::MAX;

/// Which threads have used a byte: the index of the thread plus 1.
#[derive(Clone, Copy)]
struct Note {
    writer: u32,
    reader: u32,
}

/// A memory for one launch: it is a fault if a thread writes what another one has read or written, or
/// reads what another one has written. Without barriers no order is defined between them.
pub struct Watched<'a> {
    memory: &'a mut dyn Memory,
    pages: HashMap<u64, usize>,
    notes: Vec<[Note; PAGE as usize]>,
    /// The page of the last access, and where its notes are.
    last: (u64, usize),
    thread: u32,
}

impl<'a> Watched<'a> {
    /// Watches the accesses of one launch to a memory.
    pub fn new(memory: &'a mut dyn Memory) -> Self {
        let (pages, notes) = (HashMap::new(), Vec::new());
        Self { memory, pages, notes, last: (u64::MAX, 0), thread: NONE }
    }

    fn note(&mut self, address: u64, bytes: usize, writes: bool) -> Result<(), Fault> {
        let page = address / PAGE;
        if self.last.0 != page {
            let notes = &mut self.notes;
            let index = *self.pages.entry(page).or_insert_with(|| {
                notes.push([Note { writer: NONE, reader: NONE }; PAGE as usize]);
                notes.len() - 1
            });
            self.last = (page, index);
        }
        // An aligned access lies in one page.
        let first = (address % PAGE) as usize;
        let thread = self.thread;
        for note in &mut self.notes[self.last.1][first..first + bytes] {
            let is_shared = |other: u32| other != NONE && other != thread;
            if is_shared(note.writer) || (writes && is_shared(note.reader)) {
                return Err(Fault::new(FaultKind::Race, address, bytes));
            }
            if writes {
                note.writer = thread;
            } else {
                note.reader = if is_shared(note.reader) { MANY } else { thread };
            }
        }
        Ok(())
    }
}

impl Memory for Watched<'_> {
    fn load(&mut self, address: u64, bytes: usize) -> Result<u64, Fault> {
        let value = self.memory.load(address, bytes)?;
        self.note(address, bytes, false)?;
        Ok(value)
    }

    fn store(&mut self, address: u64, bytes: usize, value: u64) -> Result<(), Fault> {
        self.note(address, bytes, true)?;
        self.memory.store(address, bytes, value)
    }

    fn enter(&mut self, thread: u32) {
        self.thread = thread + 1;
        self.memory.enter(thread);
    }
}
