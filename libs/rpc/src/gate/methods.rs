//! Methods of a mount, and how long each may take.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use prometheus::HistogramVec;
use prost::Message as _;
use prost_types::FileDescriptorSet;

use crate::gate::call_timer::MethodDurations;

/// How long a call with one answer may take, in seconds, unless its method has a timeout of its own.
pub(crate) const CALL_SECS_MAX: u64 = 60;
const CALL_MAX: Duration = Duration::from_secs(CALL_SECS_MAX);
/// Label that calls of unknown methods share: their paths are texts of callers.
const UNKNOWN_METHOD: &str = "unknown";

/// Rows of methods, each `/package.Service/Method`, and how long their calls may take: those that wait for
/// something, or have much to do.
pub type MethodTimeoutTable<'a> = &'a [(&'a str, Duration)];

/// How a method is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RpcMethodKind {
    /// One answer, and soon.
    Quick,
    /// One answer, for which a caller may have to wait.
    Waiting(Duration),
    /// Messages in either direction, for as long as the caller likes.
    Stream,
}

impl RpcMethodKind {
    /// How long a call may take, whatever its caller asks for.
    pub(crate) const fn timeout(self) -> Option<Duration> {
        match self {
            Self::Quick => Some(CALL_MAX),
            Self::Waiting(patience) => Some(patience),
            Self::Stream => None,
        }
    }
}

/// A method that calls can be routed to.
#[derive(Debug)]
pub(crate) struct RpcMethod {
    kind: RpcMethodKind,
    /// Durations of its calls; absent for a stream.
    durations: Option<Arc<MethodDurations>>,
}

/// Result of looking a path up.
#[derive(Debug, Clone, Copy)]
pub(crate) enum RpcMethodLookup<'a> {
    Method(&'a RpcMethod),
    /// A mounted service without a descriptor: any method may exist, and is served as a stream, which
    /// assumes nothing.
    Undescribed,
    Nothing,
}

impl RpcMethodLookup<'_> {
    /// How the method is served; nothing where there is none.
    pub(crate) fn kind(self) -> Option<RpcMethodKind> {
        match self {
            Self::Method(method) => Some(method.kind),
            Self::Undescribed => Some(RpcMethodKind::Stream),
            Self::Nothing => None,
        }
    }
}

/// The methods of a mount.
#[derive(Debug)]
pub(crate) struct Methods {
    methods: HashMap<String, RpcMethod>,
    /// Services, and whether each has a descriptor.
    services: HashMap<&'static str, bool>,
    call_seconds: HistogramVec,
    /// Durations of calls that lead nowhere.
    unknown: Arc<MethodDurations>,
}

impl Methods {
    /// The methods of these services, as descriptor sets say. Durations of their calls go to `call_seconds`.
    pub(crate) fn read(
        services: impl Iterator<Item = &'static str>,
        sets: &[&[u8]],
        call_seconds: &HistogramVec,
    ) -> Result<Self, prost::DecodeError> {
        let mut methods = Self {
            methods: HashMap::new(),
            services: services.map(|name| (name, false)).collect(),
            call_seconds: call_seconds.clone(),
            unknown: Arc::new(MethodDurations::new(call_seconds, UNKNOWN_METHOD)),
        };
        for set in sets {
            methods.add(&FileDescriptorSet::decode(*set)?);
        }
        Ok(methods)
    }

