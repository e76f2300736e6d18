//! Runs the threads of a launch.

use super::instruction::{Class, Comparison, Instruction, Operation, Type};
use super::memory::{Fault, FaultKind, Memory, Place};
use super::names::{FIRST_PARAMETER, FIRST_SPECIAL};
use super::{Kernel, convert, float, integer};

/// Maximum number of instructions of one thread; only a loop without an end has more.
const MAX_INSTRUCTIONS: u64 = 1 << 28;
/// Maximum number of threads in a block, on every GPU.
const MAX_THREADS: u64 = 1024;

/// How many threads a kernel is started with, and in which order they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along each axis.
    pub grid: [u32; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Seed of the order of blocks and threads; 0 is the order of their indices.
    pub order: u64,
}

/// What a launch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Threads that ran.
    pub threads: u64,
    /// Instructions, those that a guard skipped among them.
    pub instructions: u64,
}

/// Visits 0 to `count` - 1 in an order drawn from a seed: `start`, `start + step`, ..., modulo `count`.
struct Order {
    count: u64,
    start: u64,
    step: u64,
}

impl Order {
    fn new(count: u64, seed: u64) -> Self {
        if seed == 0 || count == 0 {
            return Self { count, start: 0, step: 1 };
        }
        let drawn = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20;
        // A step without a common divisor reaches all of them.
        let is_prime_to = |step: &u64| divisor(*step, count) == 1;
        let first = drawn % count + 1;
        let step = (first..first + count).find(is_prime_to).unwrap_or(1);
        Self { count, start: (drawn >> 7) % count, step }
    }

    fn at(&self, index: u64) -> u64 {
        (self.start + index * self.step) % self.count
    }
}

fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

fn volume(sides: [u32; 3]) -> u64 {
    sides.iter().map(|side| u64::from(*side)).product()
}

/// The three indices of a flat one.
fn indices(flat: u64, sides: [u32; 3]) -> [u32; 3] {
    let (x, y) = (u64::from(sides[0]), u64::from(sides[1]));
    [flat % x, flat / x % y, flat / x / y].map(|index| index as u32)
}

pub(super) fn run(
    kernel: &Kernel,
    launch: &Launch,
    arguments: &[u64],
    memory: &mut dyn Memory,
) -> Result<Counts, Fault> {
    let threads = volume(launch.block);
    let most = kernel.max_threads.map_or(MAX_THREADS, u64::from);
    let is_fitting = threads > 0 && threads <= most && volume(launch.grid) > 0;
    // Threads are numbered through all blocks by 32 bits.
    let is_countable = volume(launch.grid).saturating_mul(threads) < u64::from(u32::MAX);
    if arguments.len() != kernel.parameters.len() || !is_fitting || !is_countable {
        return Err(Fault::without_access(FaultKind::Launch));
    }
    let mut frame = kernel.frame.clone();
    for (index, (argument, bytes)) in arguments.iter().zip(&kernel.parameters).enumerate() {
        let kind = Type { class: Class::Bits, bytes: *bytes as u32 };
        frame[FIRST_PARAMETER + index] = kind.trim(*argument);
    }
    let special = |frame: &mut [u64], first: usize, values: [u32; 3]| {
        for (axis, value) in values.into_iter().enumerate() {
            frame[FIRST_SPECIAL + first + axis] = value.into();
        }
    };
    special(&mut frame, 6, launch.block);
    special(&mut frame, 9, launch.grid);
    let mut counts = Counts::default();
    let blocks = Order::new(volume(launch.grid), launch.order);
    for block in (0..blocks.count).map(|index| blocks.at(index)) {
        special(&mut frame, 3, indices(block, launch.grid));
        let order = Order::new(threads, launch.order.wrapping_mul(block | 1));
        for thread in (0..threads).map(|index| order.at(index)) {
            special(&mut frame, 0, indices(thread, launch.block));
            memory.enter((block * threads + thread) as u32);
            let run = run_thread(kernel, &mut frame, memory);
            counts.instructions += run.map_err(|(fault, line)| {
                let (block, thread) = (indices(block, launch.grid), indices(thread, launch.block));
                Fault { place: Some(Place { line: line as usize, block, thread }), ..fault }
            })?;
            counts.threads += 1;
        }
    }
    Ok(counts)
}

