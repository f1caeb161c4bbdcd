//! The suite as a whole.

mod coordinators;
mod crashes;
mod demo;
mod flows;
mod processes;
mod specs;
mod suite;
