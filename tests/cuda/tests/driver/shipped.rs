//! The kernels that ship, `src/device/ptx`.

use std::collections::BTreeSet;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};

use cuda_stand_in::ptx::Module;

use crate::api::{
    Pinned, check, cuFuncGetAttribute, cuLaunchKernel, cuMemcpyHtoDAsync_v2, cuModuleUnload,
    cuStreamCreate, function, load, made, memory, start, words_at,
};
use crate::is_child;

/// As in `kernels/job.cuh`: threads of a block, elements of a chunk.
const THREADS: u32 = 256;
const CHUNK: usize = 4096;

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../src/device/ptx");
    let mut files: Vec<PathBuf> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn text(name: &str) -> String {
    let file = files().into_iter().find(|file| file.file_stem().unwrap() == name);
    fs::read_to_string(file.unwrap()).unwrap() + "\0"
}

#[test]
fn every_form_of_instruction_is_known() {
    let (files, mut forms) = (files(), BTreeSet::new());
    for file in &files {
        let text = fs::read_to_string(file).unwrap();
        let module = Module::parse(&text).unwrap_or_else(|it| panic!("{}: {it}", file.display()));
        let [kernel] = module.kernels() else { panic!("{}: not one kernel", file.display()) };
        assert_eq!(kernel.name(), file.file_stem().unwrap());
        assert_eq!(kernel.parameters(), [8; 4], "{}", kernel.name());
        forms.extend(kernel.forms().map(str::to_owned));
    }
    assert!(files.len() > 100 && forms.len() > 50, "{} files, {forms:?}", files.len());
}

#[test]
fn a_driver_of_cuda_11_0_loads_every_kernel() {
    let test = "shipped::a_driver_of_cuda_11_0_loads_every_kernel";
    if !is_child(test, &[("VERSION", "11000")]) {
        return;
    }
    start(0);
    for file in files() {
        let text = fs::read_to_string(&file).unwrap() + "\0";
        let module = load(&text).unwrap_or_else(|it| panic!("{}: {it}", file.display()));
        let name = CString::new(file.file_stem().unwrap().to_str().unwrap()).unwrap();
        let kernel = function(module, &name);
        assert_eq!(made(|threads| cuFuncGetAttribute(threads, 0, kernel)), Ok(256));
        check(cuModuleUnload(module)).unwrap();
    }
}

/// Copies words to new memory of the device.
fn upload(words: &[u32], stream: u64) -> u64 {
    let (pinned, address) = (Pinned::new(words.len()), memory(words.len()));
    pinned.set(words);
    check(cuMemcpyHtoDAsync_v2(address, pinned.address, 4 * words.len(), stream)).unwrap();
    address
}

fn halves(values: &[u64]) -> Vec<u32> {
    let half = |value: u64| u32::try_from(value & 0xffff_ffff).unwrap();
    values.iter().flat_map(|value| [half(*value), half(value >> 32)]).collect()
}

#[test]
fn a_sum_of_three_arrays_goes_to_two_outs() {
    if !is_child("shipped::a_sum_of_three_arrays_goes_to_two_outs", &[]) {
        return;
    }
    start(0);
    let stream: u64 = made(|stream| cuStreamCreate(stream, 1)).unwrap();
    let kernel = function(load(&text("assign_f32")).unwrap(), c"assign_f32");
    for count in [1, 3, 4, 1_000, 4_096, 10_001] {
        let value = |array: usize, index: usize| (index as f32 + 0.3) * (array as f32 - 0.9);
        let array = |array: usize| -> Vec<u32> {
            (0..count).map(|index| value(array, index).to_bits()).collect()
        };
        let inputs: Vec<u64> = (0..3).map(|index| upload(&array(index), stream)).collect();
        let outs = [memory(count), memory(count)];
        let addresses = upload(&halves(&[&inputs[..], &outs].concat()), stream);
        let mut job = halves(&[count as u64, 0, 0, 0, 0]);
        job.extend([3, 2, 0, 0]);
        let chunks = u32::try_from(count.div_ceil(CHUNK)).unwrap();
        let blocks: Vec<u32> = (0..chunks).flat_map(|chunk| [0, chunk]).collect();
        let arguments = [upload(&job, stream), addresses, 0, upload(&blocks, stream)];
        let pointers = arguments.each_ref().map(std::ptr::from_ref);
        let (list, extra) = (pointers.as_ptr(), std::ptr::null());
        let status = cuLaunchKernel(kernel, chunks, 1, 1, THREADS, 1, 1, 0, stream, list, extra);
        check(status).unwrap();
        let sum = |index: usize| value(0, index) + value(1, index) + value(2, index);
        let expected: Vec<u32> = (0..count).map(|index| sum(index).to_bits()).collect();
        for out in outs {
            assert!(words_at(out, count, stream).unwrap() == expected, "{count} elements");
        }
    }
}
