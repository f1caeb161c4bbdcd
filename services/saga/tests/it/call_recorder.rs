//! Calls that lanes have ordered outside, as the outside saw them.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use saga::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};
use workflow::Json;

/// A call that was ordered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Called {
    pub(crate) what: String,
    pub(crate) id: String,
    pub(crate) payload: String,
}

/// Calls that were made outside, in the order in which they were first seen.
#[derive(Clone, Default)]
pub(crate) struct Witness(Arc<Mutex<Vec<Called>>>);

impl Witness {
    pub(crate) fn note(&self, called: Called) {
        self.0.lock().expect("no test panicked with it").push(called);
    }

    pub(crate) fn calls(&self) -> Vec<Called> {
        self.0.lock().expect("no test panicked with it").clone()
    }

    /// Lists what was done, each id once.
    pub(crate) fn distinct_calls(&self) -> Vec<String> {
        let mut seen = BTreeMap::new();
        let mut names = Vec::new();
        for called in self.calls() {
            let payload = seen.entry(called.id.clone()).or_insert_with(|| {
                names.push(called.what.clone());
                called.payload.clone()
            });
            assert_eq!(*payload, called.payload, "one payload for {}", called.id);
        }
        names
    }
}

#[async_trait]
impl Gateway for Witness {
    async fn submit(&self, command: &AggregateCommand) -> GatewayAnswer {
        self.note(Called {
            what: command.command_type.clone(),
            id: command.command_id.to_string(),
            payload: command.payload_json.clone(),
        });
        GatewayAnswer::Done(Json::object([]))
    }
}
