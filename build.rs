//! Gives the shared library its soname, and keeps it mapped once it has been loaded.

/// Bumped on any break of the C ABI; equal to `KV_ABI_VERSION` (a test compares them).
const ABI: u32 = 0;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = std::env::var("CARGO_CFG_TARGET_OS").unwrap_or_default();
    if target == "linux" {
        println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libkvstore.so.{ABI}");
        println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
