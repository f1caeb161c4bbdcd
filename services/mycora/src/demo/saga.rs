//! The demonstration of sagas: four orders, each of which goes another way.
//!
//! The manifest is the one example that this repository has (`libs/workflow/src/manifest/example.yaml`). What it calls is really
//! called: payments by HTTP, mail by SMTP, a flow, and the gateway of aggregates by gRPC. The servers behind are stand-ins on this
//! machine, and identify themselves as such; everything printed was read from them first.

mod aggregates;
mod external_authority;
mod mail_server;
mod manifest;
mod orders;
mod payments;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use broker::{CursorSpec, CursorStart, Deliveries, JetStream, MessageBroker, PullLimit};
use identity::pki::IssueOptions;
use identity::{Identity, Pki, ServiceName, TrustDomain};
use model::id::Uid;
use saga::command_service::SUBMIT_COMMAND;
use saga::lane::WORKFLOW_EVENTS;
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use workflow::message::FactMessage;

use self::aggregates::FakeAggregateGateway;
use self::external_authority::ExternalAuthority;
use self::mail_server::FakeMailServer;
use self::orders::{DemoOrder, DemoOrderReport, OrderObservations};
use self::payments::FakePaymentServer;
use crate::command::CliSession;
use crate::failure::{CliError, error_chain};
use crate::output::{self, table};
use crate::up::{AllInOneHandle, NatsAccess, NatsOptions, SagaOptions, UpOptions};

/// The tenant, which is context 1.
const TENANT: &str = "1";
/// All orders have ended after this time, or something is wrong.
const PATIENCE: Duration = Duration::from_secs(45);
/// Facts that are pulled at once.
const ROOM: PullLimit = PullLimit { messages: 64, bytes: 1 << 20 };

/// Everything around the suite: what lies in files, and the stand-ins.
pub struct SagaDemo {
    dir: PathBuf,
    orders: Vec<DemoOrder>,
    payments: Arc<FakePaymentServer>,
    post: Arc<FakeMailServer>,
    /// Where the gateway of aggregates listens; taken once it serves.
    gateway: TcpListener,
    gateway_url: String,
    payments_url: String,
    post_port: u16,
    /// Stand-ins that serve, until they are dropped.
    serving: JoinSet<()>,
}

