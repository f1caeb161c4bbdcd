//! libFuzzer over `fuzz::targets::token`.
#![no_main]

fuzz::libfuzzer!(token);
