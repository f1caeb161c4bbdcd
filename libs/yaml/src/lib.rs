//! YAML in which every key and every value knows its place.
//!
//! For files that people write: every problem of a file is found at once and has a line and a column.
//!
//! - [`parse`] gives a [`YamlNode`], within bounds; [`parse_all`] gives one for each document.
//! - [`YamlReader`] reads a tree key by key, and notes every problem.
//! - [`Problems`] lists the problems of a file, as `file:line:column: message`.
//! - [`SourceMap`] maps a field of a value that was built from the file back to its place there, for problems found later.

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