/// Something that is in the way of the demonstration.
fn failed(what: &str, error: &(dyn std::error::Error + 'static)) -> CliError {
    CliError::Failed(format!("{what}: {}", error_chain(error)))
}

impl SagaDemo {
    /// Starts the stand-ins of payments and mail, and writes manifests, secrets and certificates into this directory.
    ///
    /// # Errors
    /// When something cannot be written, or no port can be had.
    pub async fn open(dir: &Path) -> Result<Self, CliError> {
        let orders = orders::all();
        let mut serving = JoinSet::new();
        let outside = ExternalAuthority::new(&dir.join("outside"))?;
        let token = Uid::random().to_string();
        let payments = Arc::new(FakePaymentServer::new(&token, &orders));
        let payments_port = payments::serve(&payments, outside.acceptor(), &mut serving).await?;
        let post = Arc::new(FakeMailServer::default());
        let post_port = mail_server::serve(&post, outside.acceptor(), &mut serving).await?;

        let write = |place: &str, text: &str| {
            let path = dir.join(place);
            let written = path.parent().map_or(Ok(()), std::fs::create_dir_all);
            written.and_then(|()| std::fs::write(&path, text)).map_err(|error| failed(place, &error))
        };
        write("manifests/order-fulfilment.yaml", &manifest::text(payments_port, post_port))?;
        write("manifests/make-label.yaml", manifest::FLOW)?;
        // Only their owner may read them.
        let secrets = dir.join("secrets");
        std::fs::create_dir(&secrets).map_err(|error| failed("a directory", &error))?;
        external_authority::write_private(&secrets.join("pay-token"), &token)?;
        external_authority::write_private(&secrets.join("outside-ca"), outside.ca())?;
        let gateway = listen().await?;
        let port = gateway.local_addr().map_err(|error| failed("a port", &error))?.port();
        let gateway_url = format!("https://localhost:{port}");
        let (dir, payments_url) = (dir.to_owned(), format!("https://localhost:{payments_port}"));
        Ok(Self { dir, orders, payments, post, gateway, gateway_url, payments_url, post_port, serving })
    }

    /// Has a suite run sagas with what lies here. Makes the authority that the gateway of aggregates has its certificate of.
    ///
    /// # Errors
    /// When the authority cannot be made.
    pub fn configure(&self, options: &mut UpOptions, nats_server: Option<PathBuf>) -> Result<(), CliError> {
        let pki = self.dir.join("pki");
        let made = Pki::init(&pki, &TrustDomain::default(), SystemTime::now());
        made.map_err(|error| failed("the authority", &error))?;
        options.pki_dir = Some(pki);
        let method = http::uri::PathAndQuery::from_static(SUBMIT_COMMAND);
        options.saga = Some(SagaOptions {
            gateway: Some((self.gateway_url.clone(), method)),
            nats: NatsOptions::Private { program: nats_server },
            ..SagaOptions::private(&self.dir.join("manifests"), &self.dir.join("secrets"))
        });
        Ok(())
    }

    /// One line that says what is no part of the suite.
    #[must_use]
    pub fn text(&self) -> String {
        let Self { payments_url, post_port, gateway_url, .. } = self;
        format!(
            "stand-ins on this machine: payments {payments_url}, mail localhost:{post_port}, aggregates {gateway_url}"
        )
    }

    /// Places the orders, shows how they go on, and looks at what came of them; gives the exit code.
    ///
    /// # Errors
    /// When something cannot be reached, or an order does not end.
    pub async fn show(
        self,
        running: &AllInOneHandle,
        session: &CliSession,
        data: &Path,
    ) -> Result<u8, CliError> {
        let Self { dir, orders, payments, post, gateway, mut serving, .. } = self;
        let nats =
            running.nats().ok_or_else(|| CliError::Failed("there is no private nats-server".into()))?;
        // Flows are submitted as actor 1, whose key the suite has made.
        let key = std::fs::copy(data.join("actor-1.ed25519"), dir.join("secrets/actor-1"));
        key.map_err(|error| failed("the key of actor 1", &error))?;
        let broker = connect(nats).await?;
        let aggregates = Arc::new(FakeAggregateGateway::new(Arc::clone(&broker)));
        let certificate = gateway_certificate(&dir)?;
        aggregates::serve(&aggregates, gateway, &certificate, &mut serving)?;
        let mut watching =
            DemoOrderWatch { facts: follow(&*broker).await?, orders: &orders, seen: Vec::new() };
        for order in &orders {
            aggregates.place(order).await?;
            say(session, &format!("order {} is placed: {}", order.id, order.story));
        }
        let ended = tokio::time::timeout(PATIENCE, watching.until_all_ended(session, &aggregates, &payments));
        match ended.await {
            Ok(ended) => ended?,
            Err(_) => return Err(watching.not_ended()),
        }
        let labels = orders::labels(session).await?;
        let outcomes: Vec<_> = orders
            .iter()
            .map(|order| {
                let seen = OrderObservations {
                    way: watching.way_of(order),
                    aggregate: aggregates.order(&order.id),
                    payment: payments.of(&order.reference()),
                    mails: post.mails_to(&order.email),
                    labels: &labels,
                };
                order.outcome(&seen)
            })
            .collect();
        print_outcomes(session, &outcomes)
    }
}

/// Follows what becomes of orders.
struct DemoOrderWatch<'a> {
    facts: Box<dyn Deliveries>,
    orders: &'a [DemoOrder],
    seen: Vec<FactMessage>,
}

