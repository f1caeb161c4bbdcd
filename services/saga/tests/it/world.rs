//! A saga's lane with everything around it: a store, a broker, effects and aggregates that are stand-ins.

mod making;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use broker::{Headers, MessageBroker, Publication, SimulatedBroker};
use bytes::Bytes;
use model::{CorrelationId, SagaStatus, TenantId};
use saga::definitions::Definitions;
use saga::effects::upstreams::Upstreams;
use saga::effects::{EffectLane, OpenCalls};
use saga::health::SagaHealth;
use saga::lane::answers::LaneRequestAnswer;
use saga::lane::in_flight::InFlightLimits;
use saga::lane::{LaneEnvironment, LaneExit, WORKFLOW_COMMANDS, WORKFLOW_EVENTS};
use saga::metrics::Metrics;
use saga::providers::CallProvider;
use saga::sagas::SagaLane;
use serde::de::DeserializeOwned;
use service::Readiness;
use store::{KvStore, LaneKey, RowKey};
use tempfile::TempDir;
use testkit::{FaultProxy, NatsServer, PATIENCE, RedisServer};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use workflow::catalog::{Catalog, LoadedManifest};
use workflow::input::{CommandOutcome, Verb};
use workflow::instance::{CorrelationEntry, CorrelationRecord, decode};
use workflow::lane_request::{LaneRequestMessage, SagaLaneRequest};
use workflow::ledger::CallRow;
use workflow::message::{AnswerMessage, EffectCommand, EffectResult, FactMessage, ReplyAddress};
use workflow::{Json, LaneRowKey, manifest, message};

pub(crate) use crate::call_recorder::{Called, Witness};
use crate::clock::SetForward;
use crate::streams::{Reader, aggregates, ask, publish, publish_event, publish_result};

pub(crate) use self::making::Keeps;

pub(crate) const TENANT: &str = "acme";
/// The effect whose lane tests own.
pub(crate) const EFFECT: &str = "payment-reserve";

type Answers = dyn Fn(&EffectCommand) -> Option<(CommandOutcome, Json)> + Send + Sync;

/// Servers and files that a world uses, which go with it.
#[derive(Default)]
pub(crate) struct Ground {
    pub(crate) nats: Option<NatsServer>,
    /// Between the lane and its server, where tests break that connection.
    pub(crate) proxy: Option<FaultProxy>,
    _redis: Option<RedisServer>,
    _dir: Option<TempDir>,
}

pub(crate) struct World {
    pub(crate) store: Arc<dyn KvStore>,
    /// The lane's.
    pub(crate) broker: Arc<dyn MessageBroker>,
    /// Broker connection of everybody else.
    pub(crate) outside: Arc<dyn MessageBroker>,
    pub(crate) simulated: Option<SimulatedBroker>,
    pub(crate) clock: SetForward,
    pub(crate) definitions: Arc<Definitions>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) registry: prometheus::Registry,
    pub(crate) readiness: Readiness,
    /// Limits that lanes of this world share.
    pub(crate) bounds: InFlightLimits,
    pub(crate) outbox_rows_max: usize,
    /// How long the broker waits for an acknowledgement.
    pub(crate) ack_wait: Duration,
    pub(crate) witness: Witness,
    pub(crate) saga: String,
    /// Dead letters that there may be.
    pub(crate) letters_max: u64,
    /// Calls of an effect that may be open.
    pub(crate) calls_max: u64,
    wake: Arc<Notify>,
    /// Messages of words that were published.
    copies: AtomicU64,
    facts: Option<mpsc::UnboundedReceiver<FactMessage>>,
    seen: Vec<FactMessage>,
    results: Option<mpsc::UnboundedReceiver<EffectResult>>,
    pub(crate) calls: OpenCalls,
    lane: Option<(JoinHandle<LaneExit>, CancellationToken)>,
    pub(crate) ground: Ground,
}

