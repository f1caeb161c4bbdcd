//! Refusals of the admin routes, and their status codes.

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use model::SagaNameError;

use super::{
    ANSWER_TIMEOUT, BODY_BYTES_MAX, BODY_TIMEOUT, DrainError, ReloadError, TENANT_HEADER, UnknownTenant,
};

/// Reason for which a request is refused. The text is for the caller.
#[derive(Debug, thiserror::Error)]
pub(in crate::ops) enum AdminRefusal {
    /// The secret is not shown, or there is none.
    #[error(
        "{path} needs the secret of --admin-secret-file, as `Authorization: Bearer SECRET`, and is closed without that flag; \
         with a certificate or a token of its own a caller calls {method} over gRPC"
    )]
    Secret {
        /// Route that was called.
        path: &'static str,
        /// gRPC method that can be called instead.
        method: &'static str,
    },
    /// The tenant header without the secret: anybody can write a header.
    #[error(
        "{TENANT_HEADER} is believed only beside the secret of --admin-secret-file, as `Authorization: Bearer SECRET`"
    )]
    TenantWithoutSecret,
    /// Two tenants are named, and which one is meant is unknown.
    #[error("{TENANT_HEADER} is given more than once")]
    TwoTenants,
    /// The header has bytes that no name has.
    #[error("{TENANT_HEADER} is no text")]
    TenantIsNoText,
    /// The header is no name of a tenant.
    #[error("{TENANT_HEADER}: {0}")]
    Tenant(#[from] SagaNameError),
    /// No such tenant, or none that may be seen: the answer is the same.
    #[error(transparent)]
    UnknownTenant(#[from] UnknownTenant),
    /// Metrics of one tenant alone there are not.
    #[error("/metrics covers the whole process: call it without {TENANT_HEADER}")]
    MetricsOfTenant,
    /// The body is longer than any valid one.
    #[error("the body is longer than {BODY_BYTES_MAX} bytes; it has to be empty, or {{}}")]
    LongBody,
    /// The body did not come.
    #[error("the body did not come within {} s", BODY_TIMEOUT.as_secs())]
    SlowBody,
    /// The body ended early.
    #[error("the body could not be read")]
    BrokenBody,
    /// The body has content, which would be ignored.
    #[error("the body has to be empty, or {{}}; name a tenant by {TENANT_HEADER}")]
    Body,
    /// The service has not started.
    #[error("the process is starting")]
    Starting,
    /// Enough of them are under way.
    #[error("too many of these are under way; try again later")]
    Busy,
    /// The service takes its time.
    #[error("there is no answer after {} s; the work goes on", ANSWER_TIMEOUT.as_secs())]
    SlowAnswer,
    /// A bug.
    #[error("it failed; the log says why")]
    Failed,
    /// Files that were read cannot come into force.
    #[error("{0}")]
    Problems(String),
    /// Something that the service needs is not there now.
    #[error("{0}")]
    Unavailable(String),
}

impl AdminRefusal {
    const fn status(&self) -> StatusCode {
        match self {
            Self::Secret { .. } => StatusCode::FORBIDDEN,
            Self::TenantWithoutSecret
            | Self::TwoTenants
            | Self::TenantIsNoText
            | Self::Tenant(_)
            | Self::MetricsOfTenant
            | Self::BrokenBody
            | Self::Body => StatusCode::BAD_REQUEST,
            Self::UnknownTenant(_) => StatusCode::NOT_FOUND,
            Self::LongBody => StatusCode::PAYLOAD_TOO_LARGE,
            Self::SlowBody => StatusCode::REQUEST_TIMEOUT,
            Self::Problems(_) => StatusCode::CONFLICT,
            Self::Busy => StatusCode::TOO_MANY_REQUESTS,
            Self::Failed => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Starting | Self::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
            Self::SlowAnswer => StatusCode::GATEWAY_TIMEOUT,
        }
    }
}

impl IntoResponse for AdminRefusal {
    fn into_response(self) -> Response {
        let text = self.to_string();
        let mut response = (self.status(), text.trim_end().to_owned() + "\n").into_response();
        if matches!(self, Self::Starting | Self::Busy) {
            response.headers_mut().insert(header::RETRY_AFTER, header::HeaderValue::from_static("1"));
        }
        response
    }
}

impl From<DrainError> for AdminRefusal {
    fn from(error: DrainError) -> Self {
        match error {
            DrainError::UnknownTenant(unknown) => Self::UnknownTenant(unknown),
            DrainError::Unavailable(why) => Self::Unavailable(why),
        }
    }
}

impl From<ReloadError> for AdminRefusal {
    fn from(error: ReloadError) -> Self {
        match error {
            ReloadError::UnknownTenant(unknown) => Self::UnknownTenant(unknown),
            ReloadError::Problems(all) => Self::Problems(all),
            ReloadError::Unavailable(why) => Self::Unavailable(why),
        }
    }
}
