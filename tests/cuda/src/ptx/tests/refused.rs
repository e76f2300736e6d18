//! What is no known form is an error, with its line.

use super::{HEAD, REGISTERS};
use crate::ptx::{Module, ParseError};

fn error(body: &str) -> ParseError {
    let text = format!("{HEAD}.entry k(.param .u64 a)\n{{\n{REGISTERS}{body}\nret;\n}}\n");
    Module::parse(&text).map(|_| ()).expect_err(body)
}

#[test]
fn arithmetic_that_is_not_rounded_to_nearest_is_refused() {
    let instructions = [
        "add.f32 %f1, %f2, %f3;",
        "add.rz.f32 %f1, %f2, %f3;",
        "add.rn.ftz.f32 %f1, %f2, %f3;",
        "mul.f32 %f1, %f2, %f3;",
        "fma.rn.f32 %f1, %f2, %f3, %f4;",
        "mad.rn.f32 %f1, %f2, %f3, %f4;",
        "div.approx.f32 %f1, %f2, %f3;",
        "div.full.f32 %f1, %f2, %f3;",
        "sqrt.approx.f32 %f1, %f2;",
        "rcp.rn.f32 %f1, %f2;",
        "ex2.approx.f32 %f1, %f2;",
        "cvt.f32.f64 %f1, %g1;",
        "cvt.rz.f32.f64 %f1, %g1;",
        "cvt.f32.s32 %f1, %r1;",
        "cvt.s32.f32 %r1, %f1;",
        "cvt.rn.s32.f32 %r1, %f1;",
        "cvt.rni.f32.f64 %f1, %g1;",
        "cvt.sat.f32.f32 %f1, %f2;",
        "cvt.rn.f16.f32 %h1, %f1;",
        "max.ftz.f32 %f1, %f2, %f3;",
        "setp.gt.ftz.f32 %p1, %f1, %f2;",
    ];
    for instruction in instructions {
        let error = error(instruction);
        assert_eq!(error.line, 12, "{instruction}");
        assert!(error.message.starts_with("unknown"), "{instruction}: {error}");
    }
}

#[test]
fn instructions_beyond_the_known_ones_are_refused() {
    let instructions = [
        "atom.global.add.u32 %r1, [%d1], 1;",
        "red.global.add.f32 [%d1], %f1;",
        "ld.shared.f32 %f1, [%r1];",
        "ld.f32 %f1, [%d1];",
        "ld.volatile.global.f32 %f1, [%d1];",
        "st.local.f32 [%d1], %f1;",
        "bar.sync 0;",
        "shfl.sync.down.b32 %r1, %r2, 1, 31, -1;",
        "call.uni f, (a);",
        "brx.idx %r1, table;",
        "setp.lt.and.s32 %p1, %r1, %r2, %p2;",
        "setp.lt.b32 %p1, %r1, %r2;",
        "add.sat.s32 %r1, %r2, %r3;",
        "mul.wide.s64 %d1, %d2, %d3;",
        "shl.s32 %r1, %r2, 1;",
        "prmt.b32.f4e %r1, %r2, %r3, %r4;",
        "trap;",
    ];
    for instruction in instructions {
        let error = error(instruction);
        assert_eq!((error.line, &error.message[..7]), (12, "unknown"), "{instruction}: {error}");
    }
}

#[test]
fn operands_are_checked() {
    let instructions = [
        ("add.s32 %r1, %r2;", "2 operands instead of 3"),
        ("add.s32 %r1, %r2, %r9;", "undeclared register %r9"),
        ("add.s32 %r1, %r2, %x1;", "undeclared register %x1"),
        ("add.s32 %r1, %d2, %r3;", "register %d2 does not have the type"),
        ("add.s64 %r1, %d2, %d3;", "register %r1 does not have the type"),
        ("cvt.u64.u32 %r1, %r2;", "register %r1 does not have the type"),
        ("add.rn.f32 %f1, %f2, 1;", "unknown operand 1"),
        ("add.s32 %r1, %r2, 017;", "unknown operand 017"),
        ("mov.u64 %d1, %tid.x;", "%tid.x has 32 bits"),
        ("mov.u32 %r1, %laneid;", "undeclared register %laneid"),
        ("ld.param.u64 %d1, [b];", "unknown parameter [b]"),
        ("ld.param.u32 %r1, [a];", "a is not a parameter of 4 bytes"),
        ("ld.global.u32 %r1, [a];", "undeclared register a"),
        ("ld.global.u32 %r1, [%r2];", "register %r2 does not have the type"),
        ("ld.global.v4.f64 {%g1, %g2, %g3, %g4}, [%d1];", "wrong length of the vector"),
        ("ld.global.v2.f32 {%f1, %f2, %f3, %f4}, [%d1];", "wrong length of the vector"),
        ("st.global.u64 [%d1], %r1;", "register %r1 does not have the type"),
        ("@%r1 bra $A;", "register %r1 does not have the type"),
        ("bra $NONE;", "no label $NONE"),
        ("ret", "no semicolon behind ret"),
        (".reg .f16 %z<2>;", "registers of unknown type"),
    ];
    for (instruction, expected) in instructions {
        let error = error(instruction);
        assert!(error.message.starts_with(expected), "{instruction}: {error}");
    }
}

#[test]
fn texts_beyond_kernels_are_refused() {
    let refused = |text: &str| Module::parse(text).map(|_| ()).unwrap_err().to_string();
    assert_eq!(refused(".target sm_70\n"), "line 1: no .version");
    assert_eq!(refused(".version 7.0\n"), "line 1: no .target");
    assert_eq!(refused(".address_size 32"), "line 1: unknown directive .address_size 32");
    let shared = format!("{HEAD}.shared .align 4 .b8 tile[64];\n");
    assert!(refused(&shared).starts_with("line 4: unknown directive .shared"));
    let function = format!("{HEAD}.func f()\n{{\n}}\n");
    assert!(refused(&function).starts_with("line 4: unknown directive .func"));
    let structure = format!("{HEAD}.entry k(\n.param .align 8 .b8 a[64]\n)\n{{\n}}\n");
    assert!(refused(&structure).starts_with("line 6: unknown parameter"));
    let open = format!("{HEAD}.entry k()\n{{\nret;\n");
    assert!(refused(&open).ends_with("a kernel without an end"));
    let variable = format!("{HEAD}.global .align 4 .u32 CHUNK = 4096;\n");
    assert!(Module::parse(&variable).is_ok());
}
