//! libFuzzer over `fuzz::targets::frame`.
#![no_main]

fuzz::libfuzzer!(frame);
