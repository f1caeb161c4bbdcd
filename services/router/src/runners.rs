//! Where runners are: the registry's view, as far as delivering needs it.

use std::collections::HashMap;

use proto::internal::v1::ViewedRunner;

use crate::lanes::LaneKey;

/// A runner's place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Where its supervisor is reached.
    pub address: String,
    /// The topic its requests travel under.
    pub topic: String,
    /// Its supervisor is alive.
    pub live: bool,
}

/// All runners of all contexts.
#[derive(Debug, Default)]
pub struct Runners {
    places: HashMap<LaneKey, Place>,
    complete: bool,
}

impl Runners {
    /// Takes over runners that are new or have changed.
    pub fn update(&mut self, runners: Vec<ViewedRunner>, snapshot_end: bool) {
        for ViewedRunner { context_id, runner } in runners {
            let Some(runner) = runner else { continue };
            let key = (model::ContextId(context_id), model::RunnerId(runner.id));
            let place = Place { address: runner.address, topic: runner.topic, live: runner.live };
            self.places.insert(key, place);
        }
        self.complete |= snapshot_end;
    }

    /// Whether the first snapshot was complete: who is not known then does not exist.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Where a runner is, dead or alive.
    #[must_use]
    pub fn get(&self, key: LaneKey) -> Option<&Place> {
        self.places.get(&key)
    }

    /// Whether something sent there may arrive.
    #[must_use]
    pub fn is_live(&self, key: LaneKey) -> bool {
        self.places.get(&key).is_some_and(|place| place.live)
    }
}
