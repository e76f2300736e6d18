//! The kernels of the library: PTX by name, decompressed once and compiled by the driver when a device
//! uses one first.

use std::ffi::CString;
use std::io::Read;
use std::sync::OnceLock;

use lzma_rust2::LzmaReader;

use super::context::{Device, lock};
use super::name::KernelName;
use crate::error::{Result, fail};

/// Threads of a block, as in `kernels/job.cuh`.
const THREADS: u32 = 256;

/// The name of each kernel, and the length of its text.
const KERNELS: &[(&str, usize)] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The texts of all kernels, one after the other.
const TEXTS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernels.lzma"));

/// The PTX of a kernel, which ends with a zero.
fn text_of(kernel: KernelName) -> Option<CString> {
    static ALL: OnceLock<Vec<u8>> = OnceLock::new();
    let name = kernel.to_string();
    let at = KERNELS.iter().position(|(known, _)| *known == name)?;
    let start = KERNELS[..at].iter().map(|(_, length)| length).sum::<usize>();
    let all = ALL.get_or_init(decompress);
    CString::new(all.get(start..start + KERNELS[at].1)?).ok()
}

/// The texts as they were; fewer if the library's file is damaged.
fn decompress() -> Vec<u8> {
    let mut texts = Vec::with_capacity(KERNELS.iter().map(|(_, length)| length).sum());
    if let Ok(mut reader) = LzmaReader::new_mem_limit(TEXTS, u32::MAX, None) {
        // What lacks is missed by name.
        let _ = reader.read_to_end(&mut texts);
    }
    texts
}

impl Device {
    /// The handle of a kernel, whose module is loaded at the first use.
    pub(super) fn kernel(&'static self, name: KernelName) -> Result<u64> {
        let mut kernels = lock(&self.kernels);
        if let Some(kernel) = kernels.get(&name) {
            return Ok(*kernel);
        }
        let text = text_of(name).ok_or_else(|| fail!(Internal, "there is no kernel {name}"))?;
        let symbol = CString::new(name.to_string()).unwrap_or_default();
        let _relaxed = self.driver.relax_capture();
        let loaded = self.driver.load(&text, &symbol);
        let kernel = self.result("cuModuleLoadDataEx", loaded)?;
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Launches a kernel: so many blocks, and the addresses of its tables.
    pub(super) fn launch(
        &self,
        kernel: u64,
        blocks: u32,
        stream: u64,
        tables: &[u64; 4],
    ) -> Result<()> {
        let outcome = self.driver.launch(kernel, (blocks, THREADS), stream, tables);
        self.result("cuLaunchKernel", outcome.inspect(|()| self.counters.launches.add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::{KERNELS, KernelName, decompress, text_of};
    use crate::tensor::DType;

    #[test]
    fn the_texts_are_those_of_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/device/ptx");
        let all = decompress();
        let mut rest = &all[..];
        for (name, length) in KERNELS {
            let (text, behind) = rest.split_at(*length);
            assert_eq!(text, std::fs::read(format!("{folder}/{name}.ptx")).unwrap(), "{name}");
            rest = behind;
        }
        assert!(rest.is_empty());
        assert_eq!(KERNELS.len(), std::fs::read_dir(folder).unwrap().count());
    }

    #[test]
    fn every_sum_and_every_copy_has_a_text() {
        for &from in DType::ALL {
            let sum = KernelName::sum(from);
            let text = text_of(sum).unwrap_or_else(|| panic!("{sum}"));
            assert!(text.to_string_lossy().contains(&format!(".entry {sum}(")), "{sum}");
            let others =
                DType::ALL.iter().filter(|to| **to == from || from.is_float() && to.is_float());
            for &to in others {
                let copy = KernelName::copy(from, to);
                let text = text_of(copy).unwrap_or_else(|| panic!("{copy}"));
                assert!(text.to_string_lossy().contains(&format!(".entry {copy}(")), "{copy}");
            }
        }
    }
}
