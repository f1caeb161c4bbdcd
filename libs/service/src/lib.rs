//! The life of a process.
//!
//! A service's `main` is `service::run::<scheduler::App>()`. Start: flags →
//! telemetry → bind → [`App::start`] → ready. Stop: not ready → tasks end →
//! drain until the deadline → exit; a second signal exits at once.
//!
//! The pieces also stand alone, so that one process can hold several services:
//! [`Shutdown`], [`Tasks`], [`Readiness`], [`Ops`] and [`telemetry::init`].

mod allocator;
mod app;
mod certificates;
mod collector;
mod command_trace;
mod crash;
mod file_lock;
mod file_polling;
pub mod flags;
mod grpc;
mod log_file;
mod notices;
mod open_files;
mod ops;
mod own_process;
mod panics;
mod readiness;
mod readiness_metrics;
mod sequencer;
mod shutdown;
mod tasks;
pub mod telemetry;
mod version;

pub use allocator::Allocator;
pub use app::{App, ServiceHost, run};
pub use certificates::CertificateMetrics;
pub use command_trace::CommandTrace;
pub use crash::crash_point;
pub use file_lock::FileLock;
pub use file_polling::{LOOK_INTERVAL, poll_files};
pub use flags::{
    ActorFlags, AddressFlags, AdminFlags, CommonFlags, MeshFlags, ServingFlags, TelemetryFlags, TlsFlags,
};
pub use log_file::{LOG_FILE_BYTES_MAX, LogFile};
pub use notices::{OperatorNotice, OperatorNotices};
pub use open_files::raise_open_files_limit;
pub use ops::{
    ADMIN_LIMITS, AdminHandlers, AdminMethods, AdminRoutes, AdminScope, BadOpsAddress, DrainError, InfoScope,
    Ops, OpsAccess, OpsAddress, OpsListener, ReloadError, ServiceDescription, ServiceLimits, TokenFileError,
    UnknownTenant,
};
pub use own_process::{close_memory, close_new_files, read_secret};
pub use panics::abort_on_panic;
pub use readiness::{Impairment, Readiness, ReadinessCondition};
pub use rpc::traces;
pub use sequencer::{Sequencer, Ticket};
pub use shutdown::{Shutdown, SighupAction};
pub use tasks::Tasks;
pub use version::version;

/// Any error that ends a service; its whole chain is logged once.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Error of configuration that cannot be used. A process that cannot start for it ends with status 2, as with wrong flags.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct BadConfig(pub Failure);

/// An error and its causes in one line.
#[must_use]
pub fn error_chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
}
