//! The wire: code generated from `proto/`, the descriptor set that reflection
//! answers from, and all conversions between wire and model.
//!
//! Conversions destructure what they convert exhaustively, so that a new field
//! does not compile until its conversion is decided.

/// The public API, package `mycora.v1`.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::needless_pass_by_value,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]
pub mod v1 {
    include!("generated/mycora.v1.rs");
}

/// Internal API between services, package `mycora.internal.v1`.
pub mod internal {
    /// The first version.
    #[allow(
        missing_docs,
        unreachable_pub,
        clippy::all,
        clippy::needless_pass_by_value,
        clippy::allow_attributes_without_reason,
        reason = "generated code"
    )]
    pub mod v1 {
        include!("generated/mycora.internal.v1.rs");
    }
}

pub mod convert;
pub mod pages;
pub mod required;

/// The encoded `FileDescriptorSet` of both packages, with their comments, and of their imports.
pub const DESCRIPTORS: &[u8] = include_bytes!("generated/descriptors.binpb");
