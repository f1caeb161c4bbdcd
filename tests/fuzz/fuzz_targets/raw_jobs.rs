//! libFuzzer over `fuzz::targets::raw_jobs`.
#![no_main]

fuzz::libfuzzer!(raw_jobs);