impl World {
    /// Puts a manifest in force; its first document is the saga of this world.
    pub(crate) async fn apply(&mut self, text: &str) {
        let documents = manifest::read("test.yaml", text).unwrap_or_else(|problems| panic!("{problems}"));
        let file = LoadedManifest { name: "test.yaml".to_owned(), documents: documents.clone() };
        let before = self.definitions.catalog();
        let catalog = Catalog::new(&[file], &before, &[]).unwrap_or_else(|all| panic!("{all:?}"));
        self.saga = catalog.sagas().next().expect("a saga").name.to_string();
        self.definitions.put_in_force(&documents, catalog).await.expect("kept");
    }

    fn surroundings(&self) -> LaneEnvironment {
        LaneEnvironment {
            store: Arc::clone(&self.store),
            broker: Arc::clone(&self.broker),
            metrics: Arc::clone(&self.metrics),
            health: SagaHealth::new(&self.readiness),
            bounds: self.bounds.clone(),
            outbox_rows_max: self.outbox_rows_max,
            ack_wait: self.ack_wait,
            streams_made: crate::streams::made(),
            has_tenants: true,
            replica: "test".into(),
            cut: CancellationToken::new(),
            wake: Arc::clone(&self.wake),
        }
    }

    /// Owns the lane from now on.
    pub(crate) fn own(&mut self) {
        let lane = self.lane();
        let stop = CancellationToken::new();
        let ended = tokio::spawn(lane.own(stop.clone()));
        self.lane = Some((ended, stop));
    }

    pub(crate) fn lane(&self) -> SagaLane {
        SagaLane {
            tenant: TENANT.parse().expect("a tenant"),
            saga: self.saga.parse().expect("a name"),
            shard: 0,
            since: None,
            definitions: Arc::clone(&self.definitions),
            letters_max: self.letters_max,
            gateway: Arc::new(self.witness.clone()),
            around: self.surroundings(),
        }
    }

    /// Owns another shard.
    pub(crate) fn own_shard(&self, shard: u8) -> JoinHandle<LaneExit> {
        let lane = SagaLane { shard, ..self.lane() };
        tokio::spawn(lane.own(CancellationToken::new()))
    }

    /// Counts cursors that were made.
    pub(crate) fn cursors(&self) -> u64 {
        let families = prometheus::core::Collector::collect(&self.metrics.cursor_resets);
        let metrics = families.iter().flat_map(|family| family.get_metric());
        metrics.map(|metric| metric.get_counter().get_value()).sum::<f64>() as u64
    }

