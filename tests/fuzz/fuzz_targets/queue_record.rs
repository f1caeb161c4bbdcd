//! libFuzzer over `fuzz::targets::queue_record`.
#![no_main]

fuzz::libfuzzer!(queue_record);
