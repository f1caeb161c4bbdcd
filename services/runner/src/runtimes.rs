//! One file per language.

pub(crate) mod python;
pub(crate) mod rhai;
pub(crate) mod shell;
