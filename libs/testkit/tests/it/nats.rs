//! A NATS server that lives, dies, forgets and goes back.

use testkit::{NatsServer, PATIENCE, wait_until_blocking};

fn messages(nats: &NatsServer) -> Option<u64> {
    let answer = nats.ask("$JS.API.STREAM.INFO.EVENTS", "");
    let (_, rest) = answer.split_once("\"messages\":")?;
    rest.split(',').next()?.parse().ok()
}

fn create(nats: &NatsServer) {
    let request = "{\"name\":\"EVENTS\",\"subjects\":[\"events.>\"],\"storage\":\"file\"}";
    let answer = nats.ask("$JS.API.STREAM.CREATE.EVENTS", request);
    assert!(answer.contains("\"did_create\":true"), "{answer}");
}

/// The sequence that a message got.
fn publish(nats: &NatsServer, text: &str) -> String {
    let answer = nats.ask("events.a", text);
    let sequence = answer.split_once("\"seq\":").map(|(_, rest)| rest);
    let digits = sequence.expect(&answer).chars().take_while(char::is_ascii_digit);
    digits.collect()
}

#[test]
fn a_nats_server_lives_dies_and_comes_back() {
    let mut nats = NatsServer::start();
    assert!(nats.info().contains("\"jetstream\":true"), "{}", nats.info());
    create(&nats);
    assert_eq!(publish(&nats, "one"), "1");
    let (pid, url) = (nats.pid(), nats.url());
    nats.restart();
    assert_ne!(nats.pid(), pid);
    assert_eq!((messages(&nats), nats.url()), (Some(1), url));
    nats.pause();
    nats.resume();
    assert_eq!(publish(&nats, "two"), "2");
}

#[test]
fn a_nats_server_forgets_and_goes_back() {
    let mut nats = NatsServer::start();
    create(&nats);
    assert_eq!(publish(&nats, "one"), "1");
    let copy = nats.snapshot();
    assert_eq!(publish(&nats, "two"), "2");
    nats.restore(&copy);
    assert_eq!(messages(&nats), Some(1));
    // The sequence of what was acknowledged is given to another message.
    assert_eq!(publish(&nats, "other"), "2");
    nats.empty("EVENTS");
    assert_eq!(messages(&nats), Some(0));
    assert_eq!(publish(&nats, "three"), "3");
    nats.wipe();
    let is_gone = || nats.ask("$JS.API.STREAM.INFO.EVENTS", "").contains("stream not found").then_some(());
    wait_until_blocking(is_gone, PATIENCE, "nothing is left of the stream");
}
