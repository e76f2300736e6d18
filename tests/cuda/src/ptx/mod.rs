//! Parses PTX (NVIDIA's virtual instruction set) and interprets it, thread after thread.
//!
//! Each instruction is decoded once. A form of instruction that is not known is a [`ParseError`] with
//! its line: an interpreter that guesses proves nothing. Arithmetic on floats has the modifier `.rn`
//! (round to nearest, ties to even) or is refused, and so are `fma`, `.approx` and `.ftz`, whose
//! results differ from those of the processor.
//!
//! Not known either: shared and local memory, barriers, atomics, calls, parameters that are structures.
//!
//! A NaN that an operation makes is canonical, whatever NaN went in: 0x7fffffff, as the PTX manual has
//! it for f32, and 0x7ff8000000000000 for f64.

mod convert;
mod decode;
mod float;
mod instruction;
mod integer;
mod memory;
mod names;
mod run;
#[cfg(test)]
mod tests;
mod text;
mod watch;

use std::collections::BTreeSet;
use std::fmt;

use instruction::Instruction;
pub use memory::{Fault, FaultKind, HostMemory, Memory, Place};
pub use run::{Counts, Launch};
pub use watch::Watched;

/// A text that is not PTX, or PTX beyond the known forms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// The line, the first is 1.
    pub line: usize,
    /// The error in words.
    pub message: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

/// A parsed text of PTX.
#[derive(Debug)]
pub struct Module {
    version: (u32, u32),
    target: u32,
    kernels: Vec<Kernel>,
}

impl Module {
    /// Parses the whole text, with the code of all kernels.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        text::parse(text)
    }

    /// The version of PTX that the text asks for, such as (7, 0).
    #[must_use]
    pub fn version(&self) -> (u32, u32) {
        self.version
    }

    /// The least compute capability, such as 70 for `sm_70`.
    #[must_use]
    pub fn target(&self) -> u32 {
        self.target
    }

    /// All kernels, in the order of the text.
    #[must_use]
    pub fn kernels(&self) -> &[Kernel] {
        &self.kernels
    }

    /// The kernel of this name.
    #[must_use]
    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|kernel| kernel.name == name)
    }
}

/// An entry function, decoded.
///
/// Every operand is a slot of a frame of numbers: slot 0 is always 1, then come the indices of thread
/// and block, the parameters, registers and constants.
#[derive(Debug)]
pub struct Kernel {
    name: String,
    /// Bytes of each parameter.
    parameters: Vec<usize>,
    /// Maximum number of threads in a block, if the text bounds it.
    max_threads: Option<u32>,
    /// The frame before a launch: constants are set.
    frame: Vec<u64>,
    code: Vec<Instruction>,
    /// Registers of vector operands.
    vectors: Vec<[u32; 4]>,
    forms: BTreeSet<String>,
}

impl Kernel {
    /// The name of the entry function.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The size of each parameter in bytes, in order.
    #[must_use]
    pub fn parameters(&self) -> &[usize] {
        &self.parameters
    }

    /// Maximum number of threads in a block (`.maxntid`), if the text bounds it.
    #[must_use]
    pub fn max_threads(&self) -> Option<u32> {
        self.max_threads
    }

    /// The forms of instruction that the kernel has, such as `add.rn.f32`.
    pub fn forms(&self) -> impl Iterator<Item = &str> {
        self.forms.iter().map(String::as_str)
    }

    /// Runs all threads of a launch, one after the other.
    ///
    /// `arguments` has one number for each parameter, of which the low bytes count. After a fault the
    /// memory holds the stores before it.
    pub fn run(
        &self,
        launch: &Launch,
        arguments: &[u64],
        memory: &mut dyn Memory,
    ) -> Result<Counts, Fault> {
        run::run(self, launch, arguments, memory)
    }
}
