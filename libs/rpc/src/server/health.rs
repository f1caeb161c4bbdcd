//! `grpc.health.v1`, honest: nothing serves until it is set to serving.
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
    state: watch::Sender<ServingState>,
    services: Arc<[&'static str]>,
    parts: Arc<[HealthDependency]>,
}

/// Something that a server depends on, by name, with a flag for its own health.
pub(crate) type HealthDependency = (&'static str, watch::Receiver<bool>);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServingState {
    NotServing,
    Serving,
    /// Not serving, and every watch is ended so that connections can drain.
    Ended,
}

impl Health {
    /// For these services and for `""`, the whole server; and for parts, each by its name.
    pub(crate) fn new(services: Vec<&'static str>, parts: Vec<HealthDependency>) -> Self {
        let state = watch::Sender::new(ServingState::NotServing);
        Self { state, services: services.into(), parts: parts.into() }
    }

    /// Says whether calls are welcome. Has no effect after [`Health::end`].
    pub fn set_serving(&self, serving: bool) {
        let next = if serving { ServingState::Serving } else { ServingState::NotServing };
        self.state.send_if_modified(|state| {
            let change = *state != ServingState::Ended && *state != next;
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

    /// Sets NOT_SERVING permanently; watchers get it as their last answer, and their streams end.
    pub fn end(&self) {
        self.state.send_replace(ServingState::Ended);
    }

    fn find(&self, service: &str) -> HealthCheckTarget {
        if service.is_empty() || self.services.contains(&service) {
            return HealthCheckTarget::Server;
        }
        let part = self.parts.iter().find(|(name, _)| *name == service);
        part.map_or(HealthCheckTarget::Unknown, |(_, well)| HealthCheckTarget::Part(well.clone()))
    }
}

/// Target of a health check.
enum HealthCheckTarget {
    /// The server, or one of its services: they are well together.
    Server,
    /// A part.
    Part(watch::Receiver<bool>),
    /// Nothing that is here.
    Unknown,
}

impl HealthCheckTarget {
    /// Returns true when the part is well, and always for the server as a whole; nothing for what is not known.
    fn well(&mut self) -> Option<bool> {
        match self {
            Self::Server => Some(true),
            Self::Part(well) => Some(*well.borrow_and_update()),
            Self::Unknown => None,
        }
    }

    /// Returns when the part's health may have changed. Never returns for a part that is not followed any more, or for another
    /// target than a part.
    async fn changed(&mut self) {
        if let Self::Part(well) = self
            && well.changed().await.is_ok()
        {
            return;
        }
        std::future::pending().await
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
        let well = self.0.find(service).well();
        if well.is_none() {
            return Err(Error::not_found(format!("service `{service}`")).into());
        }
        Ok(Response::new(response(well, *self.0.state.borrow())))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watching = HealthWatcher {
            states: self.0.state.subscribe(),
            target: self.0.find(&request.get_ref().service),
            last: None,
        };
        Ok(Response::new(Box::pin(stream::unfold(watching, HealthWatcher::next))))
    }
}

/// A watch, and the answer that its caller got last.
struct HealthWatcher {
    states: watch::Receiver<ServingState>,
    target: HealthCheckTarget,
    last: Option<(ServingState, HealthCheckResponse)>,
}

impl HealthWatcher {
    async fn next(mut self) -> Option<(Result<HealthCheckResponse, Status>, Self)> {
        loop {
            let state = *self.states.borrow_and_update();
            let well = self.target.well();
            let now = response(well, state);
            match &self.last {
                Some((ServingState::Ended, _)) => return None,
                // The end is sent even when the last answer was the same.
                Some((_, last)) if *last == now && state != ServingState::Ended => {}
                _ => {
                    self.last = Some((state, now));
                    return Some((Ok(now), self));
                }
            }
            tokio::select! {
                changed = self.states.changed() => changed.ok()?,
                () = self.target.changed() => {}
            }
        }
    }
}

/// `well` is absent for what is not known.
const fn response(well: Option<bool>, state: ServingState) -> HealthCheckResponse {
    let status = match (well, state) {
        (None, _) => ServingStatus::ServiceUnknown,
        (Some(true), ServingState::Serving) => ServingStatus::Serving,
        (Some(_), _) => ServingStatus::NotServing,
    };
    HealthCheckResponse { status: status as i32 }
}
