//! Threads, blocks, branches, and what their order may not change.

use super::{HEAD, one_thread};
use crate::ptx::{Counts, FaultKind, HostMemory, Launch, Module, Watched};

/// out[i] = in[i] + in[i], for i < n.
const DOUBLE: &str = "
.visible .entry twice(
    .param .u64 out,
    .param .u64 in,
    .param .u32 n
)
.maxntid 256, 1, 1
.minnctapersm 2
{
    .reg .pred %p<2>;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [out];
    ld.param.u64 %rd2, [in];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.s32 %r5, %r2, %r3, %r4;   // index
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra $END;
    mul.wide.u32 %rd3, %r5, 4;
    cvta.to.global.u64 %rd4, %rd2;
    add.s64 %rd5, %rd4, %rd3;
    ld.global.nc.f32 %f1, [%rd5];
    add.rn.f32 %f2, %f1, %f1;
    add.s64 %rd7, %rd1, %rd3;
    st.global.f32 [%rd7+0], %f2;
$END:
    ret;
}
";

fn floats(count: u32) -> Vec<u8> {
    (0..count).flat_map(|index| (index as f32).to_le_bytes()).collect()
}

#[test]
fn every_thread_runs_once_in_any_order() {
    let module = Module::parse(&format!("{HEAD}{DOUBLE}")).unwrap();
    assert_eq!((module.version(), module.target()), ((7, 0), 70));
    let kernel = module.kernel("twice").unwrap();
    assert_eq!(kernel.parameters(), [8, 8, 4]);
    assert_eq!(kernel.max_threads(), Some(256));
    assert!(kernel.forms().any(|form| form == "ld.global.nc.f32"));
    let expected: Vec<u8> = (0..1_000).flat_map(|it| (2.0 * it as f32).to_le_bytes()).collect();
    for order in 0..20 {
        let mut memory = HostMemory::new();
        let (input, out) = (memory.add(floats(1_000)), memory.add(vec![0; 4_000]));
        let launch = Launch { grid: [5, 1, 1], block: [201, 1, 1], order };
        let counts = {
            let mut watched = Watched::new(&mut memory);
            kernel.run(&launch, &[out, input, 1_000], &mut watched).unwrap()
        };
        assert_eq!(counts, Counts { threads: 1_005, instructions: 1_000 * 17 + 5 * 10 });
        assert_eq!(memory.bytes(out), expected);
    }
}

