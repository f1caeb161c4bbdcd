//! A runner on a real Redis, with real scripts.

mod area;
mod ending;
mod hostile;
mod languages;
mod osis;
mod process;
mod python;
mod rhai;
mod rust;
mod sal;
mod setup;
mod shell;
mod survey;
mod v;
mod workspace;