    /// Waits until so many cursors were made.
    pub(crate) async fn until_cursors(&self, wanted: u64) {
        let wanted = async {
            while self.cursors() < wanted {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wanted).await.expect("the lane makes its cursors anew");
    }

    /// Begins another owner of the lane; gives the former one, which comes to its end.
    pub(crate) fn take_over(&mut self) -> JoinHandle<LaneExit> {
        let (former, _) = self.lane.take().expect("an owner");
        self.own();
        former
    }

    /// A second owner of the lane, which takes it from the first.
    pub(crate) fn second_owner(&self) -> JoinHandle<LaneExit> {
        tokio::spawn(self.lane().own(CancellationToken::new()))
    }

    /// Makes the stream of aggregates once more.
    pub(crate) async fn make_aggregates(&self) {
        self.outside.ensure_stream(&aggregates()).await.expect("a stream");
    }

    /// Kills the server, starts it again, and waits until it is connected.
    pub(crate) async fn kill_nats(&mut self) {
        let mut connection = self.broker.connection();
        let before = connection.borrow().generation;
        let nats = self.ground.nats.as_mut().expect("a real server");
        nats.kill9();
        nats.restart();
        let again = connection.wait_for(|now| now.connected && now.generation > before);
        tokio::time::timeout(PATIENCE, again).await.expect("in time").expect("it goes on");
    }

    /// Waits until an instance has this revision.
    pub(crate) async fn until_revision(&self, correlation: &str, revision: u64) {
        let wanted =
            async {
                while self.record(correlation).await.is_none_or(|record| {
                    record.instance().is_none_or(|instance| instance.revision < revision)
                }) {
                    tokio::task::yield_now().await;
                }
            };
        tokio::time::timeout(PATIENCE, wanted).await.expect("it comes to that");
    }

    /// Waits until `/metrics` has this line.
    pub(crate) async fn until_measured(&self, line: &str) {
        let text = || prometheus::TextEncoder::new().encode_to_string(&self.registry.gather()).expect("text");
        let wanted = async {
            while !text().lines().any(|found| found == line) {
                tokio::task::yield_now().await;
            }
        };
        let come = tokio::time::timeout(PATIENCE, wanted).await;
        assert!(come.is_ok(), "no {line}: {}", text());
    }

    /// Ends the owner as a drain does.
    pub(crate) async fn stop(&mut self) -> LaneExit {
        let (ended, stop) = self.lane.take().expect("an owner");
        stop.cancel();
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends").expect("it does not panic")
    }

    /// Ends the owner as a crash does.
    pub(crate) async fn crash(&mut self) {
        let (ended, _) = self.lane.take().expect("an owner");
        ended.abort();
        assert!(ended.await.is_err_and(|error| error.is_cancelled()));
    }

    /// Waits for the end of the owner by itself.
    pub(crate) async fn ended(&mut self) -> LaneExit {
        let (ended, _) = self.lane.take().expect("an owner");
        tokio::time::timeout(PATIENCE, ended).await.expect("it ends").expect("it does not panic")
    }

    /// Answers commands of effects as `answers` says, each time they come; nothing is not answered.
    pub(crate) async fn serve(
        &mut self,
        answers: impl Fn(&EffectCommand) -> Option<(CommandOutcome, Json)> + Send + Sync + 'static,
    ) {
        let filter = format!("tenant.{TENANT}.effect.*.*");
        let mut commands = Reader::open(&self.outside, WORKFLOW_COMMANDS, "upstream", &filter).await;
        let (broker, witness) = (Arc::clone(&self.outside), self.witness.clone());
        let answers: Box<Answers> = Box::new(answers);
        tokio::spawn(async move {
            let tenant: TenantId = TENANT.parse().expect("a tenant");
            loop {
                let payload = commands.next().await;
                let command: EffectCommand = message::read(&payload, &tenant).expect("a command");
                let sign = if command.cancel { "-" } else { "" };
                let id = format!("{sign}{}", command.command_id);
                let payload = command.payload.to_string();
                witness.note(Called { what: format!("{sign}{}", command.effect_name), id, payload });
                if let Some((outcome, payload)) = answers(&command).filter(|_| !command.cancel) {
                    publish_result(&*broker, &command, outcome, payload).await;
                }
            }
        });
    }

    /// Follows what becomes of instances.
    pub(crate) async fn follow(&mut self) {
        self.facts = Some(self.read("projection", "workflow_event").await);
    }

    /// Follows results of effects.
    pub(crate) async fn results(&mut self) {
        self.results = Some(self.read("results", "effect_result").await);
    }

    async fn read<T: DeserializeOwned + Send + 'static>(
        &self,
        consumer: &str,
        kind: &str,
    ) -> mpsc::UnboundedReceiver<T> {
        let filter = format!("tenant.{TENANT}.{kind}.*.*");
        let mut messages = Reader::open(&self.outside, WORKFLOW_EVENTS, consumer, &filter).await;
        let (to, read) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while to.send(serde_json::from_slice(&messages.next().await).expect("a message")).is_ok() {}
        });
        read
    }

    /// The next result of an effect.
    pub(crate) async fn result(&mut self) -> EffectResult {
        let results = self.results.as_mut().expect("they are followed");
        let result = tokio::time::timeout(PATIENCE, results.recv()).await;
        result.expect("a result in time").expect("the world goes on")
    }

    /// Owns an effect's lane from now on.
    pub(crate) fn own_effect(&mut self, provider: Arc<dyn CallProvider>) {
        let lane = EffectLane {
            tenant: TENANT.parse().expect("a tenant"),
            effect: EFFECT.parse().expect("a name"),
            weight: 1,
            definitions: Arc::clone(&self.definitions),
            provider,
            upstreams: Upstreams::default(),
            calls: self.calls.clone(),
            calls_max: self.calls_max,
            around: self.surroundings(),
        };
        let stop = CancellationToken::new();
        self.lane = Some((tokio::spawn(lane.own(stop.clone())), stop));
    }

    /// Orders an effect.
    pub(crate) async fn command(&self, command: &EffectCommand, id: &str) {
        let subject = format!("tenant.{TENANT}.effect.{}.{}", command.effect_name, command.command_id);
        let body = String::from_utf8(message::write(command)).expect("JSON");
        self.raw(&subject, id, &body).await;
    }

    /// The row of a call.
    pub(crate) async fn call(&self, number: u128) -> CallRow {
        let key = LaneRowKey::effect(model::CommandId::from_bits(number));
        let lane = LaneKey::new(&format!("e:{TENANT}:{EFFECT}:0"));
        let rows = self.store.read(&lane, &[RowKey::new(key.as_str())]).await.expect("it can be read");
        decode(&rows[0].as_ref().expect("a row").value).expect("a call")
    }

    /// Returns whether a command was taken.
    pub(crate) async fn has_call(&self, number: u128) -> bool {
        let key = LaneRowKey::effect(model::CommandId::from_bits(number));
        let lane = LaneKey::new(&format!("e:{TENANT}:{EFFECT}:0"));
        let rows = self.store.read(&lane, &[RowKey::new(key.as_str())]).await.expect("it can be read");
        rows[0].is_some()
    }

    /// Waits until a call is in this state.
    pub(crate) async fn until(&self, number: u128, state: model::EffectState) {
        let wanted = async {
            let key = LaneRowKey::effect(model::CommandId::from_bits(number));
            let lane = LaneKey::new(&format!("e:{TENANT}:{EFFECT}:0"));
            loop {
                let rows =
                    self.store.read(&lane, &[RowKey::new(key.as_str())]).await.expect("it can be read");
                let found = rows[0].as_ref().map(|row| decode::<CallRow>(&row.value).expect("a call").state);
                if found == Some(state) {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, wanted).await.expect("it comes to that");
    }

    /// Counts calls that are open.
    pub(crate) async fn open_calls(&self) -> usize {
        let lane = LaneKey::new(&format!("e:{TENANT}:{EFFECT}:0"));
        let range = workflow::key::StoreTable::EffectDue.range();
        let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
        self.store.scan(&lane, range, 1000).await.expect("it can be read").rows.len()
    }

    /// Waits until something has happened to an instance.
    pub(crate) async fn wait_for(&mut self, correlation: &str, kind: &str) {
        let facts = self.facts.as_mut().expect("they are followed");
        let seen = &mut self.seen;
        let is_it = |fact: &FactMessage| {
            fact.correlation.as_str() == correlation && (fact.kind == kind || fact.step.as_str() == kind)
        };
        let wanted = async {
            while !seen.iter().any(is_it) {
                seen.push(facts.recv().await.expect("the world goes on"));
            }
        };
        let come = tokio::time::timeout(PATIENCE, wanted).await;
        assert!(come.is_ok(), "{correlation} does not come to {kind}: {:?}", self.seen);
    }

    /// Publishes an event of an aggregate.
    pub(crate) async fn event(&self, aggregate: &str, id: &str, kind: &str, correlation: &str, data: &str) {
        publish_event(&*self.outside, aggregate, id, kind, correlation, data).await;
    }

    pub(crate) async fn raw(&self, subject: &str, id: &str, body: &str) {
        let outgoing = Publication {
            subject: subject.to_owned(),
            message_id: id.to_owned(),
            headers: Headers::new(),
            payload: Bytes::copy_from_slice(body.as_bytes()),
        };
        publish(&*self.outside, outgoing).await;
    }

    /// Asks something of an instance, and waits for the answer.
    pub(crate) async fn ask(
        &self,
        request: &str,
        correlation: &str,
        verb: Verb,
    ) -> saga::sagas::VerbAnswerRow {
        let message_id = format!("{request}-{}", self.witness.calls().len());
        ask(&*self.outside, &self.saga, (request, &message_id), correlation, verb).await
    }

    /// Sends a request to the lane, under the subject of a correlation, and waits for the answer.
    pub(crate) async fn send_request(
        &self,
        request: &str,
        correlation: &str,
        lane_request: SagaLaneRequest,
    ) -> LaneRequestAnswer {
        let correlation: CorrelationId = correlation.parse().expect("a correlation");
        let saga = self.saga.parse().expect("a name");
        let subject = workflow::MessageSubject::workflow(&saga, &correlation);
        self.send_request_to(request, &subject, format!("s:{TENANT}:{}:0", self.saga), lane_request).await
    }

    pub(crate) async fn send_request_to<W: serde::Serialize>(
        &self,
        request: &str,
        subject: &workflow::MessageSubject,
        lane: String,
        lane_request: W,
    ) -> LaneRequestAnswer {
        let mut inbox = self.outside.inbox().await.expect("an inbox");
        let message = LaneRequestMessage {
            tenant_id: TENANT.to_owned(),
            request_id: request.to_owned(),
            lane,
            word: lane_request,
            request_hash: String::new(),
            reply_to: Some(ReplyAddress { subject: inbox.subject().to_owned(), token: request.to_owned() }),
        };
        let body = String::from_utf8(message::write(&message)).expect("JSON");
        let copy = self.copies.fetch_add(1, Ordering::Relaxed);
        let subject = subject.of(&TENANT.parse().expect("a tenant"));
        self.raw(&subject, &format!("{request}-{copy}"), &body).await;
        let answer = tokio::time::timeout(PATIENCE, inbox.next()).await.expect("in time").expect("an answer");
        let answer: AnswerMessage<_> = serde_json::from_slice(&answer).expect("an answer");
        answer.answer.expect("it fits into a message")
    }

    /// Sets the clock forward.
    pub(crate) fn forward(&self, length: Duration) {
        self.clock.forward(length);
        self.wake.notify_waiters();
        self.wake.notify_one();
    }

    /// The record of a correlation.
    pub(crate) async fn record(&self, correlation: &str) -> Option<CorrelationRecord> {
        let key = LaneRowKey::saga(&correlation.parse().expect("a correlation"));
        self.row(key.as_str()).await.map(|bytes| decode(&bytes).expect("a record"))
    }

    pub(crate) async fn row(&self, key: &str) -> Option<Bytes> {
        let lane = LaneKey::new(&format!("s:{TENANT}:{}:0", self.saga));
        let rows = self.store.read(&lane, &[RowKey::new(key)]).await.expect("it can be read");
        rows.into_iter().next().flatten().map(|row| row.value)
    }

    /// Counts the rows of a table.
    pub(crate) async fn count(&self, table: workflow::key::StoreTable) -> usize {
        self.count_in(0, table).await
    }

    /// Counts the rows of a table in another shard.
    pub(crate) async fn count_in(&self, shard: u8, table: workflow::key::StoreTable) -> usize {
        self.rows(shard, table.range()).await
    }

    /// Counts the rows of a stretch of keys.
    pub(crate) async fn rows(&self, shard: u8, range: std::ops::Range<LaneRowKey>) -> usize {
        let lane = LaneKey::new(&format!("s:{TENANT}:{}:{shard}", self.saga));
        let range = RowKey::new(range.start.as_str())..RowKey::new(range.end.as_str());
        self.store.scan(&lane, range, 1000).await.expect("it can be read").rows.len()
    }

    pub(crate) async fn has_ended(&self, correlation: &str) -> bool {
        self.record(correlation)
            .await
            .is_some_and(|record| matches!(record.entry, CorrelationEntry::Ended(_)))
    }

    pub(crate) async fn status(&self, correlation: &str) -> SagaStatus {
        match self.record(correlation).await.expect("a record").entry {
            CorrelationEntry::Live(instance) => instance.status,
            CorrelationEntry::Ended(tombstone) => tombstone.status,
            CorrelationEntry::Awaited(_) => panic!("it has not started"),
        }
    }
}
