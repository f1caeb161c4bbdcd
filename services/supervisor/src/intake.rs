//! What coordinators ask. One implementation for the bus and for gRPC.

use std::sync::Arc;

use futures_util::future::{BoxFuture, join_all};
use model::supervision::{
    ContextDrop, Done, JobAccepted, JobQuery, JobStatus, JobStop, JobStopped, STATE_UNKNOWN, method,
};
use model::{Execution, ScriptSource};
use mycelium::PublicKey;
use mycelium::json_rpc::{Answer, Handler, METHOD_NOT_FOUND, Peer, Request, RpcError, answer};
use queue::{Offer, Refusal, StopOutcome, Supervisor as Queue};

use crate::blobs::{Blobs, Purpose};
use crate::coordinators::{Coordinators, name_on_bus};
use crate::dropped::Dropped;
use crate::metrics::Metrics;
use crate::presence::PresenceView;

/// What the supervisor works with. Cheap to clone.
#[derive(Clone)]
pub struct Supervisor {
    /// Its queues.
    pub queue: Queue,
    /// The bytes of its jobs.
    pub blobs: Blobs,
    /// Who can be spoken to.
    pub coordinators: Coordinators,
    /// Who works here.
    pub presence: PresenceView,
    /// Contexts that were dropped lately.
    pub dropped: Dropped,
    /// What is counted.
    pub metrics: Metrics,
}

/// Answers one coordinator.
pub struct Intake {
    supervisor: Supervisor,
    coordinator: String,
    /// Whether a coordinator has turned up as soon as it says something.
    on_bus: bool,
}

impl Intake {
    /// Answers a coordinator that is attached; who attaches it says that it has arrived.
    #[must_use]
    pub fn attached(supervisor: Supervisor, coordinator: String) -> Arc<Self> {
        Arc::new(Self { supervisor, coordinator, on_bus: false })
    }

    /// Answers a coordinator on a bus. Nobody attaches there: it has arrived when it says something.
    #[must_use]
    pub fn on_bus(supervisor: Supervisor, key: PublicKey) -> Arc<Self> {
        Arc::new(Self { supervisor, coordinator: name_on_bus(key), on_bus: true })
    }
}

impl Handler for Intake {
    fn handle(&self, from: &Peer, requests: Vec<Request>) -> BoxFuture<'static, Vec<Answer>> {
        if self.on_bus {
            self.supervisor.coordinators.arrived(&self.coordinator, from);
        }
        let work = Work {
            supervisor: self.supervisor.clone(),
            coordinator: self.coordinator.clone(),
            peer: from.clone(),
        };
        Box::pin(async move { work.answer_all(requests).await })
    }
}

/// One payload's requests.
struct Work {
    supervisor: Supervisor,
    coordinator: String,
    peer: Peer,
}

