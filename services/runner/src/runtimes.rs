//! One file per language.

pub(crate) mod osis;
pub(crate) mod python;
pub(crate) mod rhai;
pub(crate) mod rust;
pub(crate) mod sal;
pub(crate) mod shell;
pub(crate) mod v;
