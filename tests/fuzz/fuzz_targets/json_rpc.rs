//! libFuzzer over `fuzz::targets::json_rpc`.
#![no_main]

fuzz::libfuzzer!(json_rpc);
