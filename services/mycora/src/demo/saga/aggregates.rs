//! A stand-in for an aggregate service: it keeps orders in memory, takes commands for them by gRPC over mTLS, and publishes the
//! outcomes as events. It is no event store: nothing is persistent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use broker::{Headers, MessageBroker, Publication};
use proto::v1;
use proto::v1::command_service_server::{CommandService, CommandServiceServer};
use rpc::{Allow, MethodPolicy, Mount, Server, TlsFiles};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tonic::{Request, Response, Status};

use super::orders::DemoOrder;
use super::{TENANT, failed};
use crate::failure::CliError;

/// An order, as it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum DemoOrderState {
    /// Nothing came of it so far.
    Placed,
    /// The order is on its way, with this label.
    Shipped {
        /// The label.
        label: String,
    },
    /// The order was cancelled.
    Cancelled {
        /// Why.
        reason: String,
    },
}

#[derive(Default)]
struct FakeAggregateState {
    orders: BTreeMap<String, DemoOrderState>,
    /// Commands that were taken: each counts once.
    commands: BTreeSet<String>,
}

/// The stand-in.
pub(super) struct FakeAggregateGateway {
    broker: Arc<dyn MessageBroker>,
    kept: Mutex<FakeAggregateState>,
}

impl FakeAggregateGateway {
    /// A stand-in without orders, which publishes its events there.
    pub(super) fn new(broker: Arc<dyn MessageBroker>) -> Self {
        Self { broker, kept: Mutex::default() }
    }

    /// Takes an order.
    ///
    /// # Errors
    /// When the event cannot be published.
    pub(super) async fn place(&self, order: &DemoOrder) -> Result<(), CliError> {
        self.kept().orders.insert(order.id.clone(), DemoOrderState::Placed);
        let data = json!({ "order_id": order.id, "email": order.email, "amount_cents": order.amount_cents });
        self.publish("Order", "OrderPlaced", &order.id, data)
            .await
            .map_err(|error| failed("an event", &error))
    }

    /// Publishes that a customer has paid.
    ///
    /// # Errors
    /// When the event cannot be published.
    pub(super) async fn capture(&self, order: &DemoOrder) -> Result<(), CliError> {
        let data = json!({ "order_id": order.id, "amount_cents": order.amount_cents });
        let published = self.publish("Payment", "PaymentCaptured", &order.id, data).await;
        published.map_err(|error| failed("an event", &error))
    }

    /// How an order stands.
    pub(super) fn order(&self, id: &str) -> Option<DemoOrderState> {
        self.kept().orders.get(id).cloned()
    }

    fn kept(&self) -> MutexGuard<'_, FakeAggregateState> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn publish(
        &self,
        aggregate: &str,
        kind: &str,
        order: &str,
        data: Value,
    ) -> Result<(), broker::BrokerError> {
        let id = format!("{kind}-{order}");
        let event = json!({
            "event_id": id,
            "type": kind,
            "aggregate_type": aggregate,
            "aggregate_id": order,
            "tenant_id": TENANT,
            "data": data,
            "metadata": { "correlation_id": order },
        });
        let outgoing = Publication {
            subject: format!("tenant.{TENANT}.aggregate.{aggregate}.{order}"),
            message_id: id,
            headers: Headers::new(),
            payload: event.to_string().into(),
        };
        self.broker.publish(outgoing).await?.await.map(drop)
    }

    /// Executes a command, unless it was executed before; returns its event.
    fn take(&self, command: &v1::SubmitCommandRequest) -> Result<Option<(&'static str, Value)>, Status> {
        let payload: Value = serde_json::from_str(&command.payload_json)
            .map_err(|_| Status::invalid_argument("the payload is no JSON"))?;
        let text = |field: &str| payload[field].as_str().unwrap_or_default().to_owned();
        let (kind, next) = match command.command_type.as_str() {
            "MarkShipped" => ("OrderShipped", DemoOrderState::Shipped { label: text("label") }),
            "Cancel" => ("OrderCancelled", DemoOrderState::Cancelled { reason: text("reason") }),
            other => return Err(Status::invalid_argument(format!("no order knows `{other}`"))),
        };
        let mut kept = self.kept();
        let FakeAggregateState { orders, commands } = &mut *kept;
        let is_ours = command.tenant_id == TENANT && command.aggregate_type == "Order";
        let order = orders.get_mut(&command.aggregate_id).filter(|_| is_ours);
        let order = order.ok_or_else(|| Status::not_found("there is no such order"))?;
        if !commands.insert(command.command_id.clone()) {
            return Ok(None);
        }
        if *order != DemoOrderState::Placed {
            return Err(Status::failed_precondition("the order has ended"));
        }
        *order = next;
        Ok(Some((kind, payload)))
    }
}

/// Answers `CommandService`.
#[derive(Clone)]
struct FakeCommandService(Arc<FakeAggregateGateway>);

#[tonic::async_trait]
impl CommandService for FakeCommandService {
    async fn submit_command(
        &self,
        request: Request<v1::SubmitCommandRequest>,
    ) -> Result<Response<v1::SubmitCommandResponse>, Status> {
        let command = request.into_inner();
        let receipt = match self.0.take(&command)? {
            None => v1::CommandReceipt::Duplicate,
            Some((kind, payload)) => {
                let published = self.0.publish("Order", kind, &command.aggregate_id, payload).await;
                published.map_err(|error| Status::unavailable(error.to_string()))?;
                v1::CommandReceipt::Accepted
            }
        };
        Ok(Response::new(v1::SubmitCommandResponse { receipt: receipt.into() }))
    }
}

/// Serves commands to services of the suite.
///
/// # Errors
/// When its certificate cannot be used.
pub(super) fn serve(
    aggregates: &Arc<FakeAggregateGateway>,
    listener: TcpListener,
    certificate: &TlsFiles,
    serving: &mut JoinSet<()>,
) -> Result<(), CliError> {
    let policy = MethodPolicy::new(&[&[("/mycora.v1.CommandService/*", &[Allow::AnyService])]]);
    let policy = policy.map_err(|error| failed("the gateway", &error))?;
    let service = CommandServiceServer::new(FakeCommandService(Arc::clone(aggregates)));
    let mount = Mount::builder(policy).service(service).descriptors(proto::DESCRIPTORS).build();
    let mount = mount.map_err(|error| failed("the gateway", &error))?;
    let server = Server::new(mount, certificate).map_err(|error| failed("the gateway", &error))?;
    serving.spawn(async move {
        if let Err(error) = server.serve(listener, std::future::pending()).await {
            tracing::error!(%error, "commands cannot be taken any more");
        }
    });
    Ok(())
}
