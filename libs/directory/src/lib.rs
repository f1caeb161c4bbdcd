//! Knowledge of actors and their roles, which every service has.
//!
//! Each [`DirectoryView`] answers from memory what was read once, for as long as it would hear of a change: a view and no
//! cache (decision 12). Storage feeds its own from the hints of Redis, the other services theirs from storage's watch
//! ([`RemoteDirectory`]).

mod directory_view;
mod remote;
mod view_state;
mod watchers;

pub use directory_view::{DirectorySource, DirectoryView};
pub use remote::RemoteDirectory;
pub use view_state::DirectoryInvalidation;
