//! A runner on a real Redis, with real scripts.

mod area;
mod broker;
mod compilers;
mod disk;
mod ending;
mod engine;
mod hostile;
mod languages;
mod osis;
mod process;
mod python;
mod random;
mod rhai;
mod rust;
mod sal;
mod setup;
mod shell;
mod survey;
mod v;
mod workspace;
