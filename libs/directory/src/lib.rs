//! Knowledge of actors and their roles, which every service has.
//!
//! Each [`DirectoryView`] answers from memory as long as its source would notify it of a change: a view, not a
//! cache (decision 12). Storage feeds its own view from the hints of Redis; the other services feed theirs from storage's watch
//! ([`RemoteDirectory`]).

mod directory_view;
mod remote;
mod view_state;
mod watchers;

pub use directory_view::{DirectorySource, DirectoryView};
pub use remote::RemoteDirectory;
pub use view_state::DirectoryInvalidation;
