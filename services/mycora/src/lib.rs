//! The `mycora` binary: the command line, and every service in one process.
//!
//! - [`flow_file`]: what people write, parsed into requests.

pub mod flow_file;
