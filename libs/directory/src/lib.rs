//! What every service knows of actors and their roles.
//!
//! [`DirectoryView`] answer from memory what was read once, for as long as they would hear of a change: they are views and no
//! caches (decision 12). Storage feeds its own from the hints of Redis, the other services theirs from storage's watch
//! ([`RemoteDirectory`]).

mod directory_view;
mod remote;
mod view_state;
mod watchers;

pub use directory_view::{DirectorySource, DirectoryView};
pub use remote::RemoteDirectory;
pub use view_state::DirectoryInvalidation;