    fn add(&mut self, set: &FileDescriptorSet) {
        for file in &set.file {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                let Some(described) = self.services.get_mut(name.as_str()) else { continue };
                *described = true;
                for method in &service.method {
                    let stream = method.client_streaming() || method.server_streaming();
                    let shape = if stream { RpcMethodKind::Stream } else { RpcMethodKind::Quick };
                    let path = format!("/{name}/{}", method.name());
                    let found = self.method(&path, shape);
                    self.methods.insert(path, found);
                }
            }
        }
    }

    fn method(&self, path: &str, kind: RpcMethodKind) -> RpcMethod {
        let label = path.strip_prefix('/').unwrap_or(path);
        let is_stream = kind == RpcMethodKind::Stream;
        let durations = (!is_stream).then(|| Arc::new(MethodDurations::new(&self.call_seconds, label)));
        RpcMethod { kind, durations }
    }

    /// Says how long calls of a method may take. Gives whether it is one with a single answer that is mounted, or
    /// may be.
    pub(crate) fn set_timeout(&mut self, path: &str, patience: Duration) -> bool {
        let may_wait = match self.find(path) {
            RpcMethodLookup::Nothing => false,
            RpcMethodLookup::Method(method) => method.kind != RpcMethodKind::Stream,
            RpcMethodLookup::Undescribed => true,
        };
        if may_wait {
            let method = self.method(path, RpcMethodKind::Waiting(patience));
            self.methods.insert(path.to_owned(), method);
        }
        may_wait
    }

    pub(crate) fn find(&self, path: &str) -> RpcMethodLookup<'_> {
        if let Some(method) = self.methods.get(path) {
            return RpcMethodLookup::Method(method);
        }
        match self.is_described(path) {
            Some(false) => RpcMethodLookup::Undescribed,
            Some(true) | None => RpcMethodLookup::Nothing,
        }
    }

    /// Where the duration of a call is counted; nothing for one that may be a stream.
    pub(crate) fn durations<'a>(&'a self, found: RpcMethodLookup<'a>) -> Option<&'a Arc<MethodDurations>> {
        match found {
            RpcMethodLookup::Method(method) => method.durations.as_ref(),
            RpcMethodLookup::Undescribed => None,
            RpcMethodLookup::Nothing => Some(&self.unknown),
        }
    }

    /// Returns true when the path's service is mounted and described, and has no such method.
    pub(crate) fn lacks(&self, path: &str) -> bool {
        self.is_described(path) == Some(true) && !self.methods.contains_key(path)
    }

    /// Returns true when the path's service has a descriptor; absent when the service is not mounted.
    fn is_described(&self, path: &str) -> Option<bool> {
        let (service, _) = path.strip_prefix('/')?.split_once('/')?;
        self.services.get(service).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Metrics;

    fn health() -> Methods {
        let (services, sets) =
            (["grpc.health.v1.Health", "test.Echo"], [tonic_health::pb::FILE_DESCRIPTOR_SET]);
        Methods::read(services.into_iter(), &sets, &Metrics::new().call_seconds).expect("a good set")
    }

    #[test]
    fn descriptors_define_how_methods_are_served() {
        let methods = health();
        for (path, want) in [
            ("/grpc.health.v1.Health/Check", Some(RpcMethodKind::Quick)),
            ("/grpc.health.v1.Health/Watch", Some(RpcMethodKind::Stream)),
            ("/grpc.health.v1.Health/Other", None),
            ("/grpc.health.v1.Health", None),
            ("/test.Echo/Anything", Some(RpcMethodKind::Stream)),
            ("/test.Other/Anything", None),
            ("", None),
        ] {
            let found = methods.find(path);
            assert_eq!(found.kind(), want, "{path}");
            let is_stream = want == Some(RpcMethodKind::Stream);
            assert_eq!(methods.durations(found).is_none(), is_stream, "streams have no duration: {path}");
            assert_eq!(methods.lacks(path), path == "/grpc.health.v1.Health/Other", "{path}");
        }
        assert!(matches!(methods.find("/test.Echo/Anything"), RpcMethodLookup::Undescribed));
    }

    #[test]
    fn patience_is_for_methods_with_one_answer() {
        let mut methods = health();
        let hour = Duration::from_secs(3600);
        assert!(methods.set_timeout("/grpc.health.v1.Health/Check", hour));
        let waiting = Some(RpcMethodKind::Waiting(hour));
        assert_eq!(methods.find("/grpc.health.v1.Health/Check").kind(), waiting);
        assert!(methods.set_timeout("/test.Echo/Wait", hour));
        assert!(!methods.set_timeout("/grpc.health.v1.Health/Watch", hour));
        assert!(!methods.set_timeout("/grpc.health.v1.Health/Other", hour));
        assert!(!methods.set_timeout("/test.Other/Wait", hour));
    }
}
