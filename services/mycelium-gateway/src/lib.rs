//! Placeholder while the crate is begun.
