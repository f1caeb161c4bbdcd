//! Streams that tests publish to and read beside the lanes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use broker::{
    CursorSpec, CursorStart, Headers, JetStream, JetStreamOptions, MessageBroker, Publication, PullLimit,
    StreamSpec,
};
use bytes::Bytes;
use model::CorrelationId;
use saga::lane::{AGGREGATE_EVENTS, WORKFLOW_EVENTS, streams};
use saga::sagas::VerbAnswerRow;
use testkit::{NatsServer, PATIENCE, wait_until};
use tokio::sync::SetOnce;
use workflow::input::{CommandOutcome, Verb};
use workflow::message::{AnswerMessage, EffectCommand, EffectResult, FactMessage, ReplyAddress, VerbMessage};
use workflow::{Json, MessageSubject, message};

use crate::world::TENANT;

/// Connects to a server.
pub(crate) async fn connect(nats: &NatsServer) -> Arc<dyn MessageBroker> {
    println!("nats-server {}", nats.info());
    connect_to(&nats.url()).await
}

/// Connects to a server at a URL.
pub(crate) async fn connect_to(url: &str) -> Arc<dyn MessageBroker> {
    let broker = JetStream::start(JetStreamOptions::new(url)).expect("options");
    let mut connection = broker.connection();
    let connected = connection.wait_for(|connection| connection.connected);
    tokio::time::timeout(PATIENCE, connected).await.expect("in time").expect("it goes on");
    Arc::new(broker)
}

/// Says that the streams are there.
pub(crate) fn made() -> Arc<SetOnce<()>> {
    Arc::new(SetOnce::new_with(Some(())))
}

pub(crate) async fn publish(broker: &dyn MessageBroker, outgoing: Publication) {
    let publish = || async { broker.publish(outgoing.clone()).await.ok()?.await.ok() };
    wait_until(publish, PATIENCE, "it is stored").await;
}

pub(crate) async fn publish_result(
    broker: &dyn MessageBroker,
    command: &EffectCommand,
    outcome: CommandOutcome,
    payload: Json,
) {
    let result = EffectResult {
        tenant_id: command.tenant_id.clone(),
        command_id: command.command_id,
        effect_name: command.effect_name.clone(),
        result_type: outcome,
        may_have_happened: false,
        payload,
        timestamp: 0,
        reply_to: command.reply_to.clone(),
        metadata: BTreeMap::new(),
    };
    let subject =
        format!("tenant.{}.effect_result.{}.{}", command.tenant_id, command.effect_name, command.command_id);
    let message_id = format!("result-{}", command.command_id);
    let payload = Bytes::from(message::write(&result));
    publish(broker, Publication { subject, message_id, headers: Headers::new(), payload }).await;
}

/// Asks something of an instance, by a request and a message of these ids, and waits for the answer.
pub(crate) async fn ask(
    broker: &dyn MessageBroker,
    saga: &str,
    (request, message_id): (&str, &str),
    correlation: &str,
    verb: Verb,
) -> VerbAnswerRow {
    let mut inbox = broker.inbox().await.expect("an inbox");
    let correlation: CorrelationId = correlation.parse().expect("a correlation");
    let subject = MessageSubject::workflow(&saga.parse().expect("a name"), &correlation);
    let verb = VerbMessage {
        tenant_id: TENANT.to_owned(),
        request_id: request.to_owned(),
        correlation,
        verb,
        dry_run: false,
        expected_revision: 0,
        request_hash: String::new(),
        reply_to: Some(ReplyAddress { subject: inbox.subject().to_owned(), token: request.to_owned() }),
    };
    let subject = subject.of(&TENANT.parse().expect("a tenant"));
    let payload = Bytes::from(message::write(&verb));
    let message_id = message_id.to_owned();
    publish(broker, Publication { subject, message_id, headers: Headers::new(), payload }).await;
    let answer = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("in time").expect("an answer");
    let answer: AnswerMessage<_> = serde_json::from_slice(&answer).expect("an answer");
    assert_eq!(answer.token, request);
    answer.answer.expect("it fits into a message")
}

/// Reads a stream over everything that happens to its connection.
pub(crate) struct Reader {
    broker: Arc<dyn MessageBroker>,
    spec: CursorSpec,
    deliveries: Box<dyn broker::Deliveries>,
}

