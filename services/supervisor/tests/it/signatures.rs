//! Messages to a supervisor from parties that have no business with it. None of them is executed.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use envelope::{Envelope, GatewayCertificate, Sealer};
use identity::SigningKey;
use model::supervision::{COORDINATOR_TOPIC, SUPERVISOR_TOPIC};
use model::{Execution, Timestamp};
use mycelium::{Bus, BusDestination, BusInbox, Datagram, PayloadForm, PublicKey};
use serde_json::{Value, json};
use testkit::{PATIENCE, wait_until};

use crate::backlog::execution;
use crate::setup::Machine;

const MINUTE: Duration = Duration::from_secs(60);

/// A node that says what it likes.
struct Node<'a> {
    machine: &'a Machine,
    bus: Arc<dyn Bus>,
    inbox: BusInbox,
    sealer: Sealer,
}

impl<'a> Node<'a> {
    fn new(machine: &'a Machine) -> Self {
        let bus: Arc<dyn Bus> = Arc::new(machine.network.node(PublicKey::random()));
        let inbox = bus.listen(COORDINATOR_TOPIC).expect("free");
        Self { machine, bus, inbox, sealer: Sealer::of_root(SigningKey::generate()) }
    }

    fn sealed_at(&self, to: &str, job: &Execution, now: Timestamp) -> Envelope {
        let body = json!({ "jsonrpc": "2.0", "id": job.job_key.job.0, "method": "job.run", "params": job });
        self.sealer.seal(to, body.to_string().as_bytes(), now, MINUTE).expect("JSON")
    }

    fn sealed(&self, job: &Execution) -> Envelope {
        self.sealed_at(&self.machine.key.to_string(), job, Timestamp::now())
    }

    async fn say(&self, payload: Bytes) {
        let to = BusDestination::Key(self.machine.key);
        let parcel = Datagram {
            to,
            topic: SUPERVISOR_TOPIC,
            payload,
            form: PayloadForm::Framed,
            deadline: None,
            reply_to: None,
        };
        self.bus.send(parcel).await.expect("the bus takes it");
    }

    /// Returns the supervisor's next answer, as JSON-RPC.
    async fn answer(&mut self) -> Value {
        loop {
            let message = self.next().await;
            // It says things of its own accord as well.
            if message.get("method").is_none() {
                return message;
            }
        }
    }

    async fn next(&mut self) -> Value {
        let incoming =
            tokio::time::timeout(PATIENCE, self.inbox.next()).await.expect("in time").expect("open");
        let envelope = Envelope::from_json(&incoming.payload).expect("signed");
        let own = self.sealer.root().to_string();
        let opened = envelope::open_envelope(&envelope, &[own], Timestamp::now()).expect("for us");
        serde_json::from_slice(&opened.body).expect("JSON")
    }
}

/// How often something was refused for this reason.
fn refused(machine: &Machine, reason: &str) -> u64 {
    let families = machine.metrics.gather();
    let metrics = families.iter().filter(|family| family.name() == "mycora_supervisor_refused_total");
    let of_reason = metrics
        .flat_map(|family| family.get_metric())
        .filter(|metric| metric.get_label().iter().any(|label| label.value() == reason));
    of_reason.map(|metric| metric.get_counter().get_value() as u64).sum()
}

async fn is_refused(machine: &Machine, job: &Execution, reason: &str) {
    let counted = || async { (refused(machine, reason) == 1).then_some(()) };
    wait_until(counted, PATIENCE, format!("it is refused as {reason}")).await;
    assert_eq!(machine.queue.status(job.job_key).await, Ok(None), "{reason}");
}

#[tokio::test]
async fn an_unsigned_or_altered_request_is_refused() {
    let machine = Machine::start(|_, _| {}).await;
    let node = Node::new(&machine);
    let job = execution(1, 1);
    let plain = json!({ "jsonrpc": "2.0", "id": 1, "method": "job.run", "params": job });
    node.say(plain.to_string().into()).await;
    is_refused(&machine, &job, "MALFORMED_ENVELOPE").await;

    let signed = node.sealed(&execution(1, 2));
    let forged = Envelope { payload: node.sealed(&job).payload, ..signed };
    node.say(forged.to_json()).await;
    is_refused(&machine, &job, "BAD_SIGNATURE").await;
}

#[tokio::test]
async fn a_misdirected_late_or_repeated_request_is_refused() {
    let machine = Machine::start(|_, _| {}).await;
    let mut node = Node::new(&machine);
    let first = node.sealed(&execution(1, 1)).to_json();
    node.say(first.clone()).await;
    assert_eq!(node.answer().await["result"]["accepted"], true);
    node.say(first).await;
    let counted = || async { (refused(&machine, "REPLAYED") == 1).then_some(()) };
    wait_until(counted, PATIENCE, "it was heard before").await;

    let job = execution(1, 2);
    let other = PublicKey::random().to_string();
    node.say(node.sealed_at(&other, &job, Timestamp::now()).to_json()).await;
    assert_eq!(node.answer().await["error"]["data"]["reason"], "WRONG_DESTINATION");
    is_refused(&machine, &job, "WRONG_DESTINATION").await;

    let long_ago = Timestamp::from_millis(Timestamp::now().as_millis() - 600_000);
    node.say(node.sealed_at(&machine.key.to_string(), &job, long_ago).to_json()).await;
    assert_eq!(node.answer().await["error"]["data"]["reason"], "ENVELOPE_EXPIRED");
    is_refused(&machine, &job, "ENVELOPE_EXPIRED").await;

    node.say(node.sealed(&job).to_json()).await;
    assert_eq!(node.answer().await["result"]["accepted"], true, "said properly it is heard");
}

/// Gateways speak for their root while it vouches for them. One node speaks for one root.
#[tokio::test]
async fn a_node_speaks_for_one_coordinator() {
    let machine = Machine::start(|_, _| {}).await;
    let mut node = Node::new(&machine);
    let (root, key, now) = (SigningKey::generate(), SigningKey::generate(), Timestamp::now());
    let certified = |until| {
        let certificate = GatewayCertificate::issue(&root, key.verifying_key(), now, until);
        Sealer::certified(key.clone(), &certificate).expect("its own certificate")
    };
    node.sealer = certified(now + MINUTE);
    let job = execution(1, 1);
    node.say(node.sealed(&job).to_json()).await;
    assert_eq!(node.answer().await["result"]["accepted"], true);
    let (coordinator, _) = machine.queue.origin(job.job_key).await.expect("an answer").expect("known");
    assert_eq!(coordinator, root.verifying_key().to_string(), "the root is who it is");

    let late = execution(1, 2);
    node.sealer = certified(now);
    node.say(node.sealed(&late).to_json()).await;
    is_refused(&machine, &late, "BAD_CERTIFICATE").await;
    assert_eq!(node.answer().await["error"]["data"]["reason"], "BAD_CERTIFICATE");

    node.sealer = Sealer::of_root(SigningKey::generate());
    node.say(node.sealed(&late).to_json()).await;
    is_refused(&machine, &late, "UNKNOWN_SIGNER").await;

    // Through a node of its own it is heard, and may not touch the context of another.
    let mut stranger = Node::new(&machine);
    stranger.say(stranger.sealed(&late).to_json()).await;
    assert_eq!(stranger.answer().await["error"]["data"]["reason"], "CONTEXT_CLAIMED");
    assert_eq!(machine.queue.status(late.job_key).await, Ok(None));
}
