//! YAML in which every key and every value knows its place.
//!
//! For files that people write: everything that is wrong with one is found at
//! once and has a line and a column.
//!
//! - [`parse`] gives a [`Tree`], within bounds; [`parse_all`] gives one for each document.
//! - [`Reader`] reads one key by key, and notes what is wrong.
//! - [`Problems`] is what is wrong with a file, as `file:line:column: message`.
//! - [`Places`] leads what is found later, at a field of what was made of the
//!   file, back to where it was written.

mod places;
mod problem;
mod reader;
mod tree;
mod words;

pub use places::Places;
pub use problem::{Place, Problem, Problems, Warnings};
pub use reader::{Fields, Keys, Reader};
pub use tree::{Entry, Tree, Value, parse, parse_all};
pub use words::{did_you_mean, length, short_length};
