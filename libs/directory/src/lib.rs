//! What every service knows of actors and their roles.
//!
//! [`Views`] answer from memory what was read once, for as long as they would hear of a change: they are views and no
//! caches (decision 12). Storage feeds its own from the hints of Redis, the other services theirs from storage's watch
//! ([`Remote`]).

mod listeners;
mod remote;
mod view;
mod views;

pub use remote::Remote;
pub use view::News;
pub use views::{Source, Views};
