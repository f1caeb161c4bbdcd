//! Contents of a server: its services, its policy, health and reflection.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::Request;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;
use tower::Service;

use crate::caller::directory::Directory;
use crate::gate::actor_limits::{ActorCallLimiter, CallRate};
use crate::gate::admission::Admission;
use crate::gate::budget::{MessageBudget, MessageBytesMax};
use crate::gate::fair_share::FairShareScheduler;
use crate::gate::load_shedder::{CallsMax, LoadShedder};
use crate::gate::methods::{MethodTimeoutTable, Methods};
use crate::gate::policy::{Allow, MethodPolicy, PolicyError};
use crate::gate::{Gate, GateLayers};
use crate::metrics::Metrics;
use crate::server::health::{Health, HealthDependency, HealthRpc};

/// Callable by anyone who can connect: probes and `grpcurl` have no identity.
const OPEN_SERVICES: [&str; 3] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
];

/// Services behind their policy, ready to be served. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Mount {
    pub(crate) gate: Gate,
    health: Health,
}

impl Mount {
    /// Starts a mount with this policy.
    #[must_use]
    pub fn builder(policy: MethodPolicy) -> MountBuilder {
        MountBuilder {
            policy,
            directory: None,
            routes: Routes::default(),
            names: Vec::new(),
            descriptors: Vec::new(),
            parts: Vec::new(),
            patience: Vec::new(),
            calls_max: CallsMax::default(),
            message_bytes_max: None,
        }
    }

    /// The switch behind `grpc.health.v1`; off at first.
    #[must_use]
    pub const fn health(&self) -> &Health {
        &self.health
    }

    /// How often one actor may call, whichever way it comes.
    pub fn bound_actors(&self, rate: CallRate) {
        self.gate.bound_actors(rate);
    }

    /// Returns the metrics of its calls and connections.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        self.gate.metrics()
    }
}

/// Gathers what a [`Mount`] offers.
#[derive(Debug)]
pub struct MountBuilder {
    policy: MethodPolicy,
    directory: Option<Arc<dyn Directory>>,
    routes: Routes,
    names: Vec<&'static str>,
    descriptors: Vec<&'static [u8]>,
    parts: Vec<HealthDependency>,
    patience: Vec<(String, Duration)>,
    calls_max: CallsMax,
    message_bytes_max: Option<MessageBytesMax>,
}

impl MountBuilder {
    /// Adds a generated service (`FlowServiceServer::new(…)`).
    ///
    /// Tonic decodes messages up to 4 MiB unless the generated type is configured otherwise.
    #[must_use]
    pub fn service<S>(mut self, service: S) -> Self
    where
        S: Service<Request<Body>, Response = http::Response<Body>, Error = Infallible>
            + NamedService
            + Clone
            + Send
            + Sync
            + 'static,
        S::Future: Send + 'static,
    {
        self.names.push(S::NAME);
        self.routes = self.routes.add_service(service);
        self
    }

    /// Sets the directory of the actors that call. Without one no actor is believed that comes over a connection.
    #[must_use]
    pub fn directory(mut self, directory: Arc<dyn Directory>) -> Self {
        self.directory = Some(directory);
        self
    }

    /// Says of methods with one answer how long a call may take, where that is more than a minute: those that wait
    /// for something, or have much to do. Streams last as long as their callers like.
    #[must_use]
    pub fn method_timeouts(mut self, table: MethodTimeoutTable<'_>) -> Self {
        self.patience.extend(table.iter().map(|(path, patience)| ((*path).to_owned(), *patience)));
        self
    }

    /// Bounds how many calls are answered at once; calls beyond it are refused.
    #[must_use]
    pub const fn calls_max(mut self, max: CallsMax) -> Self {
        self.calls_max = max;
        self
    }

    /// How much its callers' large messages may take; without it they take from what the process has for all its servers.
    #[must_use]
    pub const fn message_bytes_max(mut self, max: MessageBytesMax) -> Self {
        self.message_bytes_max = Some(max);
        self
    }

    /// Adds an encoded `FileDescriptorSet` for reflection. Only mounted services are listed.
    #[must_use]
    pub fn descriptors(mut self, encoded: &'static [u8]) -> Self {
        self.descriptors.push(encoded);
        self
    }

