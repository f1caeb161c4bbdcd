//! The supervisor on a real Redis, with coordinators that speak to it.

mod backlog;
mod legacy;
