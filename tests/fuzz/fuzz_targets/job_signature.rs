//! libFuzzer over `fuzz::targets::job_signature`.
#![no_main]

fuzz::libfuzzer!(job_signature);
