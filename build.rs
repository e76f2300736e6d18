//! Gives the shared library its soname, and keeps it mapped once it has been loaded. Deflates the
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
    kernels::deflate();
}

/// The PTX of the kernels, as the library has it.
#[cfg(feature = "cuda")]
mod kernels {
    use std::collections::BTreeMap;
    use std::fmt::Write;
    use std::path::Path;
    use std::{env, fs};

    use miniz_oxide::deflate::compress_to_vec;

    const FOLDER: &str = "src/device/ptx";
    const DTYPES: [&str; 7] = ["f32", "f64", "f16", "bf16", "i8", "i32", "i64"];
    /// The slowest and smallest.
    const LEVEL: u8 = 10;

    /// The kernels that share a compressed text: all modes of a formula, which are much alike.
    fn family(name: &str) -> &str {
        let name = name.strip_suffix("_master").unwrap_or(name);
        if name.starts_with("copy_") {
            return "copy";
        }
        let mode = DTYPES.iter().find_map(|dtype| name.strip_suffix(dtype)?.strip_suffix('_'));
        mode.unwrap_or(name)
    }

    /// Writes `kernels.rs`: for each family its kernels, with the lengths of their texts, and the
    /// texts one after the other, deflated.
    pub fn deflate() {
        println!("cargo:rerun-if-changed={FOLDER}");
        let mut families = BTreeMap::<String, Vec<(String, String)>>::new();
        for entry in fs::read_dir(FOLDER).expect("the folder of the kernels") {
            let path = entry.expect("a kernel").path();
            let name = path.file_stem().expect("a name").to_string_lossy().into_owned();
            let text = fs::read_to_string(&path).expect("the text of a kernel");
            families.entry(family(&name).into()).or_default().push((name, text));
        }
        let folder = env::var_os("OUT_DIR").expect("cargo sets it");
        let mut source = String::from("&[\n");
        for (family, mut kernels) in families {
            kernels.sort();
            let texts: String = kernels.iter().map(|(_, text)| text.as_str()).collect();
            let file = Path::new(&folder).join(format!("{family}.deflate"));
            fs::write(&file, compress_to_vec(texts.as_bytes(), LEVEL)).expect("room for a file");
            let lengths = kernels.iter().map(|(name, text)| (name, text.len()));
            let lengths = lengths.collect::<Vec<_>>();
            writeln!(
                source,
                "    ({lengths:?}.as_slice(), include_bytes!({:?})),",
                file.display().to_string()
            )
            .expect("a string has room");
        }
        fs::write(Path::new(&folder).join("kernels.rs"), source + "]\n").expect("room for a file");
    }
}
