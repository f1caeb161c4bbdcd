//! Serving and calling gRPC, as every service of the suite does.
//!
//! A service adds its generated gRPC services and its [`MethodPolicy`] to a
//! [`Mount`]. The mount is then served twice: over mTLS by a [`Server`], and to
//! services of the same process through a [`LocalServer`]. Callers hold a
//! [`Channel`] and cannot tell the difference. In both cases the handler gets
//! its caller with [`Caller::of`].

mod caller;
mod channel;
mod error;
mod gate;
mod limits;
mod lock;
mod metrics;
mod pages;
mod rate;
mod server;
mod stream;
mod tls;
pub mod traces;

pub use caller::Caller;
pub use caller::directory::{Directory, DirectoryFeedState, DirectorySubject, KnownActor, Membership};
pub use caller::mesh::{MeshKind, MeshTrust};
pub use channel::certificate_probe::{CertificateProbeError, server_certificate};
pub use channel::health::follow_health;
pub use channel::local::{LocalHandle, LocalServer};
pub use channel::{AddressCheck, Channel, ChannelError, RECONNECT_MAX};
pub use error::view::{ErrorView, RetryAdvice, code_name};
pub use error::{ERROR_DOMAIN, Error, ErrorKind, RpcReason, forward_status};
pub use gate::actor_limits::CallRate;
pub use gate::budget::MessageBytesMax;
pub use gate::deadline::{Deadline, current_trace};
pub use gate::fair_share::leaves_jobs;
pub use gate::load_shedder::CallsMax;
pub use gate::methods::MethodTimeoutTable;
pub use gate::policy::{Allow, MethodPolicy, PolicyError, PolicyTable};
pub use identity::TrustDomain;
pub use limits::LIMITS;
pub use metrics::Metrics;
pub use pages::PageRequest;
pub use rate::Rates;
pub use server::accept::TlsMode;
pub use server::health::Health;
pub use server::mount::{Mount, MountBuilder, MountError};
pub use server::{DrainOutcome, Server};
pub use stream::answers::{ANSWERS_MAX, AnswerSender, AnswerStream, WatchAnswer, WatchEnded};
pub use stream::bidirectional::bidirectional;
pub use stream::heartbeat::StreamHeartbeat;
pub use stream::member::{answer_while_member, while_member};
pub use stream::producer_stream::producer_stream;
pub use stream::reconnect_backoff::StreamReconnectBackoff;
pub use stream::resuming_stream::{Resumable, ResumingStream, first_answer};
pub use tls::{CertificateExpiry, TlsError, TlsFiles};
