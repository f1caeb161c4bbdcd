//! The gateway of aggregates, by gRPC: `mycora.v1.CommandService`, or a method of another package with the same messages.

use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::BoxFuture;
use http::uri::{PathAndQuery, Uri};
use proto::v1;
use proto::v1::command_service_client::CommandServiceClient;
use tonic::body::Body;
use tonic::{Code, Request, Status};
use tower::Service;

use crate::lane::gateway::{AggregateCommand, Gateway, GatewayAnswer};

/// Time limit for an answer, after which the command is submitted again.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Default name of the method.
pub const SUBMIT_COMMAND: &str = "/mycora.v1.CommandService/SubmitCommand";

/// A gateway that is called by gRPC.
pub struct CommandService(CommandServiceClient<CommandMethodChannel>);

/// A channel to a server that has the method under this name.
#[derive(Clone)]
struct CommandMethodChannel {
    channel: rpc::Channel,
    method: PathAndQuery,
}

impl Service<http::Request<Body>> for CommandMethodChannel {
    type Response = http::Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Status>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Status>> {
        self.channel.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let mut parts = request.uri().clone().into_parts();
        parts.path_and_query = Some(self.method.clone());
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        self.channel.call(request)
    }
}

impl CommandService {
    /// Calls this method over a channel.
    #[must_use]
    pub fn new(channel: rpc::Channel, method: PathAndQuery) -> Self {
        Self(CommandServiceClient::new(CommandMethodChannel { channel, method }))
    }

    async fn call(&self, command: &AggregateCommand) -> Result<v1::SubmitCommandResponse, Status> {
        let mut metadata = std::collections::BTreeMap::new();
        metadata.insert("correlation_id".to_owned(), command.correlation_id.clone());
        metadata.insert("causation_id".to_owned(), command.command_id.to_string());
        metadata.extend(command.traceparent.clone().map(|trace| ("traceparent".to_owned(), trace)));
        let mut request = Request::new(v1::SubmitCommandRequest {
            tenant_id: command.tenant_id.clone(),
            command_id: command.command_id.to_string(),
            aggregate_id: command.aggregate_id.clone(),
            aggregate_type: command.aggregate_type.clone(),
            payload_json: command.payload_json.clone(),
            metadata: metadata.into_iter().collect(),
            command_type: command.command_type.clone(),
        });
        request.set_timeout(TIMEOUT);
        // Tenants are safe tokens, and an empty one is none.
        if let Ok(tenant) = command.tenant_id.parse() {
            request.metadata_mut().insert("x-tenant-id", tenant);
        }
        if let Some(Ok(trace)) = command.traceparent.as_ref().map(|trace| trace.parse()) {
            request.metadata_mut().insert("traceparent", trace);
        }
        self.0.clone().submit_command(request).await.map(tonic::Response::into_inner)
    }
}

#[async_trait]
impl Gateway for CommandService {
    async fn submit(&self, command: &AggregateCommand) -> GatewayAnswer {
        match tokio::time::timeout(TIMEOUT, self.call(command)).await {
            Ok(Ok(_)) => GatewayAnswer::Done(workflow::Json::object([])),
            Ok(Err(status)) => answer_of(&status),
            Err(_) => GatewayAnswer::Unknown { why: format!("the gateway did not answer in {TIMEOUT:?}") },
        }
    }
}

/// Maps the status of a submitted command to a gateway's answer.
fn answer_of(status: &Status) -> GatewayAnswer {
    let message: String = status.message().chars().take(300).collect();
    match status.code() {
        Code::AlreadyExists => GatewayAnswer::Done(workflow::Json::object([])),
        Code::Unavailable
        | Code::ResourceExhausted
        | Code::Aborted
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Internal
        | Code::Unauthenticated
        | Code::Unimplemented => GatewayAnswer::Unknown { why: format!("{:?}: {message}", status.code()) },
        code => GatewayAnswer::Refused { code: format!("{code:?}"), message },
    }
}

/// No gateway: commands wait for one.
#[derive(Debug, Clone, Copy)]
pub struct NoGateway;

#[async_trait]
impl Gateway for NoGateway {
    async fn submit(&self, _: &AggregateCommand) -> GatewayAnswer {
        GatewayAnswer::Unknown {
            why: "no gateway of aggregates is configured: name one with --gateway".to_owned(),
        }
    }
}
