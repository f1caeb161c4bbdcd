//! libFuzzer over `fuzz::targets::page_token`.
#![no_main]

fuzz::libfuzzer!(page_token);