impl DemoOrderWatch<'_> {
    /// Shows facts as they come, and has customers pay, until all orders have ended.
    async fn until_all_ended(
        &mut self,
        session: &CliSession,
        aggregates: &FakeAggregateGateway,
        payments: &FakePaymentServer,
    ) -> Result<(), CliError> {
        while !self.orders.iter().all(|order| self.has_ended(order)) {
            tokio::select! {
                reference = payments.next_reservation() => {
                    let order = self.orders.iter().find(|order| order.reference() == reference);
                    if let Some(order) = order.filter(|order| order.is_paid) {
                        aggregates.capture(order).await?;
                    }
                }
                delivered = self.facts.next(ROOM) => {
                    let delivered = delivered.map_err(|lost| CliError::Failed(format!("events are lost: {lost}")))?;
                    delivered.receipt.ack();
                    let fact: FactMessage = serde_json::from_slice(&delivered.payload)
                        .map_err(|error| failed("an event of the saga service", &error))?;
                    if self.orders.iter().any(|order| order.id == fact.correlation.as_str()) {
                        say(session, &line_of(&fact));
                        self.seen.push(fact);
                    }
                }
            }
        }
        Ok(())
    }

    fn facts_of<'a>(&'a self, order: &'a DemoOrder) -> impl Iterator<Item = &'a FactMessage> {
        self.seen.iter().filter(|fact| fact.correlation.as_str() == order.id)
    }

    fn has_ended(&self, order: &DemoOrder) -> bool {
        self.facts_of(order)
            .any(|fact| ["completed", "compensated", "failed", "killed"].contains(&&*fact.kind))
    }

    /// The kinds of its facts, in their order.
    fn way_of<'a>(&'a self, order: &'a DemoOrder) -> Vec<&'a str> {
        self.facts_of(order).map(|fact| fact.kind.as_str()).collect()
    }

    fn not_ended(&self) -> CliError {
        let open = self.orders.iter().filter(|order| !self.has_ended(order));
        let open: Vec<_> = open
            .map(|order| {
                let last = self.facts_of(order).last();
                format!("{} ({})", order.id, last.map_or_else(|| "not started".to_owned(), line_of))
            })
            .collect();
        CliError::Failed(format!("orders that have not ended after {PATIENCE:?}: {}", open.join(", ")))
    }
}

/// One line of what became of an order.
fn line_of(fact: &FactMessage) -> String {
    let reason = fact.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
    match fact.kind.as_str() {
        "started" | "step" => format!("order {} is at {}", fact.correlation, fact.step),
        kind => format!("order {} is {kind}{reason}", fact.correlation),
    }
}

/// Prints what came of the orders, and what is not as it has to be; gives the exit code.
fn print_outcomes(session: &CliSession, outcomes: &[DemoOrderReport]) -> Result<u8, CliError> {
    let rows: Vec<_> = outcomes.iter().map(DemoOrderReport::row).collect();
    output::answer(
        session.global.output,
        || outcomes,
        || format!("\n{}", table::render(&["ORDER", "STATUS", "WHAT HAPPENED"], &rows)),
    )?;
    let problems: Vec<_> = outcomes.iter().flat_map(DemoOrderReport::problems).collect();
    if problems.is_empty() {
        return Ok(0);
    }
    Err(CliError::Failed(problems.join("\n")))
}

/// A connection to the suite's NATS server.
async fn connect(nats: &NatsAccess) -> Result<Arc<dyn MessageBroker>, CliError> {
    let broker = JetStream::start(nats.options("mycora-demo")).map_err(|error| failed("NATS", &error))?;
    let mut connection = broker.connection();
    let connected = connection.wait_for(|connection| connection.connected);
    match tokio::time::timeout(PATIENCE, connected).await {
        Ok(Ok(_)) => {}
        _ => return Err(CliError::Failed("the private nats-server does not answer".to_owned())),
    }
    Ok(Arc::new(broker))
}

/// Facts of the tenant's orders.
async fn follow(broker: &dyn MessageBroker) -> Result<Box<dyn Deliveries>, CliError> {
    let filter = format!("tenant.{TENANT}.workflow_event.order-fulfilment.*");
    let spec = CursorSpec::new(WORKFLOW_EVENTS, "demo", &filter, CursorStart::After(0));
    broker.open(&spec).await.map_err(|error| failed("events of the saga service", &error))
}

/// A certificate for the gateway of aggregates, of the suite's authority.
fn gateway_certificate(dir: &Path) -> Result<rpc::TlsFiles, CliError> {
    let cannot = |error: identity::PkiError| failed("a certificate", &error);
    let pki = Pki::open(&dir.join("pki")).map_err(cannot)?;
    let issued = pki.sign(Identity::Service(ServiceName::Mycora), &IssueOptions::from(SystemTime::now()));
    let issued = issued.map_err(cannot)?;
    let (certificate, key) = (dir.join("gateway.pem"), dir.join("gateway.key"));
    external_authority::write_private(&certificate, &issued.certificate_pem)?;
    external_authority::write_private(&key, &issued.key_pem)?;
    Ok(rpc::TlsFiles::new(pki.ca_file(), certificate, key))
}

/// A free port of the loopback interface, listened on.
async fn listen() -> Result<TcpListener, CliError> {
    TcpListener::bind((std::net::Ipv4Addr::LOCALHOST, 0)).await.map_err(|error| failed("a port", &error))
}

fn say(session: &CliSession, line: &str) {
    if !session.global.quiet {
        output::note(line);
    }
}
