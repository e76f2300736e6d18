//! A small library of sums on a device, as libkvstore's is to be: it queues work on the streams of its
//! callers or on one of its own, behind the last use of a key. One fault may be planted in it.

use crate::api::{
    Outcome, Pinned, check, cuCtxPopCurrent_v2, cuCtxPushCurrent_v2, cuEventCreate,
    cuEventDestroy_v2, cuEventQuery, cuEventRecord, cuMemAlloc_v2, cuMemFree_v2, cuMemFreeHost,
    cuMemcpyHtoDAsync_v2, cuStreamGetId, cuStreamWaitEvent, launch, made,
};

/// What the library does wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Planted {
    /// Its own stream does not wait for the caller's.
    NoWaitForTheCaller,
    /// A key's last use on another stream is not waited for.
    NoWaitForTheKey,
    /// The mark of a call is recorded before its launch.
    RecordBeforeLaunch,
    /// A pinned block is given out again when its copy is queued.
    PinnedBlockReused,
    /// A table of jobs on the device is given out again when its launch is queued.
    TableOverwritten,
    /// The caller frees its memory before the call has run (a fault of the caller).
    FreedTooEarly,
    /// The launch has one element too many.
    OneElementBeyond,
    /// Another device is current while memory is allocated.
    WrongDevice,
    /// Streams are told apart by handles, which are used again.
    StreamsByHandle,
    /// A reader of a key leaves no mark.
    ReaderForgotten,
}

impl Planted {
    pub const ALL: [Self; 10] = [
        Self::NoWaitForTheCaller,
        Self::NoWaitForTheKey,
        Self::RecordBeforeLaunch,
        Self::PinnedBlockReused,
        Self::TableOverwritten,
        Self::FreedTooEarly,
        Self::OneElementBeyond,
        Self::WrongDevice,
        Self::StreamsByHandle,
        Self::ReaderForgotten,
    ];
}

/// A point in a stream.
#[derive(Clone, Copy)]
struct Mark {
    event: u64,
    /// What tells the stream apart.
    stream: u64,
}

pub struct Key {
    pub value: u64,
    marks: Vec<Mark>,
}

/// Pinned memory and a table on the device, for one call.
struct Block {
    pinned: Pinned,
    table: u64,
    /// The call that used it last.
    event: Option<u64>,
}

pub struct Library<'a> {
    pub planted: Option<Planted>,
    pub add: u64,
    pub copy: u64,
    pub contexts: &'a [u64; 2],
    pub own: u64,
    /// Elements of a value.
    pub count: usize,
    pub keys: Vec<Key>,
    blocks: Vec<Block>,
    /// What `close` frees.
    pinned: Vec<u64>,
    events: Vec<u64>,
    memory: Vec<u64>,
}

/// What a call does with a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Use {
    Add,
    Read,
}

impl<'a> Library<'a> {
    const JOB_WORDS: usize = 6;

    pub fn new(
        planted: Option<Planted>,
        functions: [u64; 2],
        contexts: &'a [u64; 2],
        own: u64,
        count: usize,
    ) -> Self {
        let [add, copy] = functions;
        Self {
            planted,
            add,
            copy,
            contexts,
            own,
            count,
            keys: Vec::new(),
            blocks: Vec::new(),
            pinned: Vec::new(),
            events: Vec::new(),
            memory: Vec::new(),
        }
    }

    fn has(&self, planted: Planted) -> bool {
        self.planted == Some(planted)
    }

    /// A key whose value is on device 0. It is written by the caller.
    pub fn new_key(&mut self) -> Outcome {
        let is_wrong = self.has(Planted::WrongDevice) && self.keys.len() == 1;
        if is_wrong {
            check(cuCtxPushCurrent_v2(self.contexts[1]))?;
        }
        let value = self.memory(self.count)?;
        if is_wrong {
            made(|context: &mut u64| cuCtxPopCurrent_v2(context))?;
        }
        self.keys.push(Key { value, marks: Vec::new() });
        Ok(())
    }

    /// What tells a stream apart.
    fn identity(&self, stream: u64) -> Outcome<u64> {
        if self.has(Planted::StreamsByHandle) {
            return Ok(stream);
        }
        made(|id| cuStreamGetId(stream, id))
    }

    fn event(&mut self) -> Outcome<u64> {
        let event = made(|event| cuEventCreate(event, 0))?;
        self.events.push(event);
        Ok(event)
    }

