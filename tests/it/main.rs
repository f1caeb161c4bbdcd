//! The suite as a whole.

mod cancels;
mod coordinators;
mod crashes;
mod demo;
mod draw;
mod flows;
mod kills;
mod limits;
mod local;
mod logs;
mod operators;
mod places;
mod processes;
mod pushed;
mod random;
mod repeats;
mod replicas;
mod reruns;
mod scene;
mod shapes;
mod signatures;
mod sites;
mod specs;
mod suite;
mod times;
mod watching;
