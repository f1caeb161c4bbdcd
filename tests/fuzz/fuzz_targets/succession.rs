//! libFuzzer over `fuzz::targets::succession`.
#![no_main]

fuzz::libfuzzer!(succession);
