#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| fuzzing::credentials::check(data));
