//! Lanes of sagas and of effects, on every store and every broker.

mod census;
mod crashes;
mod definitions;
mod disorder;
mod effects;
mod facts;
mod lanes;
mod letters;
mod lost_answers;
mod migrations;
mod nats_permissions;
mod operator;
mod permissions;
mod positions;
mod process;
mod quotas;
mod reads;
mod reloads;
mod replays;
mod replicas;
mod schedules;
mod served;
mod streams;
mod sweeps;
mod verbs;
mod world;
