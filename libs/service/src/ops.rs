//! The ops port: plain HTTP for probes, scrapers and people.
//!
//! Probes are answered with yes or no, for any caller: a job with network reaches a port of its machine as well. The details of
//! a process are only for callers that show a token, or reach the socket file. Some services also take commands here:
//! [`AdminRoutes`].

mod access;
mod admin;
mod listener;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use prometheus::{Encoder as _, IntGauge, Opts, Registry, TextEncoder};
use serde::Serialize;
use serde_json::Value;

pub use self::access::{OpsAccess, TokenFileError};
pub use self::admin::{
    ADMIN_LIMITS, AdminHandlers, AdminMethods, AdminRoutes, AdminScope, DrainError, InfoScope, ReloadError,
    UnknownTenant,
};
use self::admin::{AdminRefusal, TENANT_HEADER};
pub use self::listener::{BadOpsAddress, OpsAddress, OpsListener};
use crate::notices::OperatorNotices;
use crate::readiness::Readiness;
use crate::readiness_metrics::ReadinessMetrics;

/// Named limits and their values, as `/info` shows them. The name carries the unit.
pub type ServiceLimits = BTreeMap<&'static str, u64>;

/// Description of the service in `/info`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceDescription {
    /// The service.
    pub name: &'static str,
    /// Version of the service.
    pub version: &'static str,
    /// Every limit that it enforces.
    pub limits: ServiceLimits,
}

/// The answer of `/info`.
#[derive(Serialize)]
struct InfoDocument<'a> {
    #[serde(flatten)]
    info: &'a ServiceDescription,
    /// Notices to operators, by subject.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    notices: BTreeMap<&'static str, String>,
    /// Details of the service that this caller may see.
    #[serde(skip_serializing_if = "Value::is_null")]
    details: Value,
}

/// State that the ops port shows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Ops {
    info: Arc<ServiceDescription>,
    notices: OperatorNotices,
    readiness: Readiness,
    metrics: Registry,
    access: OpsAccess,
    admin: Option<AdminRoutes>,
}

impl Ops {
    /// Shows these to whom `access` allows it; registers `mycora_build_info`, `mycora_ready` and `mycora_healthy`.
    #[must_use]
    pub fn new(info: ServiceDescription, readiness: Readiness, metrics: Registry, access: OpsAccess) -> Self {
        let labels = Opts::new("mycora_build_info", "Always 1; the labels say what is running")
            .const_label("service", info.name)
            .const_label("version", info.version);
        let build = IntGauge::with_opts(labels).expect("the name and the labels are well formed");
        build.set(1);
        // Several services of one process may share a registry; the first one is shown.
        let _ = metrics.register(Box::new(build));
        let _ = metrics.register(Box::new(ReadinessMetrics::of(readiness.clone())));
        Self {
            info: Arc::new(info),
            notices: OperatorNotices::default(),
            readiness,
            metrics,
            access,
            admin: None,
        }
    }

    /// Shows these notices as well.
    #[must_use]
    pub fn with_notices(self, notices: OperatorNotices) -> Self {
        Self { notices, ..self }
    }

    /// Answers `/admin/drain` and `/admin/reload` as well, and shows the service's own details in `/info`. Without these routes
    /// they are as unknown as any other path.
    #[must_use]
    pub fn with_admin(self, routes: AdminRoutes) -> Self {
        Self { admin: Some(routes), ..self }
    }

    /// Answers `/livez`, `/readyz`, `/ready`, `/health`, `/metrics`, `/info` and what was added, until the future is dropped or
    /// `end` comes. Requests that came before `end` are answered.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self,
        listener: OpsListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let admin = self.admin.clone().map_or_else(Router::new, admin::router);
        let router = Router::new()
            // That it answers is the answer.
            .route("/livez", get(|| std::future::ready("ok\n")))
            .route("/readyz", get(ready))
            .route("/ready", get(ready))
            .route("/health", get(health))
            .route("/metrics", get(metrics))
            .route("/info", get(info))
            .with_state(self)
            .merge(admin);
        match listener {
            OpsListener::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(end).await,
            OpsListener::Unix(listener) => axum::serve(listener, router).with_graceful_shutdown(end).await,
        }
    }
}

async fn ready(State(ops): State<Ops>, headers: HeaderMap) -> (StatusCode, String) {
    ops.readiness_answer(&headers).await
}

