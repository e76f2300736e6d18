//! Each form of instruction against what the PTX manual states, and whole kernels.
#![allow(
    clippy::cast_possible_wrap,
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "exponents and small numbers fit"
)]

mod exact;
mod floats;
mod integers;
mod launches;
mod memories;
mod refused;

use super::{HostMemory, Launch, Module};

const HEAD: &str = ".version 7.0\n.target sm_70\n.address_size 64\n";
const REGISTERS: &str = ".reg .pred %p<9>;\n.reg .b16 %h<9>;\n.reg .b32 %r<9>;\n.reg .b64 %d<9>;\n\
    .reg .f32 %f<9>;\n.reg .f64 %g<9>;\n";

/// A register that holds a type, and the type of its bits in memory.
fn register(kind: &str, number: usize) -> (String, &'static str) {
    let (bank, bits) = match kind {
        "pred" => ('p', "pred"),
        "f32" => ('f', "f32"),
        "f64" => ('g', "f64"),
        "b8" | "u8" | "s8" | "b16" | "u16" | "s16" => ('h', "b16"),
        "b32" | "u32" | "s32" => ('r', "b32"),
        _ => ('d', "b64"),
    };
    (format!("%{bank}{number}"), bits)
}

fn one_thread() -> Launch {
    Launch { grid: [1; 3], block: [1; 3], order: 0 }
}

/// Text of a kernel `k` that runs one instruction on its parameters and stores the result.
fn kernel_of(instruction: &str, to: &str, from: &[&str]) -> String {
    let (mut parameters, mut loads, mut operands) = (Vec::new(), Vec::new(), Vec::new());
    for (index, kind) in from.iter().enumerate() {
        let (name, bits) = register(kind, index + 1);
        if bits == "pred" {
            parameters.push(format!(", .param .b32 a{index}"));
            loads.push(format!("ld.param.b32 %r8, [a{index}];\nsetp.ne.s32 {name}, %r8, 0;\n"));
        } else {
            parameters.push(format!(", .param .{bits} a{index}"));
            loads.push(format!("ld.param.{bits} {name}, [a{index}];\n"));
        }
        operands.push(name);
    }
    let (result, bits) = register(to, 0);
    let store = if bits == "pred" {
        format!("selp.b32 %r0, 1, 0, {result};\nst.global.b32 [%d7], %r0;\n")
    } else {
        format!("st.global.{bits} [%d7], {result};\n")
    };
    let (parameters, loads, operands) = (parameters.concat(), loads.concat(), operands.join(", "));
    format!(
        "{HEAD}.visible .entry k(.param .u64 out{parameters})\n{{\n{REGISTERS}\
         ld.param.u64 %d7, [out];\n{loads}{instruction} {result}, {operands};\n{store}ret;\n}}\n"
    )
}

/// The bits that an instruction makes of the bits of its sources, in the width of its register.
fn evaluate(instruction: &str, to: &str, from: &[(&str, u64)]) -> u64 {
    let kinds: Vec<&str> = from.iter().map(|source| source.0).collect();
    let text = kernel_of(instruction, to, &kinds);
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut memory = HostMemory::new();
    let out = memory.add([0; 8]);
    let values = from.iter().map(|source| source.1);
    let arguments: Vec<u64> = std::iter::once(out).chain(values).collect();
    let run = module.kernels()[0].run(&one_thread(), &arguments, &mut memory);
    run.unwrap_or_else(|fault| panic!("{fault}\n{text}"));
    u64::from_le_bytes(memory.bytes(out).try_into().unwrap())
}

/// A row of a table: sources and what the instruction makes of them.
type Row<const N: usize> = ([u64; N], u64);

fn assert_rows<const N: usize>(instruction: &str, to: &str, from: [&str; N], rows: &[Row<N>]) {
    for (values, expected) in rows {
        let sources: Vec<(&str, u64)> = from.into_iter().zip(*values).collect();
        let result = evaluate(instruction, to, &sources);
        assert_eq!(result, *expected, "{instruction} of {values:x?}: {result:#x}, {expected:#x}");
    }
}
