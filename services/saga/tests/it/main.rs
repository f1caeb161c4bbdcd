//! Lanes of sagas and of effects, on every store and every broker.

mod crashes;
mod effects;
mod lanes;
mod world;