impl Reader {
    pub(crate) async fn open(
        broker: &Arc<dyn MessageBroker>,
        stream: &str,
        consumer: &str,
        filter: &str,
    ) -> Self {
        let spec = CursorSpec::new(stream, consumer, filter, CursorStart::After(0));
        let deliveries = broker.open(&spec).await.expect("a cursor");
        Self { broker: Arc::clone(broker), spec, deliveries }
    }

    /// The next message.
    pub(crate) async fn next(&mut self) -> Bytes {
        self.next_stored().await.1
    }

    /// The next message, and when it was stored, in milliseconds since 1970.
    async fn next_stored(&mut self) -> (u64, Bytes) {
        let room = PullLimit { messages: 64, bytes: 1 << 20 };
        loop {
            if let Ok(delivered) = self.deliveries.next(room).await {
                delivered.receipt.ack();
                self.spec.start = CursorStart::After(delivered.sequence);
                return (delivered.stored_millis, delivered.payload);
            }
            let broker = Arc::clone(&self.broker);
            let spec = self.spec.clone();
            let open = || async { broker.open(&spec).await.ok() };
            self.deliveries = wait_until(open, PATIENCE, "the cursor is there again").await;
        }
    }
}

/// Publishes an event of an aggregate, and makes the stream for those where there is none.
pub(crate) async fn publish_event(
    broker: &dyn MessageBroker,
    aggregate: &str,
    id: &str,
    kind: &str,
    correlation: &str,
    data: &str,
) {
    publish_event_of(broker, TENANT, aggregate, id, kind, (correlation, data)).await;
}

/// Publishes an event of an aggregate of a tenant.
pub(crate) async fn publish_event_of(
    broker: &dyn MessageBroker,
    tenant: &str,
    aggregate: &str,
    id: &str,
    kind: &str,
    (correlation, data): (&str, &str),
) {
    let body = format!(
        r#"{{"event_id":"{id}","type":"{kind}","data":{data},"metadata":{{"correlation_id":"{correlation}"}}}}"#
    );
    let outgoing = Publication {
        subject: format!("tenant.{tenant}.aggregate.{aggregate}.x"),
        message_id: format!("{tenant}-{id}"),
        headers: Headers::new(),
        payload: Bytes::from(body),
    };
    publish(broker, outgoing).await;
}

/// Projection of instances that follows facts over everything that happens to the connection.
pub(crate) struct Projection(Reader);

impl Projection {
    /// Creates all streams, and follows the tenant's messages.
    pub(crate) async fn open(broker: &Arc<dyn MessageBroker>) -> Self {
        Self::open_of(broker, TENANT).await
    }

    /// Creates all streams, and follows the messages of this tenant, or with `*` of all tenants.
    pub(crate) async fn open_of(broker: &Arc<dyn MessageBroker>, tenant: &str) -> Self {
        let [commands, events] = streams(true);
        for stream in [commands, events, aggregates()] {
            broker.ensure_stream(&stream).await.expect("a stream");
        }
        let filter = format!("tenant.{tenant}.workflow_event.*.*");
        Self(Reader::open(broker, WORKFLOW_EVENTS, "projection", &filter).await)
    }

    /// The next fact, if it comes within a moment.
    pub(crate) async fn next_soon(&mut self) -> Option<FactMessage> {
        Some(self.next_stored_soon().await?.1)
    }

    /// The next fact and when it was stored, in milliseconds since 1970, if it comes within a moment.
    pub(crate) async fn next_stored_soon(&mut self) -> Option<(u64, FactMessage)> {
        let next = tokio::time::timeout(Duration::from_millis(50), self.0.next_stored()).await.ok()?;
        Some((next.0, serde_json::from_slice(&next.1).expect("a fact")))
    }
}

/// Results of effects, from the beginning.
pub(crate) struct Results(Reader);

impl Results {
    pub(crate) async fn open(broker: &Arc<dyn MessageBroker>) -> Self {
        let filter = format!("tenant.{TENANT}.effect_result.*.*");
        Self(Reader::open(broker, WORKFLOW_EVENTS, "results", &filter).await)
    }

    /// The next one.
    pub(crate) async fn next(&mut self) -> EffectResult {
        let payload = tokio::time::timeout(PATIENCE, self.0.next()).await.expect("a result in time");
        serde_json::from_slice(&payload).expect("a result")
    }
}

/// The stream of aggregates, which is not ours.
pub(crate) fn aggregates() -> StreamSpec {
    StreamSpec::managed(AGGREGATE_EVENTS, &["tenant.*.aggregate.*.*"], Duration::from_secs(86_400))
}
