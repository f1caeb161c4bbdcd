//! Why a command failed: one exit code and one message that says what to do.

pub use service::error_chain;
use std::path::Path;

use rpc::{ErrorView, RetryAdvice, RpcReason};
use tonic::{Code, Status};

/// Prefix of errors that arise before a server is reached.
const NOT_REACHED: &str = "cannot reach ";
/// Error texts of a connection that the other side closed, or refused after the handshake: with TLS 1.3
/// a server looks at the client's certificate when the client is done already.
const CLOSED: [&str; 5] =
    ["connection closed", "connection reset", "Connection reset", "roken pipe", "received fatal alert"];
/// Explanation of what such an end may mean.
const REFUSED: &str = "the coordinator closed the connection: it may have rejected the client's certificate (issued by \
                       another authority, or expired), or it is shutting down";

/// Reason of a refusal for callers that presented no credentials.
const IDENTITY_REQUIRED: &str = RpcReason::IdentityRequired.as_str();

/// Command that gives an actor a role, as servers name it when they refuse a role that is too small.
const GIVES_A_ROLE: &str = "`mycora context update ";

/// Advice on refusals about sagas, by their reason.
const WAYS_OUT: [(RpcReason, &str); 13] = [
    (RpcReason::TenantPaused, "resume it with `mycora saga resume-tenant`"),
    (RpcReason::SagaExists, "`mycora saga show SAGA CORRELATION` shows it"),
    (RpcReason::PastPivot, "end it where it stands with `mycora saga kill`"),
    (RpcReason::SagaPaused, "resume it with `mycora saga resume`"),
    (RpcReason::SagaStuck, "continue it with `mycora saga retry-step`, `skip-step` or `complete`"),
    (RpcReason::SagaNotStuck, "`mycora saga explain` shows its state and the reason for it"),
    (
        RpcReason::SagaParked,
        "`mycora saga letters list SAGA CORRELATION` lists the dead letters that block it",
    ),
    (RpcReason::SagaNotRunning, "`mycora saga explain` shows its state and the reason for it"),
    (RpcReason::ManifestsRefused, "`mycora saga reload --dry-run` lists all problems"),
    (RpcReason::EffectNotUnknown, "`mycora saga effect show COMMAND` shows where it stands"),
    (RpcReason::EffectNotOpen, "`mycora saga effect show COMMAND` shows where it stands"),
    (RpcReason::EffectNotWaiting, "`mycora saga effect show COMMAND` shows where it stands"),
    (RpcReason::TokenRefused, "use the token that was issued for this call; no other is accepted"),
];

/// Why a command failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CliError {
    /// The coordinator did not do it, or something went wrong on this side.
    #[error("{0}")]
    Failed(String),
    /// The input is wrong, as typed or as written in a file.
    #[error("{0}")]
    Invalid(String),
    /// The coordinator cannot be reached, or this identity is not allowed.
    #[error("{0}")]
    Unreachable(String),
    /// The coordinator closed the connection before it answered: it may have rejected the client's certificate.
    #[error("{0}\n{REFUSED}")]
    Closed(String),
    /// The user pressed Ctrl-C.
    #[error("{0}")]
    Interrupted(String),
}

impl CliError {
    /// Names the certificate that may not be accepted.
    #[must_use]
    pub fn with_certificate(self, cert: Option<&Path>) -> Self {
        match (self, cert) {
            (Self::Closed(text), Some(cert)) => {
                let cert = cert.display();
                Self::Unreachable(format!(
                    "{text}\n{REFUSED}; `mycora pki show {cert}` shows the one that was used"
                ))
            }
            (other, _) => other,
        }
    }

    /// Returns the exit code that `--help` documents.
    #[must_use]
    pub const fn exit_code(&self) -> u8 {
        match self {
            Self::Failed(_) => 1,
            Self::Invalid(_) => 2,
            Self::Unreachable(_) | Self::Closed(_) => 3,
            Self::Interrupted(_) => 130,
        }
    }
}

/// A call that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiCallError {
    /// Error as the server reported it, or as it arose on the way.
    pub view: ErrorView,
    /// Advice on whether the same call may succeed.
    pub retry: RetryAdvice,
}

impl From<Status> for ApiCallError {
    fn from(status: Status) -> Self {
        Self { view: ErrorView::from(&status), retry: RetryAdvice::of(&status) }
    }
}

