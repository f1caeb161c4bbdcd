//! Chat and mail.
//!
//! - [`letters`]: they leave; [`letter_box`]: they arrive and are acknowledged;
//! - [`letter_lists`], [`letter_watch`]: they are looked at and awaited.

pub(crate) mod letter_box;
pub(crate) mod letter_lists;
pub(crate) mod letter_watch;
pub(crate) mod letters;
