//! How we serve and call.
//!
//! A service adds its generated gRPC services and its [`MethodPolicy`] to a
//! [`Mount`]. The mount is then served twice: over mTLS by a [`Server`], and to
//! services of the same process through a [`LocalServer`]. Callers hold a
//! [`Channel`] and cannot tell the difference. In both cases the handler finds
//! out who calls with [`Caller::of`].

mod accept;
mod admission;
mod answer;
mod arrival;
mod authenticate;
mod caller;
mod channel;
mod deadline;
mod directory;
mod error;
mod error_view;
mod gate;
mod health;
mod introduction;
mod limits;
mod local;
mod member;
mod mesh;
mod methods;
mod metrics;
mod mount;
mod policy;
mod reason;
mod revocable;
mod server;
mod shed;
mod tls;

pub use accept::TlsMode;
pub use caller::Caller;
pub use channel::{Channel, ChannelError};
pub use deadline::Deadline;
pub use directory::{Directory, KnownActor, Membership};
pub use error::{ERROR_DOMAIN, Error, ErrorKind, passed_on};
pub use error_view::{ErrorView, Retry, code_name};
pub use health::Health;
pub use identity::TrustDomain;
pub use introduction::{IntroductionError, server_certificate};
pub use limits::LIMITS;
pub use local::{LocalHandle, LocalServer};
pub use member::while_member;
pub use mesh::{MeshKind, MeshTrust};
pub use methods::PatienceTable;
pub use metrics::Metrics;
pub use mount::{Mount, MountBuilder, MountError};
pub use policy::{Allow, MethodPolicy, PolicyError, PolicyTable};
pub use reason::Reason;
pub use server::{Drained, Server};
pub use shed::CallsMax;
pub use tls::{CertificateEnd, TlsError, TlsFiles};