impl Work {
    /// Jobs go into their queues together, in one round trip, are stopped in one, and are looked up together;
    /// what else there is follows.
    async fn answer_all(self, requests: Vec<Request>) -> Vec<Answer> {
        let (runs, others): (Vec<_>, Vec<_>) =
            requests.into_iter().enumerate().partition(|(_, request)| request.method == method::JOB_RUN);
        let (queries, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, request)| request.method == method::JOB_STATUS);
        let (stops, others): (Vec<_>, Vec<_>) =
            others.into_iter().partition(|(_, request)| request.method == method::JOB_STOP);
        let mut answers: Vec<(usize, Answer)> = self.run(runs).await;
        answers.extend(self.stop(stops).await);
        let looked_up = queries.iter().map(|(place, request)| async {
            let answer = async { self.status(&request.read()?).await };
            (*place, answer.await)
        });
        answers.extend(join_all(looked_up).await);
        for (place, request) in others {
            answers.push((place, self.other(&request).await));
        }
        answers.sort_by_key(|(place, _)| *place);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }

    async fn run(&self, requests: Vec<(usize, Request)>) -> Vec<(usize, Answer)> {
        let prepared = join_all(requests.iter().map(|(_, request)| self.prepare(request))).await;
        let mut answers = Vec::with_capacity(requests.len());
        let (mut places, mut offers) = (Vec::new(), Vec::new());
        for ((place, _), offer) in requests.iter().zip(prepared) {
            match offer {
                Ok(offer) => {
                    places.push(*place);
                    offers.push(offer);
                }
                Err(error) => {
                    self.supervisor.metrics.refused(error.reason());
                    answers.push((*place, Err(error)));
                }
            }
        }
        if offers.is_empty() {
            return answers;
        }
        let accepted = self.supervisor.queue.accept_all(offers).await;
        answers.extend(places.into_iter().zip(accepted.into_iter().map(|result| self.accepted(result))));
        answers
    }

    /// Reads a job and makes sure that its bytes are here.
    async fn prepare(&self, request: &Request) -> Result<Offer, RpcError> {
        let mut execution: Execution = request.read()?;
        let hash = execution.content_hash();
        let purpose = Purpose { job_key: execution.job_key, context_id: execution.context_id };
        let blobs = &self.supervisor.blobs;
        let refused = |error: crate::error::BlobError| {
            RpcError::refused("BLOB_MISSING", error.is_lasting(), error.to_string())
        };
        for file in execution.files.values_mut() {
            blobs.settle(file, purpose, &self.peer).await.map_err(refused)?;
        }
        if let ScriptSource::Blob(script) = execution.script {
            blobs.fetch(script, purpose, &self.peer).await.map_err(refused)?;
        }
        Ok(Offer { execution, hash, coordinator: self.coordinator.clone(), grants: model::Grants::default() })
    }

    fn accepted(&self, result: Result<queue::Accepted, Refusal>) -> Answer {
        let metrics = &self.supervisor.metrics;
        match result {
            Ok(accepted) => {
                if accepted.fresh {
                    metrics.accepted.inc()
                } else {
                    metrics.repeated.inc()
                }
                answer(&JobAccepted { accepted: true, supervisor: self.supervisor.presence.name() })
            }
            Err(refusal) => {
                metrics.refused(refusal.code());
                Err(RpcError::refused(refusal.code(), refusal.lasting(), refusal.to_string()))
            }
        }
    }

    async fn other(&self, request: &Request) -> Answer {
        match request.method.as_str() {
            method::SUPERVISOR_INFO => answer(&self.supervisor.presence.now()),
            method::CONTEXT_DROP => self.drop_context(&request.read()?).await,
            other => {
                let message =
                    format!("a supervisor has no method `{}`", other.chars().take(64).collect::<String>());
                Err(RpcError::of_protocol(METHOD_NOT_FOUND, message))
            }
        }
    }

    async fn stop(&self, requests: Vec<(usize, Request)>) -> Vec<(usize, Answer)> {
        let mut answers = Vec::with_capacity(requests.len());
        let (mut places, mut stops) = (Vec::new(), Vec::new());
        for (place, request) in requests {
            match request.read::<JobStop>() {
                Ok(stop) => {
                    places.push(place);
                    stops.push((stop.job_key, stop.grace_secs));
                }
                Err(error) => answers.push((place, Err(error))),
            }
        }
        let outcomes = self.supervisor.queue.stop_all(&stops).await;
        let stopped = outcomes.into_iter().map(|outcome| {
            let (stopped, state) = match outcome.map_err(unavailable)? {
                StopOutcome::Unknown => (true, STATE_UNKNOWN),
                StopOutcome::Stopped => (true, "stopped"),
                StopOutcome::Stopping { .. } => (false, "stopping"),
                StopOutcome::Ended(status) => (true, status.as_str()),
            };
            answer(&JobStopped { stopped, state: state.to_owned() })
        });
        answers.extend(places.into_iter().zip(stopped));
        answers
    }

    async fn status(&self, query: &JobQuery) -> Answer {
        let queue = &self.supervisor.queue;
        let Some(state) = queue.status(query.job_key).await.map_err(unavailable)? else {
            let (state, instance, start_time, end) = (STATE_UNKNOWN.to_owned(), None, None, None);
            return answer(&JobStatus { state, instance, start_time, end });
        };
        if state.end.as_ref().is_some_and(|end| !end.outputs.is_empty()) {
            // Its outputs have to be handed over before its end is of use, and the event sees to that.
            queue.tell_again(query.job_key).await.map_err(unavailable)?;
        }
        answer(&JobStatus {
            state: state.status.as_str().to_owned(),
            instance: state.instance,
            start_time: state.started_at,
            end: state.end.map(Box::new),
        })
    }

    async fn drop_context(&self, request: &ContextDrop) -> Answer {
        let context = request.context_uid;
        match self.supervisor.queue.drop_context(context, &self.coordinator).await {
            Ok(0) => {}
            Ok(running) => {
                let message = format!("{running} attempts of the context are still being stopped");
                return Err(RpcError::refused("STILL_RUNNING", false, message));
            }
            Err(error) if error.code() == Some("CONTEXT_CLAIMED") => {
                return Err(RpcError::refused("CONTEXT_CLAIMED", true, error.to_string()));
            }
            Err(error) => return Err(unavailable(error)),
        }
        self.supervisor.dropped.note(&self.coordinator, context);
        self.supervisor.blobs.drop_context(context).await.map_err(unavailable)?;
        self.supervisor.metrics.contexts_dropped.inc();
        tracing::info!(%context, "a context was forgotten");
        answer(&Done {})
    }
}

fn unavailable(error: impl std::error::Error) -> RpcError {
    tracing::warn!(%error, "a request could not be answered");
    RpcError::refused("UNAVAILABLE", false, "the supervisor's store gives trouble; try again")
}
