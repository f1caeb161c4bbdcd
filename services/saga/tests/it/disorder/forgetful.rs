//! Real servers that forget: the alarm names the stream and the cause, no new event is skipped, and nothing is applied twice.

use testkit::{NatsServer, PATIENCE, TestLog, wait_until};

use super::{COUNTERS, LAST, STREAM, assert_counted, consumer, counting, next, went_back};
use crate::streams::aggregates;
use crate::world::{Keeps, World};

const STORES: [Keeps; 2] = [Keeps::Directory, Keeps::Redis];
/// The number at which a server forgets.
const HALF: u64 = LAST / 2;

async fn publish(world: &World, numbers: std::ops::RangeInclusive<u64>) {
    for n in numbers {
        for counter in COUNTERS {
            next(world, counter, n).await;
        }
    }
}

/// A world that has counted so far, with what it logs from now on.
async fn counted_to(keeps: Keeps, n: u64) -> (World, TestLog) {
    let log = TestLog::of_this_thread();
    let world = counting(World::real(keeps).await).await;
    publish(&world, 1..=n).await;
    for counter in COUNTERS {
        world.until_revision(counter, n + 1).await;
    }
    (world, log)
}

fn server(world: &mut World) -> &mut NatsServer {
    world.ground.nats.as_mut().expect("a real server")
}

/// Has something happen to the server, and waits until the lane is connected to it again.
async fn broken<T>(world: &mut World, happen: impl FnOnce(&mut NatsServer) -> T) -> T {
    let mut connection = world.broker.connection();
    let before = connection.borrow().generation;
    let given = happen(server(world));
    let again = connection.wait_for(|now| now.connected && now.generation > before);
    drop(tokio::time::timeout(PATIENCE, again).await.expect("in time").expect("it goes on"));
    given
}

/// The alarm of a stream was raised so often: a metric and a line of the log both name it and its cause.
async fn assert_alarmed(
    world: &World,
    log: &TestLog,
    (stream, why, message): (&str, &str, &str),
    times: usize,
) {
    world.until_measured(&went_back(stream, why, times as u64)).await;
    let (stream, why) = (format!("stream=\"{stream}\""), format!("why=\"{why}\""));
    let lines =
        log.lines(&["ERROR", "the stream went back: ", message, &stream, &why, "lane=s:acme:counter:0"]);
    assert_eq!(lines.len(), times, "{lines:?} {:?}", log.lines(&["ERROR"]));
}

/// No alarm was raised but these.
fn assert_alarms(log: &TestLog, times: usize) {
    let lines = log.lines(&["ERROR"]);
    assert_eq!(lines.len(), times, "{lines:?}");
}

#[tokio::test]
async fn a_stream_that_was_deleted_and_made_anew_is_named_and_read() {
    for keeps in STORES {
        let (world, log) = counted_to(keeps, HALF).await;
        let deleted =
            world.ground.nats.as_ref().expect("a server").ask(&format!("$JS.API.STREAM.DELETE.{STREAM}"), "");
        assert!(deleted.contains("\"success\":true"), "{deleted}");
        world.make_aggregates().await;
        // Some of them once more, under other sequences.
        publish(&world, HALF / 2..=LAST).await;
        assert_counted(&world).await;
        assert_alarmed(&world, &log, (STREAM, "made_anew", "the stream was made anew"), 1).await;
        assert_alarms(&log, 1);
    }
}

#[tokio::test]
async fn a_server_on_an_empty_directory_is_named_and_read() {
    for keeps in STORES {
        let (mut world, log) = counted_to(keeps, HALF).await;
        broken(&mut world, NatsServer::wipe).await;
        let [commands, events] = saga::lane::streams(true);
        let names = [commands.name.clone(), events.name.clone(), STREAM.to_owned()];
        for stream in [commands, events, aggregates()] {
            let make = async || world.outside.ensure_stream(&stream).await.ok();
            assert_eq!(wait_until(make, PATIENCE, "it is made").await, []);
        }
        publish(&world, HALF / 2..=LAST).await;
        assert_counted(&world).await;
        // Each was read by this lane.
        for stream in &names {
            assert_alarmed(&world, &log, (stream, "made_anew", "the stream was made anew"), 1).await;
        }
        assert_alarms(&log, names.len());
    }
}

#[tokio::test]
async fn a_consumer_that_was_deleted_is_named_and_made_anew() {
    for keeps in STORES {
        let (world, log) = counted_to(keeps, HALF).await;
        let consumer = consumer(&world);
        world.outside.delete_cursor(STREAM, &consumer).await.expect("deleted");
        publish(&world, HALF + 1..=LAST).await;
        assert_counted(&world).await;
        let stream = format!("stream=\"{STREAM}\"");
        let lines = log.lines(&["cursor lost, opening another: ", &consumer, "deleted", &stream]);
        assert_eq!(lines.len(), 1, "{lines:?} {:?}", log.lines(&["cursor lost, opening another"]));
        assert_eq!(world.metrics.cursor_resets.with_label_values(&["deleted"]).get(), 1);
        // The stream has lost nothing.
        assert_alarms(&log, 0);
    }
}

#[tokio::test]
async fn a_tail_that_was_lost_is_named_and_what_comes_is_read() {
    for keeps in STORES {
        let (mut world, log) = counted_to(keeps, HALF).await;
        let copy = broken(&mut world, NatsServer::snapshot).await;
        publish(&world, HALF + 1..=HALF + 5).await;
        for counter in COUNTERS {
            world.until_revision(counter, HALF + 6).await;
        }
        // Positions of that are kept.
        world.stop().await;
        broken(&mut world, |server| server.restore(&copy)).await;
        world.own();
        assert_alarmed(&world, &log, (STREAM, "shorter", "its end is before the position"), 1).await;
        publish(&world, HALF + 1..=LAST).await;
        assert_counted(&world).await;
    }
}

#[tokio::test]
async fn sequences_that_a_server_uses_again_are_named_and_read() {
    for keeps in STORES {
        let (mut world, log) = counted_to(keeps, HALF).await;
        let copy = broken(&mut world, NatsServer::snapshot).await;
        publish(&world, HALF + 1..=HALF + 5).await;
        for counter in COUNTERS {
            world.until_revision(counter, HALF + 6).await;
        }
        world.stop().await;
        broken(&mut world, |server| server.restore(&copy)).await;
        // The lost messages do not come again; new ones have their sequences, and end behind them.
        publish(&world, HALF + 6..=LAST).await;
        world.own();
        assert_counted(&world).await;
        let message = "another message has the sequence of the last one read";
        assert_alarmed(&world, &log, (STREAM, "other_message", message), 1).await;
        let of_aggregates = log.lines(&["ERROR", STREAM]);
        assert_eq!(of_aggregates.len(), 1, "{of_aggregates:?}");
    }
}
