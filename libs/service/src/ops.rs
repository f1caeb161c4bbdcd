//! The ops port: plain HTTP for probes, scrapers and people.
//!
//! Probes are answered with yes or no, whoever asks: a job with network reaches a port of its machine as well. What a
//! process is and does is told to those who show a token, or reach the socket file.

mod access;
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

pub use self::access::{OpsAccess, TokenFileError};
pub use self::listener::{BadOpsAddress, OpsAddress, OpsListener};
use crate::notices::Notices;
use crate::readiness::Readiness;

/// Named limits and their values, as `/info` shows them. The name carries the unit.
pub type Limits = BTreeMap<&'static str, u64>;

/// What `/info` says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Info {
    /// The service.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Every limit that it enforces.
    pub limits: Limits,
}

/// The answer of `/info`.
#[derive(Serialize)]
struct InfoDocument<'a> {
    #[serde(flatten)]
    info: &'a Info,
    /// What operators should know, by what it is about.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    notices: BTreeMap<&'static str, String>,
}

/// What the ops port shows. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Ops {
    info: Arc<Info>,
    notices: Notices,
    readiness: Readiness,
    metrics: Registry,
    access: OpsAccess,
}

impl Ops {
    /// Shows these to whom `access` allows it; registers `mycora_build_info`.
    #[must_use]
    pub fn new(info: Info, readiness: Readiness, metrics: Registry, access: OpsAccess) -> Self {
        let labels = Opts::new("mycora_build_info", "Always 1; the labels say what is running")
            .const_label("service", info.name)
            .const_label("version", info.version);
        let build = IntGauge::with_opts(labels).expect("the name and the labels are well formed");
        build.set(1);
        // Several services of one process may share a registry; the first one is shown.
        let _ = metrics.register(Box::new(build));
        Self { info: Arc::new(info), notices: Notices::default(), readiness, metrics, access }
    }

    /// Shows these notices as well.
    #[must_use]
    pub fn with_notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// Answers `/livez`, `/readyz`, `/metrics` and `/info` until the future is dropped or `end` comes.
    ///
    /// # Errors
    /// When the listener fails.
    pub async fn serve(
        self,
        listener: OpsListener,
        end: impl Future<Output = ()> + Send + 'static,
    ) -> std::io::Result<()> {
        let router = Router::new()
            // That it answers is the answer.
            .route("/livez", get(|| std::future::ready("ok\n")))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .route("/info", get(info))
            .with_state(self);
        match listener {
            OpsListener::Tcp(listener) => axum::serve(listener, router).with_graceful_shutdown(end).await,
            OpsListener::Unix(listener) => axum::serve(listener, router).with_graceful_shutdown(end).await,
        }
    }
}

async fn readyz(State(ops): State<Ops>, headers: HeaderMap) -> (StatusCode, String) {
    let missing = ops.readiness.missing();
    if missing.is_empty() {
        return (StatusCode::OK, "ready\n".to_owned());
    }
    if !ops.access.allows(&headers).await {
        return (StatusCode::SERVICE_UNAVAILABLE, "not ready\n".to_owned());
    }
    let lines: String = missing.iter().map(|(name, why)| format!("{name}: {why}\n")).collect();
    (StatusCode::SERVICE_UNAVAILABLE, lines)
}

/// What is said to those who may not read it.
fn refused() -> Response {
    let text = "this needs the token of --ops-token-file, as `Authorization: Bearer TOKEN`\n";
    (StatusCode::UNAUTHORIZED, [(header::WWW_AUTHENTICATE, "Bearer")], text).into_response()
}

async fn metrics(State(ops): State<Ops>, headers: HeaderMap) -> Response {
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
    if !ops.access.allows(&headers).await {
        return refused();
    }
    let document = InfoDocument { info: &ops.info, notices: ops.notices.told() };
    let text = serde_json::to_string_pretty(&document).expect("texts and numbers are JSON");
    ([(header::CONTENT_TYPE, "application/json")], text + "\n").into_response()
}
