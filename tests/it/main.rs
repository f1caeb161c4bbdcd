//! The suite as a whole.

mod specs;
