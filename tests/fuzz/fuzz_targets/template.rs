//! libFuzzer over `fuzz::targets::template`.
#![no_main]

fuzz::libfuzzer!(template);
