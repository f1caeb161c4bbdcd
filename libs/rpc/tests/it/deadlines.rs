//! Deadlines: bounded, handed on, and the end of streams as well.

use std::time::{Duration, Instant};

use rpc::{Channel, ErrorView};
use tonic::{Code, Request, Status};

use crate::stage::{Authority, PATIENCE, Running, SCHEDULER, call, local, open_stream_with, text};

async fn left(
    channel: &Channel,
    method: &str,
    argument: &str,
    requested: Option<Duration>,
) -> Option<Duration> {
    let mut request = Request::new(text(argument));
    if let Some(requested) = requested {
        request.set_timeout(requested);
    }
    let remaining = call(channel, method, request).await.unwrap();
    remaining.parse().ok().map(Duration::from_millis)
}

/// Checks that a call to a quick method waits no longer than a minute, whatever its deadline asks for.
async fn are_bounded(channel: &Channel) {
    let minute = Duration::from_secs(60);
    for (requested, want) in
        [(None, minute), (Some(Duration::from_secs(3600)), minute), (Some(minute / 2), minute / 2)]
    {
        let remaining = left(channel, "Left", "", requested).await.unwrap();
        assert!(
            remaining <= want && remaining > want - Duration::from_secs(20),
            "{requested:?}: {remaining:?}"
        );
    }
}

#[tokio::test]
async fn deadlines_are_bounded_in_the_process() {
    let (_echo, _server, channel) = local(SCHEDULER);
    are_bounded(&channel).await;
}

#[tokio::test]
async fn deadlines_are_bounded_over_the_network() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    are_bounded(&server.channel(&authority.issue(SCHEDULER))).await;
}

#[tokio::test]
async fn a_deadline_is_handed_on_over_two_hops() {
    let authority = Authority::new();
    let files = authority.issue(SCHEDULER);
    let last = Running::start(&authority).await;
    let middle = Running::start_before(&authority, last.channel(&files)).await;
    let first = Running::start_before(&authority, middle.channel(&files)).await;
    let channel = first.channel(&files);
    let requested = Duration::from_secs(30);
    let remaining = left(&channel, "Relay", "Relay Left", Some(requested)).await.unwrap();
    // Each hop keeps 50 ms for the way back.
    assert!(remaining <= requested - Duration::from_millis(100), "{remaining:?}");
    assert!(remaining > requested - Duration::from_secs(20), "{remaining:?}");
    // Each server bounds it as it sees fit.
    let remaining = left(&channel, "Relay", "Relay Left", Some(PATIENCE)).await.unwrap();
    assert!(remaining <= Duration::from_secs(60), "{remaining:?}");

    let mut request = Request::new(text("Relay Never"));
    request.set_timeout(Duration::from_millis(400));
    let begun = Instant::now();
    let status = call(&channel, "Relay", request).await.unwrap_err();
    is_over(&status);
    assert!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn nothing_is_called_without_time_for_it() {
    let authority = Authority::new();
    // Nothing listens there, and no call is made.
    let next = Channel::remote("https://127.0.0.1:1", &authority.issue(SCHEDULER), None).unwrap();
    let first = Running::start_before(&authority, next).await;
    let mut request = Request::new(text("Left"));
    request.set_timeout(Duration::from_millis(45));
    let status = call(&first.channel(&authority.issue(SCHEDULER)), "Relay", request).await.unwrap_err();
    is_over(&status);
}

async fn ends_a_stream(channel: &Channel) {
    let opened = open_stream_with(channel, |request| request.set_timeout(Duration::from_millis(300))).await;
    let (sender, mut answers) = opened.unwrap();
    sender.send(text("hello")).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), Some(text("hello")));
    let status = answers.message().await.unwrap_err();
    is_over(&status);
    // The handler learns that it is over.
    sender.closed().await;
}

fn is_over(status: &Status) {
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status:?}");
    assert_eq!(ErrorView::from(status).reason, "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn a_deadline_ends_a_stream() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    ends_a_stream(&server.channel(&authority.issue(SCHEDULER))).await;
    let (_echo, _server, channel) = local(SCHEDULER);
    ends_a_stream(&channel).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_without_a_deadline_goes_on() {
    let (_echo, _server, channel) = local(SCHEDULER);
    let (sender, mut answers) = open_stream_with(&channel, |_| ()).await.unwrap();
    tokio::time::advance(Duration::from_secs(24 * 3600)).await;
    sender.send(text("still")).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), Some(text("still")));
}

#[tokio::test(start_paused = true)]
async fn calls_end_where_their_patience_does() {
    let (_echo, _server, channel) = local(SCHEDULER);
    for (method, want) in [("Never", Duration::from_secs(60)), ("Wait", PATIENCE)] {
        let begun = tokio::time::Instant::now();
        is_over(&call(&channel, method, Request::new(text(""))).await.unwrap_err());
        let took = begun.elapsed();
        assert!(took >= want && took < want + Duration::from_secs(1), "{method}: {took:?}");
    }
}
