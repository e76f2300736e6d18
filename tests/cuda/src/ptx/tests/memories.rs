//! Loads and stores of every size, vectors, alignment.

use super::{HEAD, REGISTERS, one_thread};
use crate::ptx::{Fault, FaultKind, HostMemory, Module};

/// Runs a body with `%d1` the address of 32 bytes, `%d2` that of 32 zeros; returns the latter.
fn copied(body: &str, from: [u8; 32]) -> Result<Vec<u8>, Fault> {
    let text = format!(
        "{HEAD}.entry k(.param .u64 a, .param .u64 b)\n{{\n{REGISTERS}\
         ld.param.u64 %d1, [a];\nld.param.u64 %d2, [b];\n{body}\nret;\n}}\n"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let mut memory = HostMemory::new();
    let (from, to) = (memory.add(from), memory.add([0; 32]));
    module.kernels()[0].run(&one_thread(), &[from, to], &mut memory)?;
    Ok(memory.bytes(to).to_vec())
}

fn numbered() -> [u8; 32] {
    std::array::from_fn(|index| index as u8 + 0x80)
}

#[test]
fn loads_extend_to_the_register_and_stores_cut() {
    let first = |body: &str, count: usize| copied(body, numbered()).unwrap()[..count].to_vec();
    assert_eq!(first("ld.global.u8 %h1, [%d1+1]; st.global.u16 [%d2], %h1;", 2), [0x81, 0]);
    assert_eq!(first("ld.global.s8 %h1, [%d1+1]; st.global.u16 [%d2], %h1;", 2), [0x81, 0xff]);
    assert_eq!(
        first("ld.global.s8 %r1, [%d1]; st.global.b32 [%d2], %r1;", 4),
        [0x80, 255, 255, 255]
    );
    assert_eq!(first("ld.global.s16 %d3, [%d1]; st.global.b64 [%d2], %d3;", 3), [0x80, 0x81, 255]);
    assert_eq!(first("ld.global.u32 %r1, [%d1+4]; st.global.u8 [%d2], %r1;", 2), [0x84, 0]);
    assert_eq!(
        first("add.s64 %d3, %d1, 8; ld.global.f32 %f1, [%d3+-4]; st.global.f32 [%d2], %f1;", 2),
        [0x84, 0x85]
    );
    assert_eq!(
        first("ld.global.cs.f64 %g1, [%d1]; st.global.cs.f64 [%d2], %g1;", 8),
        numbered()[..8]
    );
    assert_eq!(first("st.global.f32 [%d2], 0f3F800000;", 4), 1.0_f32.to_le_bytes());
    assert_eq!(first("st.global.f64 [%d2], 0d3FF0000000000000;", 8), 1.0_f64.to_le_bytes());
    assert_eq!(first("st.global.u16 [%d2], -2;", 3), [0xfe, 0xff, 0]);
}

#[test]
fn vectors_are_in_the_order_of_memory() {
    let rows = [
        ("v2", "b8", "%h", 2),
        ("v4", "u8", "%h", 4),
        ("v2", "u16", "%h", 4),
        ("v4", "b16", "%h", 8),
        ("v2", "u32", "%r", 8),
        ("v4", "u32", "%r", 16),
        ("v2", "f32", "%f", 8),
        ("v4", "f32", "%f", 16),
        ("v2", "b64", "%d", 16),
        ("v2", "f64", "%g", 16),
    ];
    for (vector, kind, bank, bytes) in rows {
        let count = if vector == "v2" { 2 } else { 4 };
        let registers: Vec<String> = (4..4 + count).map(|index| format!("{bank}{index}")).collect();
        let list = registers.join(", ");
        for cache in ["", ".nc"] {
            let body = format!(
                "ld.global{cache}.{vector}.{kind} {{{list}}}, [%d1]; \
                 st.global.{vector}.{kind} [%d2], {{{list}}};"
            );
            let result = copied(&body, numbered()).unwrap();
            assert_eq!(result[..bytes], numbered()[..bytes], "{body}");
            assert!(result[bytes..].iter().all(|byte| *byte == 0), "{body}");
        }
    }
}

#[test]
fn vectors_are_packed_and_unpacked() {
    let result = copied(
        "ld.global.u64 %d3, [%d1]; mov.b64 {%r1, %r2}, %d3; st.global.u32 [%d2], %r2;\n\
         mov.b64 %d4, {%r2, %r1}; st.global.u64 [%d2+8], %d4;\n\
         mov.b32 {%h1, %h2}, %r1; mov.b32 %r3, {%h2, %h1}; st.global.u32 [%d2+16], %r3;",
        numbered(),
    );
    let expected = [
        0x84, 0x85, 0x86, 0x87, 0, 0, 0, 0, 0x84, 0x85, 0x86, 0x87, 0x80, 0x81, 0x82, 0x83, 0x82,
        0x83, 0x80, 0x81,
    ];
    assert_eq!(result.unwrap()[..20], expected);
}

#[test]
fn an_address_is_a_multiple_of_the_whole_access() {
    let fault = |body: &str| copied(body, numbered()).unwrap_err();
    assert_eq!(fault("ld.global.u32 %r1, [%d1+2];").kind, FaultKind::Misaligned);
    let vector = fault("ld.global.v4.f32 {%f1, %f2, %f3, %f4}, [%d1+8];");
    assert_eq!((vector.kind, vector.bytes), (FaultKind::Misaligned, 16));
    assert_eq!(fault("st.global.v2.u16 [%d2+2], {%h1, %h2};").kind, FaultKind::Misaligned);
    assert_eq!(fault("ld.global.u8 %h1, [%d1+32];").kind, FaultKind::Address);
    assert_eq!(fault("ld.global.v2.u64 {%d3, %d4}, [%d1+32];").kind, FaultKind::Address);
    assert_eq!(fault("ld.global.u64 %d3, [%d1+-8];").kind, FaultKind::Address);
}
