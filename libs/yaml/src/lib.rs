//! YAML in which every key and every value knows its place.
//!
//! For files that people write: everything that is wrong with one is found at
//! once and has a line and a column.
//!
//! - [`parse`] gives a [`YamlNode`], within bounds; [`parse_all`] gives one for each document.
//! - [`YamlReader`] reads one key by key, and notes what is wrong.
//! - [`Problems`] is what is wrong with a file, as `file:line:column: message`.
//! - [`SourceMap`] leads what is found later, at a field of what was made of the
//!   file, back to where it was written.

mod problem;
mod reader;
mod source_map;
mod tree;
mod user_input;

pub use problem::{Problem, Problems, SourcePosition, Warnings};
pub use reader::{MappingKeys, YamlFields, YamlReader};
pub use source_map::SourceMap;
pub use tree::{YamlEntry, YamlNode, YamlValue, parse, parse_all};
pub use user_input::{did_you_mean, duration, short_duration};