impl From<ApiCallError> for CliError {
    fn from(ApiCallError { view, .. }: ApiCallError) -> Self {
        let text = view.to_string();
        match view.code {
            Code::InvalidArgument | Code::OutOfRange => Self::Invalid(text),
            Code::Unavailable | Code::DeadlineExceeded if answered(&view) => Self::Unreachable(text),
            Code::Unavailable if CLOSED.iter().any(|closed| text.contains(closed)) => Self::Closed(text),
            Code::Unavailable | Code::DeadlineExceeded => {
                let hint = if text.contains("certificate") {
                    "the server's certificate was issued by another authority than the profile's, or it has \
                     expired; compare both with `mycora pki show`"
                } else {
                    "is it running? Start one with `mycora up`, or name another profile with --config or \
                     MYCORA_CONFIG"
                };
                Self::Unreachable(format!("{text}\n{hint}"))
            }
            // Credentials were presented and rejected.
            Code::Unauthenticated if !view.reason.is_empty() && view.reason != IDENTITY_REQUIRED => {
                Self::Unreachable(format!(
                    "{text}\nrun `mycora doctor`: it checks the profile's certificate and key, and which identity the coordinator \
                     derives from them"
                ))
            }
            Code::Unauthenticated => Self::Unreachable(format!(
                "{text}\nthe profile needs `cert` and `key`, which `mycora pki issue actor/1` makes, or `actor` and \
                 its `signing_key`"
            )),
            // Another certificate would not help.
            Code::PermissionDenied if way_out(&view).is_some() => Self::Unreachable(with_way_out(&view)),
            // The message already names the command that grants the role.
            Code::PermissionDenied if text.contains(GIVES_A_ROLE) => Self::Unreachable(text),
            Code::PermissionDenied => Self::Unreachable(format!(
                "{text}\nuse the certificate of an identity that may do this; `mycora pki show FILE` shows whose a \
                 certificate is"
            )),
            // The flow was found, and the caller has a role in its context: only the job is missing.
            Code::NotFound if view.metadata.contains_key("job") => {
                Self::Failed(format!("{text}\n`mycora flow jobs ID` lists the jobs of a flow"))
            }
            Code::NotFound => Self::Failed(format!(
                "{text}\nit does not exist, or this identity has no role in its context; `mycora context list` shows those \
                 where it has one"
            )),
            _ => Self::Failed(with_way_out(&view)),
        }
    }
}

/// Returns advice on a refusal, where there is any.
fn way_out(view: &ErrorView) -> Option<&'static str> {
    WAYS_OUT.iter().find(|(reason, _)| reason.as_str() == view.reason).map(|(_, way)| *way)
}

fn with_way_out(view: &ErrorView) -> String {
    way_out(view).map_or_else(|| view.to_string(), |way| format!("{view}\n{way}"))
}

/// Returns true for errors that a server sent. Errors of the connection to a server have details as well.
fn answered(view: &ErrorView) -> bool {
    !view.reason.is_empty() && !view.message.starts_with(NOT_REACHED) && view.code != Code::DeadlineExceeded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_codes_become_exit_codes() {
        for (status, exit_code) in [
            (Status::invalid_argument("x"), 2),
            (Status::unavailable("x"), 3),
            (Status::deadline_exceeded("x"), 3),
            (Status::unauthenticated("x"), 3),
            (Status::permission_denied("x"), 3),
            (Status::not_found("x"), 1),
            (Status::failed_precondition("x"), 1),
            (Status::internal("x"), 1),
        ] {
            let failure = CliError::from(ApiCallError::from(status));
            assert_eq!(failure.exit_code(), exit_code, "{failure:?}");
        }
    }

    #[test]
    fn an_insufficient_role_is_reported_with_the_command_that_raises_it() {
        let denied = model::context::AccessDenied::RoleTooSmall {
            actor: model::ActorId(3),
            context: model::ContextId(1),
            needed: model::Role::Executor,
        };
        let kind = rpc::ErrorKind::PermissionDenied;
        let sent = rpc::Error::new(kind, RpcReason::RoleInsufficient, denied.to_string());
        let failure = CliError::from(ApiCallError::from(Status::from(sent)));
        let message = "actor 3 needs the role executor in context 1: an admin of it gives that with `mycora context update 1 \
                    --add-executor 3`";
        assert_eq!(failure, CliError::Unreachable(message.into()), "and no other certificate is advised");
    }

    #[test]
    fn refusals_about_sagas_come_with_a_way_out() {
        let refused = |kind, reason| {
            CliError::from(ApiCallError::from(Status::from(rpc::Error::new(kind, reason, "no"))))
        };
        let paused = refused(rpc::ErrorKind::FailedPrecondition, RpcReason::SagaPaused);
        assert_eq!(paused, CliError::Failed("no\nresume it with `mycora saga resume`".into()));
        let token = refused(rpc::ErrorKind::PermissionDenied, RpcReason::TokenRefused);
        assert_eq!(token.exit_code(), 3);
        assert!(!token.to_string().contains("certificate"), "{token}");
    }

    #[test]
    fn a_server_that_answered_is_running() {
        let sent = rpc::Error::unavailable(rpc::RpcReason::StoreUnavailable, "the store does not answer");
        let failure = CliError::from(ApiCallError::from(Status::from(sent)));
        assert_eq!(failure, CliError::Unreachable("the store does not answer".into()));
        let sent =
            rpc::Error::unavailable(rpc::RpcReason::PeerUnavailable, "cannot reach h:1: Connection refused");
        let failure = CliError::from(ApiCallError::from(Status::from(sent)));
        assert!(failure.to_string().contains("mycora up"), "{failure}");
    }

    #[test]
    fn a_closed_connection_names_the_certificate() {
        let piped = Status::unavailable("cannot reach h:1: stream closed because of a broken pipe");
        assert!(matches!(CliError::from(ApiCallError::from(piped)), CliError::Closed(_)));
        let closed = Status::unavailable("cannot reach h:1: connection closed");
        let failure = CliError::from(ApiCallError::from(closed)).with_certificate(Some(Path::new("c.pem")));
        assert_eq!(failure.exit_code(), 3);
        assert!(failure.to_string().contains("`mycora pki show c.pem`"), "{failure}");
        assert!(!failure.to_string().contains("mycora up"), "{failure}");
    }

    #[test]
    fn a_wrong_certificate_is_distinguished_from_an_absent_server() {
        let failed = |text: &str| CliError::from(ApiCallError::from(Status::unavailable(text))).to_string();
        assert!(failed("cannot reach h:1: invalid peer certificate: UnknownIssuer").contains("pki show"));
        assert!(failed("cannot reach h:1: Connection refused").contains("mycora up"));
    }
}
