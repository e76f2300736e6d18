//! A caller of the library: streams come and go, values are pushed, pulled and freed.

use super::library::{Library, Planted, Use};
use crate::api::{
    Outcome, Pinned, check, cuCtxSynchronize, cuEventSynchronize, cuMemAllocFromPoolAsync,
    cuMemFreeAsync, cuMemFreeHost, cuMemPoolCreate, cuMemcpyDtoHAsync_v2, cuMemsetD8Async,
    cuStreamCreate, cuStreamDestroy_v2, cuStreamSynchronize, cuStreamWaitEvent, function, kernels,
    launch, made, seed, start, words_at,
};

/// Elements of a value; not a multiple of the threads of a block.
const COUNT: usize = 70;
const KEYS: usize = 3;
const NON_BLOCKING: u32 = 1;

/// Random numbers (xorshift).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 16).unwrap() % bound
    }
}

/// Two devices, of which the first one is used.
pub struct Machine {
    contexts: [u64; 2],
    functions: [u64; 3],
    pool: u64,
}

struct Program<'a> {
    machine: &'a Machine,
    library: Library<'a>,
    draw: Draw,
    streams: Vec<u64>,
    /// The value that each key is to have: that of its first element, the others follow from it by
    /// the sum of steps.
    model: Vec<(u32, u32)>,
    /// Values that were pulled: where they are, and what they are to be.
    pulled: Vec<(Pinned, (u32, u32))>,
}

fn words((first, step): (u32, u32)) -> Vec<u32> {
    (0..u32::try_from(COUNT).unwrap())
        .map(|index| first.wrapping_add(step.wrapping_mul(index)))
        .collect()
}

impl Machine {
    pub fn new() -> Self {
        let other = start(1);
        let contexts = [start(0), other];
        let module = kernels();
        let functions = [c"add", c"copy", c"set"].map(|name| function(module, name));
        let mut properties = [0; 22];
        (properties[0], properties[2]) = (1, 1);
        let pool = made(|pool| cuMemPoolCreate(pool, &properties)).unwrap();
        Self { contexts, functions, pool }
    }

    /// Runs one program; an error is a fault that was found.
    pub fn run(&self, number: u64, planted: Option<Planted>) -> Outcome {
        seed(number);
        let own = made(|stream| cuStreamCreate(stream, NON_BLOCKING))?;
        let [add, copy, _] = self.functions;
        let library = Library::new(planted, [add, copy], &self.contexts, own, COUNT);
        let draw = Draw(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let (model, pulled) = (Vec::new(), Vec::new());
        let mut program = Program { machine: self, library, draw, streams: vec![0], model, pulled };
        let outcome = program.run();
        // Nothing is queued and no device is lost from here on.
        seed(number);
        program.close();
        outcome
    }
}

impl Program<'_> {
    fn run(&mut self) -> Outcome {
        for _ in 0..2 {
            self.streams.push(made(|stream| cuStreamCreate(stream, NON_BLOCKING))?);
        }
        for key in 0..KEYS {
            self.library.new_key()?;
            // The first value of a key is that of a push onto zeros.
            let value = self.library.keys[key].value;
            let bytes = 4 * COUNT;
            check(cuMemsetD8Async(value, 0, bytes, self.library.own))?;
            check(cuStreamSynchronize(self.library.own))?;
            self.model.push((0, 0));
        }
        for _ in 0..24 {
            match self.draw.below(8) {
                0..=3 => self.push()?,
                4..=6 => self.pull()?,
                _ => self.replace_stream()?,
            }
        }
        check(cuCtxSynchronize())?;
        for (pinned, expected) in &self.pulled {
            same(&pinned.get(), *expected)?;
        }
        for (key, expected) in self.library.keys.iter().zip(&self.model) {
            same(&words_at(key.value, COUNT, 0)?, *expected)?;
        }
        Ok(())
    }

    fn any_stream(&mut self) -> u64 {
        let index = self.draw.below(self.streams.len());
        self.streams[index]
    }

    /// The caller computes a gradient on its stream, pushes it, and frees it when it may.
    fn push(&mut self) -> Outcome {
        let (stream, key) = (self.any_stream(), self.draw.below(KEYS));
        let has_ticket = self.draw.below(2) == 0;
        self.push_on(stream, key, has_ticket)
    }

    fn push_on(&mut self, stream: u64, key: usize, has_ticket: bool) -> Outcome {
        let first = u32::try_from(self.draw.below(1_000)).unwrap();
        let pool = self.machine.pool;
        let gradient: u64 =
            made(|address| cuMemAllocFromPoolAsync(address, 4 * COUNT, pool, stream))?;
        let count = COUNT as u64;
        launch(self.machine.functions[2], 3, stream, &[gradient, first.into(), count])?;
        let done = self.library.call(Use::Add, key, gradient, stream, has_ticket)?;
        let (sum, step) = self.model[key];
        self.model[key] = (sum.wrapping_add(first), step + 1);
        self.release(gradient, stream, has_ticket.then_some(done))
    }

    /// Memory of a call with a ticket is lent until its event; else it may be freed in stream order.
    fn release(&mut self, address: u64, stream: u64, ticket: Option<u64>) -> Outcome {
        let is_early = self.library.planted == Some(Planted::FreedTooEarly);
        match ticket {
            Some(event) if !is_early && self.draw.below(2) == 0 => {
                check(cuEventSynchronize(event))?;
            }
            Some(event) if !is_early => check(cuStreamWaitEvent(stream, event, 0))?,
            _ => {}
        }
        check(cuMemFreeAsync(address, stream))
    }

    /// Pulls a value into memory of the caller, and copies it to the host on the caller's stream.
    fn pull(&mut self) -> Outcome {
        let (stream, key) = (self.any_stream(), self.draw.below(KEYS));
        let pool = self.machine.pool;
        let out: u64 = made(|address| cuMemAllocFromPoolAsync(address, 4 * COUNT, pool, stream))?;
        let has_ticket = self.draw.below(3) == 0;
        let done = self.library.call(Use::Read, key, out, stream, has_ticket)?;
        if has_ticket {
            check(cuStreamWaitEvent(stream, done, 0))?;
        }
        let pinned = Pinned::try_new(COUNT)?;
        check(cuMemcpyDtoHAsync_v2(pinned.address, out, 4 * COUNT, stream))?;
        check(cuMemFreeAsync(out, stream))?;
        self.pulled.push((pinned, self.model[key]));
        Ok(())
    }

    /// A stream is destroyed with what it has queued. A new one gets its handle, and goes on with the
    /// same key.
    fn replace_stream(&mut self) -> Outcome {
        let (index, key) = (1 + self.draw.below(self.streams.len() - 1), self.draw.below(KEYS));
        self.push_on(self.streams[index], key, false)?;
        check(cuStreamDestroy_v2(self.streams[index]))?;
        self.streams[index] = made(|stream| cuStreamCreate(stream, NON_BLOCKING))?;
        self.push_on(self.streams[index], key, false)
    }

    fn close(self) {
        for stream in self.streams.into_iter().chain([self.library.own]) {
            cuStreamDestroy_v2(stream);
        }
        for (pinned, _) in self.pulled {
            cuMemFreeHost(pinned.address);
        }
        self.library.close();
    }
}

fn same(values: &[u32], expected: (u32, u32)) -> Outcome {
    if values == words(expected) { Ok(()) } else { Err("a wrong value".into()) }
}
