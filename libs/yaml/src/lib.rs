//! YAML in which every key and every value knows its place.
//!
//! For files that people write: everything that is wrong with one is found at
//! once and has a line and a column.
//!
//! - [`parse`] gives a [`Tree`], within bounds.
//! - [`Problems`] is what is wrong with a file, as `file:line:column: message`.
//! - [`Places`] leads what is found later, at a field of what was made of the
//!   file, back to where it was written.

mod places;
mod problem;
mod tree;
mod words;

pub use places::Places;
pub use problem::{Place, Problem, Problems, Warnings};
pub use tree::{Entry, Tree, Value, parse};
pub use words::{did_you_mean, length};
