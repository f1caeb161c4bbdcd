//! libFuzzer over `fuzz::targets::letter_signature`.
#![no_main]

fuzz::libfuzzer!(letter_signature);
