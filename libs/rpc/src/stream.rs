//! What handlers of streams are made of: an end when their caller may listen no more, and a sign of life.

pub(crate) mod member;
pub(crate) mod pulse;
