//! Rehearsals of whole scenario files.

mod files;
mod rehearsals;
