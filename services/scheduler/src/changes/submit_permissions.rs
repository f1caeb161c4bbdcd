//! Remembers which actors were allowed to submit, and where. Only for them the scheduler works on a flow before storage has decided.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use model::ActorId;
use proto::internal::v1::CreateFlowResponse;
use tonic::{Code, Status};

/// Grants that are remembered.
const GRANTED_MAX: usize = 65_536;

/// Requesting actor, context, and the caller on whose behalf.
type SubmitPermission = (ActorId, u32, ActorId);

/// Permissions whose last submission was not refused. Clones are the same.
#[derive(Debug, Clone, Default)]
pub(crate) struct SubmitPermissionCache(Arc<Mutex<HashSet<SubmitPermission>>>);

impl SubmitPermissionCache {
    /// Returns true when the last submission was not refused.
    pub(crate) fn has(&self, grant: SubmitPermission) -> bool {
        self.grants().contains(&grant)
    }

    /// Notes what storage has answered.
    pub(crate) fn note(&self, grant: SubmitPermission, answer: &Result<CreateFlowResponse, Status>) {
        let mut grants = self.grants();
        match answer {
            Ok(_) => {
                if grants.len() >= GRANTED_MAX {
                    grants.clear();
                }
                grants.insert(grant);
            }
            // Storage has not decided.
            Err(status) if matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded) => {}
            Err(_) => {
                grants.remove(&grant);
            }
        }
    }

    fn grants(&self) -> MutexGuard<'_, HashSet<SubmitPermission>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_is_remembered_and_silence_is_not() {
        let (granted, place) = (SubmitPermissionCache::default(), (ActorId(1), 2, ActorId(3)));
        let other = (ActorId(3), 2, ActorId(3));
        assert!(!granted.has(place));
        granted.note(place, &Ok(CreateFlowResponse::default()));
        granted.note(place, &Err(Status::unavailable("it is away")));
        assert!(granted.has(place) && !granted.has(other));
        granted.note(place, &Err(Status::permission_denied("not any more")));
        assert!(!granted.has(place));
    }
}
