//! libFuzzer over `fuzz::targets::envelope`.
#![no_main]

fuzz::libfuzzer!(envelope);