#[test]
fn threads_know_their_place_on_three_axes() {
    let text = format!(
        "{HEAD}.entry k(.param .u64 out)\n{{\n.reg .b32 %r<20>;\n.reg .b64 %d<4>;\n\
         mov.u32 %r1, %tid.x; mov.u32 %r2, %tid.y; mov.u32 %r3, %tid.z;\n\
         mov.u32 %r4, %ctaid.x; mov.u32 %r5, %ctaid.y; mov.u32 %r6, %ctaid.z;\n\
         mov.u32 %r7, %ntid.x; mov.u32 %r8, %ntid.y; mov.u32 %r9, %ntid.z;\n\
         mov.u32 %r10, %nctaid.x; mov.u32 %r11, %nctaid.y; mov.u32 %r12, %nctaid.z;\n\
         mad.lo.s32 %r13, %r6, %r11, %r5; mad.lo.s32 %r13, %r13, %r10, %r4;\n\
         mad.lo.s32 %r13, %r13, %r9, %r3; mad.lo.s32 %r13, %r13, %r8, %r2;\n\
         mad.lo.s32 %r13, %r13, %r7, %r1;\n\
         ld.param.u64 %d1, [out]; mul.wide.u32 %d2, %r13, 4; add.s64 %d3, %d1, %d2;\n\
         mad.lo.s32 %r14, %r12, 100, %r13; st.global.u32 [%d3], %r14;\n}}\n"
    );
    let module = Module::parse(&text).unwrap();
    let mut memory = HostMemory::new();
    let count = 2 * 3 * 4 * 2 * 2 * 3;
    let out = memory.add(vec![0; 4 * count]);
    let launch = Launch { grid: [2, 2, 3], block: [2, 3, 4], order: 9 };
    let mut watched = Watched::new(&mut memory);
    module.kernels()[0].run(&launch, &[out], &mut watched).unwrap();
    let expected: Vec<u8> = (300..300 + count as u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(memory.bytes(out), expected);
}

/// A kernel of 64 threads, with `%d2` the address of the thread's own number.
fn with_own_address(body: &str) -> Module {
    let text = format!(
        "{HEAD}.entry k(.param .u64 out)\n{{\n.reg .pred %p<3>;\n.reg .b32 %r<9>;\n.reg .b64 %d<9>;\n\
         ld.param.u64 %d1, [out]; mov.u32 %r1, %tid.x; mul.wide.u32 %d2, %r1, 4;\n\
         add.s64 %d2, %d1, %d2;\n{body}\nret;\n}}\n"
    );
    Module::parse(&text).unwrap()
}

#[test]
fn threads_that_share_an_address_are_found_in_any_order() {
    let race = "st.global.u32 [%d2], %r1; ld.global.u32 %r2, [%d1+16];";
    let both_write = "st.global.u8 [%d1+3], %r1;";
    let right = "st.global.u32 [%d2], %r1; ld.global.u32 %r2, [%d2]; ld.global.u32 %r3, [%d1+256];";
    for (body, expected) in
        [(race, Some(FaultKind::Race)), (both_write, Some(FaultKind::Race)), (right, None)]
    {
        let module = with_own_address(body);
        for order in 0..10 {
            let mut memory = HostMemory::new();
            let out = memory.add(vec![0; 260]);
            let launch = Launch { grid: [1; 3], block: [64, 1, 1], order };
            let run = module.kernels()[0].run(&launch, &[out], &mut Watched::new(&mut memory));
            assert_eq!(run.err().map(|fault| fault.kind), expected);
            let run = module.kernels()[0].run(&launch, &[out], &mut memory);
            assert!(run.is_ok(), "without the notes it goes unseen");
        }
    }
}

#[test]
fn faults_say_where_they_happened() {
    let module = with_own_address(
        "setp.eq.u32 %p1, %r1, 5;\n@!%p1 bra $B;\nst.global.u32 [%d2+4096], 1;\n$B:",
    );
    let mut memory = HostMemory::new();
    let out = memory.add(vec![0; 256]);
    let launch = Launch { grid: [1; 3], block: [64, 1, 1], order: 3 };
    let fault = module.kernels()[0].run(&launch, &[out], &mut memory).unwrap_err();
    assert_eq!((fault.kind, fault.address, fault.bytes), (FaultKind::Address, out + 20 + 4_096, 4));
    let place = fault.place.unwrap();
    assert_eq!((place.line, place.block, place.thread), (13, [0; 3], [5, 0, 0]));
    assert!(fault.to_string().contains("line 13"), "{fault}");
}

#[test]
fn launches_that_do_not_fit_are_faults() {
    let module = Module::parse(&format!("{HEAD}{DOUBLE}")).unwrap();
    let kernel = &module.kernels()[0];
    let run = |block: u32, arguments: &[u64]| {
        let launch = Launch { grid: [1; 3], block: [block, 1, 1], order: 0 };
        kernel.run(&launch, arguments, &mut HostMemory::new()).map_err(|fault| fault.kind)
    };
    assert_eq!(run(257, &[0; 3]), Err(FaultKind::Launch));
    assert_eq!(run(0, &[0; 3]), Err(FaultKind::Launch));
    assert_eq!(run(1, &[0; 2]), Err(FaultKind::Launch));
    assert!(run(256, &[0; 3]).is_ok());
}

#[test]
fn a_loop_without_an_end_and_a_division_by_zero_are_faults() {
    let run = |body: &str| {
        let module = with_own_address(body);
        let run = module.kernels()[0].run(&one_thread(), &[0], &mut HostMemory::new());
        run.unwrap_err().kind
    };
    assert_eq!(run("$A: bra.uni $A;"), FaultKind::Endless);
    assert_eq!(run("div.u32 %r1, %r1, 0;"), FaultKind::DivisionByZero);
    assert_eq!(run("rem.s64 %d1, %d1, 0;"), FaultKind::DivisionByZero);
}
