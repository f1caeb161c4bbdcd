//! libFuzzer over `fuzz::targets::flow_file`.
#![no_main]

fuzz::libfuzzer!(flow_file);
