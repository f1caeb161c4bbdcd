//! What coordinators offer.

use std::num::NonZeroU32;

use keys::supervisor as k;
use keys::{ActorNonce, WorkQueue};
use model::{Execution, Grants, Name, Timestamp};

/// A job that a coordinator wants executed.
#[derive(Debug, Clone, PartialEq)]
pub struct JobOffer {
    /// The attempt that is to run. One whose key is known with other content is refused.
    pub execution: Execution,
    /// Who is to be told what becomes of it.
    pub coordinator: String,
    /// What the supervisor's policy gives it.
    pub grants: Grants,
    /// What has to hold beside what always has.
    pub condition: AcceptCondition,
    /// How many turns its context has for one of a context of weight 1, where jobs of both wait.
    pub weight: NonZeroU32,
}

/// What has to hold for a job to be taken in, beside what always has.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum AcceptCondition {
    /// Nothing.
    #[default]
    None,
    /// It is known: it is only told again how it stands.
    Known,
    /// Its actor's signature has been used for no other job, which is remembered until the signature is over.
    Signed {
        /// Which signature.
        nonce: ActorNonce,
        /// From when on nobody takes it.
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
