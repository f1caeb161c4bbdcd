//! Where submissions were allowed: only there is anything done for a flow before storage has decided.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::ActorId;
use proto::internal::v1::CreateFlowResponse;
use tonic::{Code, Status};

/// Places that are remembered.
const GRANTED_MAX: usize = 65_536;

/// Who asks, in which context, for whom.
type Place = (ActorId, u32, ActorId);

/// Places at which the last submission was not refused. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct Granted(Arc<Mutex<HashSet<Place>>>);

impl Granted {
    /// Whether the last submission was not refused.
    pub(crate) fn has(&self, place: Place) -> bool {
        self.places().contains(&place)
    }

    /// Notes what storage has answered.
    pub(crate) fn note(&self, place: Place, answer: &Result<CreateFlowResponse, Status>) {
        let mut places = self.places();
        match answer {
            Ok(_) => {
                if places.len() >= GRANTED_MAX {
                    places.clear();
                }
                places.insert(place);
            }
            // Nobody has decided.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {}
            Err(_) => {
                places.remove(&place);
            }
        }
    }

    fn places(&self) -> MutexGuard<'_, HashSet<Place>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_and_silence_is_not() {
        let (granted, place) = (Granted::default(), (ActorId(1), 2, ActorId(3)));
        let other = (ActorId(3), 2, ActorId(3));
        assert!(!granted.has(place));
        granted.note(place, &Ok(CreateFlowResponse::default()));
        granted.note(place, &Err(Status::unavailable("it is away")));
        assert!(granted.has(place) && !granted.has(other));
        granted.note(place, &Err(Status::permission_denied("not any more")));
        assert!(!granted.has(place));
    }
}
