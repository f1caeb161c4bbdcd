//! libFuzzer over `fuzz::targets::script`.
#![no_main]

fuzz::libfuzzer!(script);
