//! A runner on a real Redis, with real scripts.

mod ending;
mod languages;
mod process;
mod python;
mod setup;
mod workspace;
