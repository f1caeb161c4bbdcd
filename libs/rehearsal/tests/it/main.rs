//! Rehearsals of whole scenario files.

mod files;
mod migrations;
mod rehearsals;
