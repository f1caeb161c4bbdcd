//! Methods of a mount, and how long each may take.

use std::collections::HashMap;
use std::time::Duration;

use prost::Message as _;
use prost_types::FileDescriptorSet;

/// How long a call with one answer may take, in seconds, unless its method has a timeout of its own.
pub(crate) const CALL_SECS_MAX: u64 = 60;
const CALL_MAX: Duration = Duration::from_secs(CALL_SECS_MAX);

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

/// Result of looking a path up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RpcMethodLookup {
    Method(RpcMethodKind),
    /// A mounted service without a descriptor: any method may exist, and is served as a stream, which
    /// assumes nothing.
    Undescribed,
    Nothing,
}

/// The methods of a mount.
#[derive(Debug, Default)]
pub(crate) struct Methods {
    shapes: HashMap<String, RpcMethodKind>,
    /// Services, and whether each has a descriptor.
    services: HashMap<&'static str, bool>,
}

impl Methods {
    /// The methods of these services, as descriptor sets say.
    pub(crate) fn read(
        services: impl Iterator<Item = &'static str>,
        sets: &[&[u8]],
    ) -> Result<Self, prost::DecodeError> {
        let mut methods =
            Self { shapes: HashMap::new(), services: services.map(|name| (name, false)).collect() };
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
                    self.shapes.insert(format!("/{name}/{}", method.name()), shape);
                }
            }
        }
    }

    /// Says how long calls of a method may take. Gives whether it is one with a single answer that is mounted, or
    /// may be.
    pub(crate) fn set_timeout(&mut self, path: &str, patience: Duration) -> bool {
        match self.find(path) {
            RpcMethodLookup::Nothing | RpcMethodLookup::Method(RpcMethodKind::Stream) => false,
            RpcMethodLookup::Undescribed | RpcMethodLookup::Method(_) => {
                self.shapes.insert(path.to_owned(), RpcMethodKind::Waiting(patience));
                true
            }
        }
    }

    pub(crate) fn find(&self, path: &str) -> RpcMethodLookup {
        if let Some(shape) = self.shapes.get(path) {
            return RpcMethodLookup::Method(*shape);
        }
        match self.is_described(path) {
            Some(false) => RpcMethodLookup::Undescribed,
            Some(true) | None => RpcMethodLookup::Nothing,
        }
    }

    /// Returns true when the path's service is mounted and described, and has no such method.
    pub(crate) fn lacks(&self, path: &str) -> bool {
        self.is_described(path) == Some(true) && !self.shapes.contains_key(path)
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

    fn health() -> Methods {
        let services = ["grpc.health.v1.Health", "test.Echo"];
        Methods::read(services.into_iter(), &[tonic_health::pb::FILE_DESCRIPTOR_SET]).expect("a good set")
    }

    #[test]
    fn descriptors_define_how_methods_are_served() {
        let methods = health();
        for (path, want) in [
            ("/grpc.health.v1.Health/Check", RpcMethodLookup::Method(RpcMethodKind::Quick)),
            ("/grpc.health.v1.Health/Watch", RpcMethodLookup::Method(RpcMethodKind::Stream)),
            ("/grpc.health.v1.Health/Other", RpcMethodLookup::Nothing),
            ("/grpc.health.v1.Health", RpcMethodLookup::Nothing),
            ("/test.Echo/Anything", RpcMethodLookup::Undescribed),
            ("/test.Other/Anything", RpcMethodLookup::Nothing),
            ("", RpcMethodLookup::Nothing),
        ] {
            assert_eq!(methods.find(path), want, "{path}");
            assert_eq!(methods.lacks(path), path == "/grpc.health.v1.Health/Other", "{path}");
        }
    }

    #[test]
    fn patience_is_for_methods_with_one_answer() {
        let mut methods = health();
        let hour = Duration::from_secs(3600);
        assert!(methods.set_timeout("/grpc.health.v1.Health/Check", hour));
        assert_eq!(
            methods.find("/grpc.health.v1.Health/Check"),
            RpcMethodLookup::Method(RpcMethodKind::Waiting(hour))
        );
        assert!(methods.set_timeout("/test.Echo/Wait", hour));
        assert!(!methods.set_timeout("/grpc.health.v1.Health/Watch", hour));
        assert!(!methods.set_timeout("/grpc.health.v1.Health/Other", hour));
        assert!(!methods.set_timeout("/test.Other/Wait", hour));
    }
}
