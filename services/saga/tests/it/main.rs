//! Lanes of sagas and of effects, on every store and every broker.

mod apart;
mod away;
mod call_recorder;
mod callbacks;
mod calls;
mod canary;
mod census;
mod chaos;
mod clock;
mod commit_gate;
mod crashes;
mod credentials;
mod definitions;
mod disorder;
mod drains;
mod effects;
mod everywhere;
mod facts;
mod full_lanes;
mod half_an_hour;
mod hooked_broker;
mod hooked_store;
mod kept_providers;
mod labels;
mod lanes;
mod leaks;
mod letters;
mod lost_answers;
mod migrations;
mod nats_permissions;
mod open_calls;
mod operating;
mod operator;
mod outages;
mod permissions;
mod poison;
mod positions;
mod process;
mod quotas;
mod reads;
mod reloading;
mod reloads;
mod repeats;
mod replays;
mod replicas;
mod schedules;
mod sent_calls;
mod served;
#[path = "../providers/sink.rs"]
#[expect(dead_code, reason = "shared with the tests of providers, which use all of it")]
mod sink;
mod sizes;
mod skewed_clocks;
#[path = "../providers/stage.rs"]
#[expect(dead_code, reason = "shared with the tests of providers, which use all of it")]
mod stage;
mod starts;
mod streams;
mod sweeps;
mod timer_bursts;
mod traces;
mod undone_steps;
#[path = "../providers/upstream.rs"]
#[expect(dead_code, reason = "shared with the tests of providers, which use all of it")]
mod upstream;
mod verbs;
mod waits;
mod walls;
mod world;