/// Runs one thread; returns its number of instructions, or the fault and its line.
fn run_thread(
    kernel: &Kernel,
    frame: &mut [u64],
    memory: &mut dyn Memory,
) -> Result<u64, (Fault, u32)> {
    let (mut at, mut count) = (0, 0);
    while let Some(instruction) = kernel.code.get(at) {
        at += 1;
        count += 1;
        if frame[instruction.guard as usize] == instruction.skipped_if {
            continue;
        }
        match instruction.operation {
            Operation::Branch(target) => {
                at = target as usize;
                if count > MAX_INSTRUCTIONS {
                    let fault = Fault::without_access(FaultKind::Endless);
                    return Err((fault, instruction.line));
                }
            }
            Operation::Return => return Ok(count),
            _ => step(kernel, instruction, frame, memory)
                .map_err(|fault| (fault, instruction.line))?,
        }
    }
    Ok(count)
}

/// Runs an instruction that is no jump.
#[inline]
fn step(
    kernel: &Kernel,
    instruction: &Instruction,
    frame: &mut [u64],
    memory: &mut dyn Memory,
) -> Result<(), Fault> {
    let from = instruction.from.map(|slot| frame[slot as usize]);
    let [a, b, c] = from;
    let address = a.wrapping_add_signed(instruction.offset);
    let value = match instruction.operation {
        Operation::Move(kind) => kind.trim(a),
        Operation::Integer(operation, kind) => integer::arithmetic(operation, kind, from)?,
        Operation::Bitwise(operation, kind) => integer::bitwise(operation, kind, from),
        Operation::Float32(operation) => float::arithmetic_32(operation, a, b),
        Operation::Float64(operation) => float::arithmetic_64(operation, a, b),
        Operation::Compare(comparison, kind) => compare(comparison, kind, a, b).into(),
        Operation::Select => {
            if c != 0 {
                a
            } else {
                b
            }
        }
        Operation::Convert { from, to, register, rounding } => {
            convert::convert(from, to, register, rounding, a)
        }
        Operation::Load { kind, register } => load(kind, register, address, memory)?,
        Operation::Store(kind) => return store(kind, address, b, memory),
        Operation::LoadVector { kind, register, vector, count } => {
            check_alignment(address, kind.bytes * count)?;
            let slots = &kernel.vectors[vector as usize][..count as usize];
            for (slot, address) in slots.iter().zip((address..).step_by(kind.bytes as usize)) {
                frame[*slot as usize] = load(kind, register, address, memory)?;
            }
            return Ok(());
        }
        Operation::StoreVector { kind, vector, count } => {
            check_alignment(address, kind.bytes * count)?;
            let slots = &kernel.vectors[vector as usize][..count as usize];
            for (slot, address) in slots.iter().zip((address..).step_by(kind.bytes as usize)) {
                store(kind, address, frame[*slot as usize], memory)?;
            }
            return Ok(());
        }
        Operation::Pack { part, vector, count } => {
            let slots = &kernel.vectors[vector as usize][..count as usize];
            slots
                .iter()
                .rev()
                .fold(0, |value, slot| value << part.bits() | part.trim(frame[*slot as usize]))
        }
        Operation::Unpack { part, vector, count } => {
            let slots = &kernel.vectors[vector as usize][..count as usize];
            for (index, slot) in (0..).zip(slots) {
                frame[*slot as usize] = part.trim(a >> (index * part.bits()));
            }
            return Ok(());
        }
        Operation::Branch(_) | Operation::Return => return Ok(()),
    };
    frame[instruction.to as usize] = value;
    Ok(())
}

fn compare(comparison: Comparison, kind: Type, a: u64, b: u64) -> bool {
    match kind {
        Type::F32 => {
            let (a, b) = (f64::from(float::f32_of(a)), f64::from(float::f32_of(b)));
            float::compare(comparison, a, b)
        }
        Type::F64 => float::compare(comparison, float::f64_of(a), float::f64_of(b)),
        _ => integer::compare(comparison, kind, a, b),
    }
}

fn check_alignment(address: u64, bytes: u32) -> Result<(), Fault> {
    if address.is_multiple_of(bytes.into()) {
        Ok(())
    } else {
        Err(Fault::new(FaultKind::Misaligned, address, bytes as usize))
    }
}

fn load(kind: Type, register: Type, address: u64, memory: &mut dyn Memory) -> Result<u64, Fault> {
    check_alignment(address, kind.bytes)?;
    let value = memory.load(address, kind.bytes as usize)?;
    Ok(register.trim(kind.number(value).cast_unsigned()))
}

fn store(kind: Type, address: u64, value: u64, memory: &mut dyn Memory) -> Result<(), Fault> {
    check_alignment(address, kind.bytes)?;
    memory.store(address, kind.bytes as usize, value)
}
