//! A runner on a real Redis, with real scripts.

mod broker;
mod capabilities;
mod compilers;
mod disk;
mod disk_quota;
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
mod v;
mod workspace;