    /// Adds something that the server depends on, as a service of this name in `grpc.health.v1`: it serves while
    /// the flag is set and the server serves. The server's own health does not depend on it.
    #[must_use]
    pub fn part(mut self, name: &'static str, well: watch::Receiver<bool>) -> Self {
        self.parts.push((name, well));
        self
    }

    /// Adds health, and reflection when there are descriptors, and closes the mount.
    ///
    /// # Errors
    /// When the policy has no row for a service or names a method that a service does not have, a descriptor set cannot be read,
    /// or a timeout is given for a method that is not here or a stream.
    pub fn build(mut self) -> Result<Mount, MountError> {
        if let Some(service) = self.names.iter().find(|name| !self.policy.covers(name)) {
            return Err(MountError::Uncovered { service });
        }
        for service in OPEN_SERVICES {
            self.policy.add(&format!("/{service}/*"), &[Allow::Anyone]).map_err(MountError::Policy)?;
        }
        let health = Health::new(self.names.clone(), std::mem::take(&mut self.parts));
        self.routes = self.routes.add_service(HealthServer::new(HealthRpc(health.clone())));
        if !self.descriptors.is_empty() {
            self.routes = self.with_reflection()?;
        }
        let metrics = Metrics::new();
        let methods = self.methods(&metrics)?;
        let shed = LoadShedder::new(self.calls_max, metrics.clone());
        let admission = Admission::new(self.policy, self.directory, ActorCallLimiter::new(metrics.clone()));
        let turns = FairShareScheduler::new(metrics.clone());
        let budget = MessageBudget::new(self.message_bytes_max, metrics.clone());
        let rooms = GateLayers { admission, methods, load_shedder: shed, fair_share: turns, budget, metrics };
        Ok(Mount { gate: Gate::new(self.routes, rooms), health })
    }

    fn methods(&self, metrics: &Metrics) -> Result<Methods, MountError> {
        let own = [tonic_health::pb::FILE_DESCRIPTOR_SET];
        let sets: Vec<_> = self.descriptors.iter().copied().chain(own).collect();
        let names = self.names.iter().copied().chain(OPEN_SERVICES);
        let mut methods = Methods::read(names, &sets, &metrics.call_seconds)
            .map_err(|error| MountError::Descriptors(error.to_string()))?;
        for (path, patience) in &self.patience {
            if !methods.set_timeout(path, *patience) {
                return Err(MountError::Timeout { path: path.clone() });
            }
        }
        if let Some(path) = self.policy.named().find(|path| methods.lacks(path)) {
            return Err(MountError::NoMethod { path: path.to_owned() });
        }
        Ok(methods)
    }

    fn with_reflection(&self) -> Result<Routes, MountError> {
        let builder = || {
            let own = [tonic_health::pb::FILE_DESCRIPTOR_SET, tonic_types::pb::FILE_DESCRIPTOR_SET];
            let sets = self.descriptors.iter().copied().chain(own);
            let builder = sets.fold(tonic_reflection::server::Builder::configure(), |builder, set| {
                builder.register_encoded_file_descriptor_set(set)
            });
            let names = self.names.iter().copied().chain(OPEN_SERVICES);
            names.fold(builder, tonic_reflection::server::Builder::with_service_name)
        };
        // Postman, Kreya and other older tools know v1alpha only.
        let v1 = builder().build_v1().map_err(|e| MountError::Descriptors(e.to_string()))?;
        let v1alpha = builder().build_v1alpha().map_err(|e| MountError::Descriptors(e.to_string()))?;
        Ok(self.routes.clone().add_service(v1).add_service(v1alpha))
    }
}

/// Why services cannot be mounted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// No caller would be allowed to call the service.
    #[error("the method policy has no row for `{service}`")]
    Uncovered {
        /// The mounted service.
        service: &'static str,
    },
    /// The policy has a row for health or reflection, which are always open.
    #[error("health and reflection are open to anyone and have no row in a policy")]
    Policy(#[source] PolicyError),
    /// The method may have been renamed, or be misspelt: the row does not protect the method that was meant.
    #[error("the method policy names `{path}`: its service has no such method")]
    NoMethod {
        /// The row.
        path: String,
    },
    /// There is nothing to wait for.
    #[error("`{path}` has no patience to be set: it is not mounted, or is a stream")]
    Timeout {
        /// The row.
        path: String,
    },
    /// The descriptor sets cannot be read.
    #[error("a descriptor set cannot be read: {0}")]
    Descriptors(String),
}
