//! Any bytes as a response, held to the same oracle as the property test.

#![no_main]

#[path = "../../tests/oracle/mod.rs"]
mod oracle;

libfuzzer_sys::fuzz_target!(|text: &[u8]| oracle::check(&oracle::Input::decode(text)));