/// Answers people and dashboards; who ends processes that do not answer asks `/livez`.
async fn health(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    ops.health_answer(&headers).await.unwrap_or_else(AdminRefusal::into_response)
}

impl Ops {
    /// Says yes or no; and one line for each thing that is missing, to those who may read it.
    async fn readiness_answer(&self, headers: &HeaderMap) -> (StatusCode, String) {
        let missing = self.readiness.missing();
        if missing.is_empty() {
            return (StatusCode::OK, "ready\n".to_owned());
        }
        if !self.access.allows(headers).await {
            return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned());
        }
        (StatusCode::SERVICE_UNAVAILABLE, missing.iter().map(line).collect())
    }

    /// Answers yes or no to any caller; to those with access also what is wrong, and why work waits though nothing is wrong. The gateway
    /// that names a tenant gets only the latter, of that tenant alone.
    async fn health_answer(&self, headers: &HeaderMap) -> Result<Response, AdminRefusal> {
        let scope = self.scope(headers).await?;
        let troubles = self.readiness.problems();
        let (status, summary) = match troubles.is_empty() {
            true => (StatusCode::OK, "healthy\n"),
            false => (StatusCode::SERVICE_UNAVAILABLE, "not healthy\n"),
        };
        let Some(scope) = scope else { return Ok((status, summary).into_response()) };
        let waits = self.admin.as_ref().map_or(Ok(Vec::new()), |admin| admin.waits(&scope))?;
        let troubles: String = match scope {
            InfoScope::NoTenant | InfoScope::AllTenants => troubles.iter().map(line).collect(),
            // A problem may concern another tenant.
            InfoScope::Tenant(_) => String::new(),
        };
        let first = if troubles.is_empty() { summary.to_owned() } else { troubles };
        Ok((status, first + &waits.iter().map(line).collect::<String>()).into_response())
    }

    /// Finds what a reader may see; nothing of one who shows neither the token nor the secret.
    async fn scope(&self, headers: &HeaderMap) -> Result<Option<InfoScope>, AdminRefusal> {
        let authorized = match &self.admin {
            Some(admin) => admin.authorized(headers).await?,
            None => None,
        };
        Ok(match authorized {
            Some(AdminScope::Process) => Some(InfoScope::AllTenants),
            Some(AdminScope::Tenant(tenant)) => Some(InfoScope::Tenant(tenant)),
            None => self.access.allows(headers).await.then_some(InfoScope::NoTenant),
        })
    }
}

/// A reason may be a foreign text of several lines.
fn line((name, why): &(String, String)) -> String {
    format!("{name}: {}\n", why.split_whitespace().collect::<Vec<_>>().join(" "))
}

/// Returns the answer to those who may not read.
fn refused() -> Response {
    let text = "this needs the token of --ops-token-file, as `Authorization: Bearer TOKEN`\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response()
}

async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    // All tenants in the place of the one that was named would be too much.
    if ops.admin.is_some() && headers.contains_key(TENANT_HEADER) {
        return AdminRefusal::MetricsOfTenant.into_response();
    }
    if !ops.access.allows(&headers).await {
        return refused();
    }
    let encoder = TextEncoder::new();
    let mut text = Vec::new();
    match encoder.encode(&ops.metrics.gather(), &mut text) {
        Ok(()) => {
            let kind = [(header::CONTENT_TYPE, encoder.format_type().to_owned())];
            (StatusCode::OK, kind, text).into_response()
        }
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

async fn info(State(ops): State<Ops>, headers: HeaderMap) -> Response {
    ops.info_answer(&headers).await.unwrap_or_else(AdminRefusal::into_response)
}

impl Ops {
    async fn info_answer(&self, headers: &HeaderMap) -> Result<Response, AdminRefusal> {
        let Some(scope) = self.scope(headers).await? else { return Ok(refused()) };
        let notices = match scope {
            // They are for operators, and may name other tenants.
            InfoScope::Tenant(_) => BTreeMap::new(),
            InfoScope::NoTenant | InfoScope::AllTenants => self.notices.current(),
        };
        let details = self.admin.as_ref().map_or(Ok(Value::Null), |admin| admin.details(&scope))?;
        let document = InfoDocument { info: &self.info, notices, details };
        let text = serde_json::to_string_pretty(&document).expect("texts and numbers are JSON");
        Ok(([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response())
    }
}
