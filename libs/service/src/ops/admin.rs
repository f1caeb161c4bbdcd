//! Routes of the ops port that make a process do something: `POST /admin/drain` and `POST /admin/reload`.
//!
//! An optional part, which a service switches on ([`crate::App::ADMIN`], or [`crate::Ops::with_admin`]) and answers by
//! [`AdminHandlers`]. The port has no identity: a caller that shows the secret of `--admin-secret-file` is believed to be the API
//! gateway in front of the process, also when it names its caller's tenant by `x-tenant-id`. All others are refused.

mod refusal;
mod routes;

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::http::HeaderMap;
use futures_util::future::BoxFuture;
use model::TenantId;
use serde_json::Value;
use tokio::sync::Semaphore;

pub(super) use self::refusal::AdminRefusal;
pub(super) use self::routes::router;
use super::access::{TokenFile, TokenFileError};

/// Header by which the API gateway says for which tenant it asks.
pub(super) const TENANT_HEADER: &str = "x-tenant-id";
/// Longest body of a request: it carries nothing.
const BODY_BYTES_MAX: usize = 1024;
/// How long a body may take to come.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an answer of the service may take; the work goes on beyond it.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);
/// How many drains, and how many reloads, may be under way.
const IN_FLIGHT_MAX: usize = 4;

/// Limits of the admin routes, for `/info` of a process that has them.
pub const ADMIN_LIMITS: [(&str, u64); 4] = [
    ("admin_body_bytes_max", BODY_BYTES_MAX as u64),
    ("admin_body_secs_max", BODY_TIMEOUT.as_secs()),
    ("admin_answer_secs_max", ANSWER_TIMEOUT.as_secs()),
    ("admin_calls_in_flight_max", IN_FLIGHT_MAX as u64),
];

/// The gRPC methods that do what the admin routes do. A refusal for want of the secret names them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AdminMethods {
    /// In the place of `/admin/drain`, as in `mycora.v1.SagaService/Drain`.
    pub drain: &'static str,
    /// In the place of `/admin/reload`.
    pub reload: &'static str,
}

/// Part of a process that a drain or a reload is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AdminScope {
    /// All of it.
    Process,
    /// One tenant's part of it. The tenant's name is well formed; whether there is such a tenant was not checked.
    Tenant(TenantId),
}

/// Tenants that `/info` may name to its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InfoScope {
    /// None: the secret was not shown.
    NoTenant,
    /// All of them: the secret was shown, and no tenant was named.
    AllTenants,
    /// One tenant and no other. The tenant's name is well formed; whether there is such a tenant was not checked.
    Tenant(TenantId),
}

/// Error of a tenant that does not exist, or that is not of this process. Callers get the same answer for both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there is no such tenant")]
pub struct UnknownTenant;

/// Reason for which a drain did not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DrainError {
    /// There is no such tenant, or it is not of this process.
    #[error(transparent)]
    UnknownTenant(#[from] UnknownTenant),
    /// Something that it needs is not there now, as the text says.
    #[error("{0}")]
    Unavailable(String),
}

/// Reason for which nothing was reloaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReloadError {
    /// There is no such tenant, or it is not of this process.
    #[error(transparent)]
    UnknownTenant(#[from] UnknownTenant),
    /// Files that were read cannot come into force: every problem, one a line, with file, line and column.
    #[error("{0}")]
    Problems(String),
    /// Something that it needs is not there now, as the text says.
    #[error("{0}")]
    Unavailable(String),
}

/// Work of a service behind the admin routes.
///
/// A drain or a reload that has begun is never dropped: it goes on when its caller is gone, or got a timeout as the answer.
/// Several can be under way at once.
pub trait AdminHandlers: Send + Sync + 'static {
    /// Begins a drain and gives what is in flight, without waiting for its end. The answer still reaches the caller when the
    /// shutdown begins meanwhile.
    ///
    /// # Errors
    /// [`DrainError`], and then nothing has begun.
    fn drain(&self, scope: AdminScope) -> impl Future<Output = Result<Value, DrainError>> + Send;

    /// Reads everything again, checks everything, brings it into force as one, and gives what has changed.
    ///
    /// # Errors
    /// [`ReloadError`], and then nothing has changed.
    fn reload(&self, scope: AdminScope) -> impl Future<Output = Result<Value, ReloadError>> + Send;

    /// Gives what `/info` shows under `details`; it names no other tenants than the scope allows. Null shows nothing.
    ///
    /// # Errors
    /// [`UnknownTenant`], of a scope that names one.
    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant>;

    /// Says why work waits although the process is ready: what each is about, and one line. `/health` shows it. Names no other
    /// tenants than the scope allows.
    ///
    /// # Errors
    /// [`UnknownTenant`], of a scope that names one.
    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant> {
        let _ = scope;
        Ok(Vec::new())
    }
}

/// The admin routes of one process. Clones are the same.
#[derive(Clone)]
pub struct AdminRoutes(Arc<AdminRoutesInner>);

