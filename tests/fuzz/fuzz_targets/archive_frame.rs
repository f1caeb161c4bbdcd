//! libFuzzer over `fuzz::targets::archive_frame`.
#![no_main]

fuzz::libfuzzer!(archive_frame);
