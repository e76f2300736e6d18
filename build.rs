//! Gives the shared library its soname, and keeps it mapped once it has been loaded. Compresses the
//! kernels of GPUs.

/// Bumped on any break of the C ABI; equal to `KV_ABI_VERSION` (a test compares them).
const ABI: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target == "linux" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvstore.so.{ABI}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
    #[cfg(feature = "cuda")]
    kernels::compress();
}

/// The PTX of the kernels, as the library has it.
#[cfg(feature = "cuda")]
mod kernels {
    use std::io::Write;
    use std::path::Path;
    use std::{env, fs};

    use lzma_rust2::{LzmaOptions, LzmaWriter};

    const FOLDER: &str = "src/device/ptx";

    /// Level of the compression: the slowest.
    const LEVEL: u32 = 9;
    /// Window of the compression, which the library allocates: more than all texts have.
    const WINDOW: u32 = 2 << 20;

    /// Writes the texts of all kernels, one after the other, compressed to `kernels.lzma`, and `kernels.rs`: the
    /// name of each and the length of its text.
    pub fn compress() {
        println!("cargo:rerun-if-changed={FOLDER}");
        let entries = fs::read_dir(FOLDER).expect("the folder of the kernels");
        let mut kernels: Vec<(String, String)> = entries
            .map(|entry| {
                let path = entry.expect("a kernel").path();
                let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
                (name, fs::read_to_string(&path).expect("the text of a kernel"))
            })
            .collect();
        kernels.sort();
        let options = LzmaOptions { dict_size: WINDOW, ..LzmaOptions::with_preset(LEVEL) };
        let length = kernels.iter().map(|(_, text)| text.len() as u64).sum();
        let mut writer = LzmaWriter::new_use_header(Vec::new(), &options, Some(length))
            .expect("options that there are");
        for (_, text) in &kernels {
            writer.write_all(text.as_bytes()).expect("room in memory");
        }
        let folder = env::var_os("OUT_DIR").expect("cargo sets it");
        let write = |name: &str, content: &[u8]| {
            fs::write(Path::new(&folder).join(name), content).expect("room for a file");
        };
        write("kernels.lzma", &writer.finish().expect("room in memory"));
        let lengths: Vec<_> = kernels.iter().map(|(name, text)| (name, text.len())).collect();
        write("kernels.rs", format!("&{lengths:?}\n").as_bytes());
    }
}