    /// The stream waits for what another one has queued.
    fn wait_for(&mut self, stream: u64, other: u64) -> Outcome {
        let event = self.event()?;
        check(cuEventRecord(event, other))?;
        check(cuStreamWaitEvent(stream, event, 0))
    }

    fn memory(&mut self, words: usize) -> Outcome<u64> {
        let address = made(|address| cuMemAlloc_v2(address, 4 * words))?;
        self.memory.push(address);
        Ok(address)
    }

    fn pinned(&mut self) -> Outcome<Pinned> {
        let pinned = Pinned::try_new(Self::JOB_WORDS)?;
        self.pinned.push(pinned.address);
        Ok(pinned)
    }

    /// The index of a block that no queued call uses.
    fn block(&mut self) -> Outcome<usize> {
        let (reuses_pinned, reuses_table) =
            (self.has(Planted::PinnedBlockReused), self.has(Planted::TableOverwritten));
        let is_reused = reuses_pinned || reuses_table;
        let is_free =
            |block: &Block| is_reused || block.event.is_none_or(|it| cuEventQuery(it) == 0);
        let Some(index) = self.blocks.iter().position(is_free) else {
            let (pinned, table) = (self.pinned()?, self.memory(Self::JOB_WORDS)?);
            self.blocks.push(Block { pinned, table, event: None });
            return Ok(self.blocks.len() - 1);
        };
        // Only one half of the block is reused.
        if reuses_table {
            self.blocks[index].pinned = self.pinned()?;
        }
        if reuses_pinned {
            self.blocks[index].table = self.memory(Self::JOB_WORDS)?;
        }
        Ok(index)
    }

    /// Queues a call on the caller's stream, or on the library's own one, which waits for it. Returns
    /// the event behind it.
    pub fn call(
        &mut self,
        what: Use,
        key: usize,
        other: u64,
        stream: u64,
        has_ticket: bool,
    ) -> Outcome<u64> {
        let queue = if has_ticket { self.own } else { stream };
        if has_ticket && !self.has(Planted::NoWaitForTheCaller) {
            self.wait_for(queue, stream)?;
        }
        let identity = self.identity(queue)?;
        if !self.has(Planted::NoWaitForTheKey) {
            for mark in self.keys[key].marks.clone() {
                if mark.stream != identity {
                    check(cuStreamWaitEvent(queue, mark.event, 0))?;
                }
            }
        }
        let event = self.event()?;
        if self.has(Planted::RecordBeforeLaunch) {
            check(cuEventRecord(event, queue))?;
        }
        self.run(what, key, other, queue, event)?;
        if !self.has(Planted::RecordBeforeLaunch) {
            check(cuEventRecord(event, queue))?;
        }
        let mark = Mark { event, stream: identity };
        match what {
            Use::Add => self.keys[key].marks = vec![mark],
            Use::Read if self.has(Planted::ReaderForgotten) => {}
            Use::Read => self.keys[key].marks.push(mark),
        }
        Ok(event)
    }

    /// Queues the copy of the job and the launch.
    fn run(&mut self, what: Use, key: usize, other: u64, queue: u64, event: u64) -> Outcome {
        let index = self.block()?;
        let value = self.keys[key].value;
        let (function, out, input) = match what {
            Use::Add => (self.add, value, other),
            Use::Read => (self.copy, other, value),
        };
        let count = self.count as u64 + u64::from(self.has(Planted::OneElementBeyond));
        let halves = |value: u64| [value & 0xffff_ffff, value >> 32];
        let words = [count, out, input].into_iter().flat_map(halves);
        let words: Vec<u32> = words.map(|word| u32::try_from(word).unwrap()).collect();
        let block = &mut self.blocks[index];
        block.pinned.set(&words);
        block.event = Some(event);
        check(cuMemcpyHtoDAsync_v2(block.table, block.pinned.address, 4 * words.len(), queue))?;
        let blocks = u32::try_from(self.count / 32 + 1).unwrap();
        launch(function, blocks, queue, &[block.table])
    }

    /// Frees what the library has; nothing is queued any more.
    pub fn close(self) {
        for event in self.events {
            cuEventDestroy_v2(event);
        }
        for address in self.memory {
            cuMemFree_v2(address);
        }
        for address in self.pinned {
            cuMemFreeHost(address);
        }
    }
}
