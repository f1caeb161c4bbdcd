//! libFuzzer over `fuzz::targets::storage_record`.
#![no_main]

fuzz::libfuzzer!(storage_record);
