#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| kvstore::fuzz::fabric(data));
