//! Both brokers do the same, and what breaks is noticed.

mod conformance;
mod faults;
mod harness;
mod jetstream;
mod secured;
mod simulated;

use std::sync::Arc;
use std::time::Duration;

use broker::{
    BrokerError, CursorError, CursorSpec, CursorStart, Deliveries, Headers, MessageBroker, Publication,
    PublicationAck, PullLimit, StreamDelivery, StreamSpec,
};
use bytes::Bytes;
use testkit::PATIENCE;

pub(crate) use harness::BrokerUnderTest;

/// The stream of most tests.
const STREAM: &str = "WORKFLOW_COMMANDS";
/// The consumer of most tests.
const CONSUMER: &str = "sg_order_0_a0_acme";
/// Room for everything that a test publishes.
const ROOM: PullLimit = PullLimit { messages: 256, bytes: 16 * 1024 * 1024 };

/// Runs a case on both brokers.
macro_rules! on_both_brokers {
    ($($case:ident)*) => {
        mod simulation {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(crate::BrokerUnderTest::simulated()).await;
                }
            )*
        }

        mod in_jetstream {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $case() {
                    super::$case(crate::BrokerUnderTest::in_jetstream().await).await;
                }
            )*
        }
    };
}
pub(crate) use on_both_brokers;

fn spec() -> StreamSpec {
    StreamSpec::managed(
        STREAM,
        &["tenant.*.effect.*.*", "tenant.*.workflow.*.*"],
        Duration::from_secs(7 * 86_400),
    )
}

fn cursor(start: CursorStart) -> CursorSpec {
    CursorSpec::new(STREAM, CONSUMER, "tenant.acme.effect.pay.*", start)
}

fn outgoing(subject: &str, id: &str) -> Publication {
    Publication {
        subject: subject.to_owned(),
        message_id: id.to_owned(),
        headers: Headers::new().with("Mycora-Saga", "order"),
        payload: Bytes::from(format!("payload of {id}")),
    }
}

/// A command of the tenant whose cursor is open in most tests.
fn command(id: &str) -> Publication {
    outgoing(&format!("tenant.acme.effect.pay.{id}"), id)
}

/// Publishes, and waits for the acknowledgement.
async fn publish(broker: &dyn MessageBroker, outgoing: Publication) -> Result<PublicationAck, BrokerError> {
    broker.publish(outgoing).await?.await
}

/// Publishes commands with these numbers; gives their sequences.
async fn publish_all(broker: &dyn MessageBroker, numbers: impl IntoIterator<Item = u64>) -> Vec<u64> {
    let mut sent = Vec::new();
    for number in numbers {
        sent.push(broker.publish(command(&number.to_string())).await.expect("it is sent"));
    }
    let mut sequences = Vec::new();
    for publishing in sent {
        sequences.push(publishing.await.expect("it is stored").sequence);
    }
    sequences
}

async fn open(broker: &dyn MessageBroker, start: CursorStart) -> Box<dyn Deliveries> {
    broker.open(&cursor(start)).await.expect("a cursor")
}

/// Waits for what a cursor gives next.
async fn turn(deliveries: &mut dyn Deliveries, room: PullLimit) -> Result<StreamDelivery, CursorError> {
    tokio::time::timeout(PATIENCE, deliveries.next(room)).await.expect("something comes, or it ends")
}

async fn next(deliveries: &mut dyn Deliveries) -> StreamDelivery {
    turn(deliveries, ROOM).await.expect("a delivery")
}

/// Reads and acknowledges so many deliveries; gives their sequences.
async fn read(deliveries: &mut dyn Deliveries, count: usize) -> Vec<u64> {
    let mut sequences = Vec::new();
    while sequences.len() < count {
        let delivered = next(deliveries).await;
        delivered.receipt.ack();
        sequences.push(delivered.sequence);
    }
    sequences
}

/// Reads until the deliveries end; gives their sequences, and why.
async fn read_to_the_end(deliveries: &mut dyn Deliveries) -> (Vec<u64>, CursorError) {
    let mut sequences = Vec::new();
    loop {
        match turn(deliveries, ROOM).await {
            Ok(delivered) => sequences.push(delivered.sequence),
            Err(lost) => return (sequences, lost),
        }
    }
}

/// A broker with the stream of most tests.
async fn with_stream(world: &BrokerUnderTest) -> Arc<dyn MessageBroker> {
    let broker = world.broker();
    assert_eq!(broker.ensure_stream(&spec()).await, Ok(vec![]));
    broker
}