struct AdminRoutesInner {
    methods: AdminMethods,
    secret: Option<TokenFile>,
    handlers: OnceLock<Arc<dyn DynAdminHandlers>>,
    drains: Arc<Semaphore>,
    reloads: Arc<Semaphore>,
}

impl AdminRoutes {
    /// Routes for those who show the secret in this file; without a file they are closed. Until there are handlers they answer
    /// that the process is starting.
    ///
    /// # Errors
    /// When the file cannot be used as it is now. It is read again for each request, so that the secret can be exchanged.
    pub fn new(methods: AdminMethods, secret_file: Option<PathBuf>) -> Result<Self, TokenFileError> {
        let secret = secret_file.map(TokenFile::of_admin);
        secret.as_ref().map_or(Ok(()), TokenFile::check)?;
        let permits = || Arc::new(Semaphore::new(IN_FLIGHT_MAX));
        let (drains, reloads) = (permits(), permits());
        Ok(Self(Arc::new(AdminRoutesInner { methods, secret, handlers: OnceLock::new(), drains, reloads })))
    }

    /// Has these handlers answer from now on. A process has one set of them: later ones are not taken.
    pub fn handle_with(&self, handlers: impl AdminHandlers) {
        if self.0.handlers.set(Arc::new(handlers)).is_err() {
            tracing::error!("the admin routes have handlers already; these are not used");
        }
    }

    /// Finds for what a request may ask; none for one that does not show the secret.
    ///
    /// # Errors
    /// When it names a tenant without the secret, or one that cannot be.
    pub(super) async fn authorized(&self, headers: &HeaderMap) -> Result<Option<AdminScope>, AdminRefusal> {
        let shown = match &self.0.secret {
            Some(secret) => secret.is_shown(headers).await,
            None => false,
        };
        let mut named = headers.get_all(TENANT_HEADER).iter();
        match (shown, named.next(), named.next()) {
            (false, None, _) => Ok(None),
            (false, Some(_), _) => Err(AdminRefusal::TenantWithoutSecret),
            (true, None, _) => Ok(Some(AdminScope::Process)),
            (true, Some(_), Some(_)) => Err(AdminRefusal::TwoTenants),
            (true, Some(text), None) => {
                let tenant = text.to_str().map_err(|_| AdminRefusal::TenantIsNoText)?.parse()?;
                Ok(Some(AdminScope::Tenant(tenant)))
            }
        }
    }

    /// Gives what `/info` shows of the service; nothing of a service that has not started.
    ///
    /// # Errors
    /// When there is no such tenant, or that is not known yet.
    pub(super) fn details(&self, scope: &InfoScope) -> Result<Value, AdminRefusal> {
        match (self.0.handlers.get(), scope) {
            (Some(handlers), _) => Ok(handlers.info(scope)?),
            (None, InfoScope::Tenant(_)) => Err(AdminRefusal::Starting),
            (None, InfoScope::NoTenant | InfoScope::AllTenants) => Ok(Value::Null),
        }
    }

    /// Gives why work of the service waits; nothing of a service that has not started.
    ///
    /// # Errors
    /// When there is no such tenant, or that is not known yet.
    pub(super) fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, AdminRefusal> {
        match (self.0.handlers.get(), scope) {
            (Some(handlers), _) => Ok(handlers.waits(scope)?),
            (None, InfoScope::Tenant(_)) => Err(AdminRefusal::Starting),
            (None, InfoScope::NoTenant | InfoScope::AllTenants) => Ok(Vec::new()),
        }
    }
}

impl fmt::Debug for AdminRoutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdminRoutes").field("secret", &self.0.secret).finish_non_exhaustive()
    }
}

impl fmt::Display for AdminScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process => f.write_str("the process"),
            Self::Tenant(tenant) => write!(f, "tenant {tenant}"),
        }
    }
}

/// [`AdminHandlers`] of any type.
trait DynAdminHandlers: Send + Sync {
    fn drain(&self, scope: AdminScope) -> BoxFuture<'_, Result<Value, DrainError>>;
    fn reload(&self, scope: AdminScope) -> BoxFuture<'_, Result<Value, ReloadError>>;
    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant>;
    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant>;
}

impl<H: AdminHandlers> DynAdminHandlers for H {
    fn drain(&self, scope: AdminScope) -> BoxFuture<'_, Result<Value, DrainError>> {
        Box::pin(AdminHandlers::drain(self, scope))
    }

    fn reload(&self, scope: AdminScope) -> BoxFuture<'_, Result<Value, ReloadError>> {
        Box::pin(AdminHandlers::reload(self, scope))
    }

    fn info(&self, scope: &InfoScope) -> Result<Value, UnknownTenant> {
        AdminHandlers::info(self, scope)
    }

    fn waits(&self, scope: &InfoScope) -> Result<Vec<(String, String)>, UnknownTenant> {
        AdminHandlers::waits(self, scope)
    }
}
