//! The kernels of the library: PTX by name, inflated and compiled by the driver when a device uses
//! it first.

use std::ffi::CString;

use miniz_oxide::inflate::decompress_to_vec;

use super::context::{Device, lock};
use super::name::KernelName;
use crate::error::{Result, fail};

/// Threads of a block, as in `kernels/job.cuh`.
const THREADS: u32 = 256;

/// Kernels whose texts are deflated together: the name and the length of each, and the texts.
type Family = (&'static [(&'static str, usize)], &'static [u8]);

const FAMILIES: &[Family] = include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// The PTX of a kernel, which ends with a zero.
fn text_of(kernel: KernelName) -> Option<CString> {
    let name = kernel.to_string();
    let is_it = |(known, _): &(&str, usize)| *known == name;
    let (kernels, texts) = FAMILIES.iter().find(|(kernels, _)| kernels.iter().any(is_it))?;
    let at = kernels.iter().position(is_it)?;
    let start = kernels[..at].iter().map(|(_, length)| length).sum::<usize>();
    let texts = decompress_to_vec(texts).ok()?;
    CString::new(texts.get(start..start + kernels[at].1)?).ok()
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
    use super::{KernelName, text_of};
    use crate::tensor::DType;

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
