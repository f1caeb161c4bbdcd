//! libFuzzer over `fuzz::targets::expression`.
#![no_main]

fuzz::libfuzzer!(expression);
