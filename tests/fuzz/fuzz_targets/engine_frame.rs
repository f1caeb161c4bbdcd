//! libFuzzer over `fuzz::targets::engine_frame`.
#![no_main]

fuzz::libfuzzer!(engine_frame);
