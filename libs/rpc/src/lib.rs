//! How we serve and call.
//!
//! A service adds its generated gRPC services and its [`MethodPolicy`] to a
//! [`Mount`]. The mount is then served twice: over mTLS by a [`Server`], and to
//! services of the same process through a [`LocalServer`]. Callers hold a
//! [`Channel`] and cannot tell the difference. In both cases the handler finds
//! out who calls with [`Caller::of`].

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

pub use caller::Caller;
pub use caller::directory::{Directory, Hearing, KnownActor, Membership, Subject};
pub use caller::mesh::{MeshKind, MeshTrust};
pub use channel::health::follow_health;
pub use channel::introduction::{IntroductionError, server_certificate};
pub use channel::local::{LocalHandle, LocalServer};
pub use channel::{AddressCheck, Channel, ChannelError, RECONNECT_MAX};
pub use error::view::{ErrorView, Retry, code_name};
pub use error::{ERROR_DOMAIN, Error, ErrorKind, Reason, passed_on};
pub use gate::budget::MessageBytesMax;
pub use gate::deadline::Deadline;
pub use gate::methods::PatienceTable;
pub use gate::policy::{Allow, MethodPolicy, PolicyError, PolicyTable};
pub use gate::share::CallRate;
pub use gate::shed::CallsMax;
pub use gate::turns::leaves_jobs;
pub use identity::TrustDomain;
pub use limits::LIMITS;
pub use metrics::Metrics;
pub use pages::Page;
pub use rate::Rates;
pub use server::accept::TlsMode;
pub use server::health::Health;
pub use server::mount::{Mount, MountBuilder, MountError};
pub use server::{Drained, Server};
pub use stream::answers::{ANSWERS_MAX, AnswerSender, WatchEnded};
pub use stream::driven::driven;
pub use stream::kept::{KeptStream, Resumable, first_of};
pub use stream::member::{answer_while_member, while_member};
pub use stream::patience::Patience;
pub use stream::pulse::Pulse;
pub use stream::served::served;
pub use tls::{CertificateEnd, TlsError, TlsFiles};
