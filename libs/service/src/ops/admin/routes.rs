//! The HTTP side of the admin routes: who asks, for what, and within which bounds.

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::StreamExt as _;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::{
    ANSWER_TIMEOUT, AdminRefusal, AdminRoutes, AdminScope, BODY_BYTES_MAX, BODY_TIMEOUT, DynAdminHandlers,
};

const DRAIN: &str = "/admin/drain";
const RELOAD: &str = "/admin/reload";

/// The routes. Other methods than POST are answered with 405 and `Allow`, for any caller.
pub(in crate::ops) fn router(routes: AdminRoutes) -> Router {
    Router::new().route(DRAIN, post(drain)).route(RELOAD, post(reload)).with_state(routes)
}

async fn drain(State(routes): State<AdminRoutes>, headers: HeaderMap, body: Body) -> Response {
    let method = routes.0.methods.drain;
    let answer = async {
        let (handlers, scope) = routes.accept_request(DRAIN, method, &headers, body).await?;
        finish(&routes.0.drains, async move { handlers.drain(scope).await }).await
    };
    shown(StatusCode::ACCEPTED, answer.await)
}

async fn reload(State(routes): State<AdminRoutes>, headers: HeaderMap, body: Body) -> Response {
    let method = routes.0.methods.reload;
    let answer = async {
        let (handlers, scope) = routes.accept_request(RELOAD, method, &headers, body).await?;
        finish(&routes.0.reloads, async move { handlers.reload(scope).await }).await
    };
    shown(StatusCode::OK, answer.await)
}

impl AdminRoutes {
    /// Finds for what a request asks, and who answers it. Nothing of a body is read for those without the secret.
    async fn accept_request(
        &self,
        path: &'static str,
        method: &'static str,
        headers: &HeaderMap,
        body: Body,
    ) -> Result<(Arc<dyn DynAdminHandlers>, AdminScope), AdminRefusal> {
        let scope = self.authorized(headers).await?.ok_or(AdminRefusal::Secret { path, method })?;
        timeout(BODY_TIMEOUT, read(body)).await.map_err(|_| AdminRefusal::SlowBody)??;
        let handlers = self.0.handlers.get().ok_or(AdminRefusal::Starting)?;
        tracing::info!(path, %scope, "asked for on the ops port");
        Ok((handlers.clone(), scope))
    }
}

/// All that a body may contain. Unknown fields are refused: a tenant that is named here and ignored would mean the
/// whole process.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EmptyRequestBody {}

async fn read(body: Body) -> Result<(), AdminRefusal> {
    let mut pieces = body.into_data_stream();
    let mut text = Vec::new();
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|_| AdminRefusal::BrokenBody)?;
        if text.len() + piece.len() > BODY_BYTES_MAX {
            return Err(AdminRefusal::LongBody);
        }
        text.extend_from_slice(&piece);
    }
    if text.trim_ascii().is_empty() {
        return Ok(());
    }
    serde_json::from_slice(&text).map(|EmptyRequestBody {}| ()).map_err(|_| AdminRefusal::Body)
}

/// Has the work done in a task of its own, which no caller cuts in half by going away.
async fn finish<E: Into<AdminRefusal> + Send + 'static>(
    permits: &Arc<Semaphore>,
    work: impl Future<Output = Result<Value, E>> + Send + 'static,
) -> Result<Value, AdminRefusal> {
    let permit = permits.clone().try_acquire_owned().map_err(|_| AdminRefusal::Busy)?;
    let task = tokio::spawn(async move {
        let answer = work.await;
        drop(permit);
        answer
    });
    match timeout(ANSWER_TIMEOUT, task).await {
        Ok(Ok(answer)) => answer.map_err(Into::into),
        Ok(Err(_)) => Err(AdminRefusal::Failed),
        Err(_) => Err(AdminRefusal::SlowAnswer),
    }
}

fn shown(status: StatusCode, answer: Result<Value, AdminRefusal>) -> Response {
    match answer {
        Ok(document) => {
            let kind = [(header::CONTENT_TYPE, "application/json")];
            (status, kind, format!("{document:#}\n")).into_response()
        }
        Err(refusal) => refusal.into_response(),
    }
}
