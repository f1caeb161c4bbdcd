//! libFuzzer over `fuzz::targets::said`.
#![no_main]

fuzz::libfuzzer!(said);
