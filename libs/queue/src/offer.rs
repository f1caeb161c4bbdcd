//! Offers of jobs by coordinators.

use std::num::NonZeroU32;

use keys::supervisor as k;
use keys::{ActorNonce, WorkQueue};
use model::{Execution, Grants, Name, Timestamp};

/// A job that a coordinator wants executed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOffer {
    /// The attempt that is to run. One whose key is known with other content is refused.
    pub execution: Execution,
    /// Coordinator to notify of the job's events.
    pub coordinator: String,
    /// Grants that the supervisor's policy gives the job.
    pub grants: Grants,
    /// Condition for acceptance, in addition to those that always apply.
    pub condition: AcceptCondition,
    /// How many turns its context has for one of a context of weight 1, where jobs of both wait.
    pub weight: NonZeroU32,
}

/// Condition for accepting a job, in addition to those that always apply.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AcceptCondition {
    /// Nothing.
    #[default]
    None,
    /// The job is known already: its status is reported again, and nothing new is accepted.
    Known,
    /// The actor's signature has been used for no other job; this is remembered until the signature expires.
    Signed {
        /// Which signature.
        nonce: ActorNonce,
        /// Time from which on the signature is not accepted.
        expires: Timestamp,
    },
}

impl JobOffer {
    /// The queue it goes to: the most specific one it asks for, where only those take who give what it demands.
    #[must_use]
    pub fn queue(&self) -> WorkQueue {
        let job = &self.execution;
        let queue = match (&job.group, job.instance) {
            (None, None) => WorkQueue::shared(job.script_type),
            (Some(group), None) => WorkQueue::group(job.script_type, group.clone()),
            (group, Some(number)) => {
                WorkQueue::instance(job.script_type, group.clone().unwrap_or_else(default_group), number)
            }
        };
        queue.with_isolation(job.isolation.max(self.grants.isolation)).with_priority(job.priority)
    }
}

fn default_group() -> Name {
    k::DEFAULT_GROUP.parse().expect("the default group is a name")
}
