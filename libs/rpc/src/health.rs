//! `grpc.health.v1`, honest: nothing serves until somebody says so.
//!
//! Unlike tonic-health's own implementation, `Watch` of an unknown service
//! answers `SERVICE_UNKNOWN` and stays open, as the protocol asks for.

use std::sync::Arc;

use futures_util::stream::{self, BoxStream};
use tokio::sync::watch;
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_server::Health as HealthService;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};

use crate::error::Error;

/// The switch behind the health service of one mount. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Health {
    state: watch::Sender<State>,
    services: Arc<[&'static str]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    NotServing,
    Serving,
    /// Not serving, and every watch is ended so that connections can drain.
    Ended,
}

impl Health {
    /// For these services and for `""`, the whole server.
    pub(crate) fn new(services: Vec<&'static str>) -> Self {
        Self { state: watch::Sender::new(State::NotServing), services: services.into() }
    }

    /// Says whether calls are welcome. Has no effect after [`Health::end`].
    pub fn set_serving(&self, serving: bool) {
        let next = if serving { State::Serving } else { State::NotServing };
        self.state.send_if_modified(|state| {
            let change = *state != State::Ended && *state != next;
            if change {
                *state = next;
            }
            change
        });
    }

    /// Follows a flag until it goes away, for as long as the returned future is polled.
    pub async fn follow(self, mut ready: watch::Receiver<bool>) {
        loop {
            self.set_serving(*ready.borrow_and_update());
            if ready.changed().await.is_err() {
                return;
            }
        }
    }

    /// NOT_SERVING for good; watchers are told and their streams end.
    pub fn end(&self) {
        self.state.send_replace(State::Ended);
    }

    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.services.contains(&service)
    }
}

/// Answers the calls.
pub(crate) struct HealthRpc(pub(crate) Health);

#[tonic::async_trait]
impl HealthService for HealthRpc {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = &request.get_ref().service;
        if !self.0.knows(service) {
            return Err(Error::not_found(format!("service `{service}`")).into());
        }
        let state = *self.0.state.borrow();
        Ok(Response::new(response(true, state)))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let known = self.0.knows(&request.get_ref().service);
        let mut states = self.0.state.subscribe();
        states.mark_changed();
        let updates = stream::unfold((states, None), move |(mut states, told)| async move {
            loop {
                if told == Some(State::Ended) || states.changed().await.is_err() {
                    return None;
                }
                let state = *states.borrow_and_update();
                // An unknown service is told once, and then only that the server ends.
                if known || told.is_none() || state == State::Ended {
                    return Some((Ok(response(known, state)), (states, Some(state))));
                }
            }
        });
        Ok(Response::new(Box::pin(updates)))
    }
}

const fn response(known: bool, state: State) -> HealthCheckResponse {
    let status = match (known, state) {
        (false, _) => ServingStatus::ServiceUnknown,
        (true, State::Serving) => ServingStatus::Serving,
        (true, State::NotServing | State::Ended) => ServingStatus::NotServing,
    };
    HealthCheckResponse { status: status as i32 }
}
