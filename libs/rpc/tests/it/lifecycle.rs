//! Stopping, and coming back.

use identity::{Identity, ServiceName};
use prometheus::Registry;
use rpc::{Channel, DrainOutcome, ErrorView, RetryAdvice};
use testkit::{FaultProxy, ProxyFault, ProxyTarget};
use tonic::{Code, Request};

use crate::stage::{Authority, Running, SCHEDULER, call, open_stream, text, who_am_i};

/// Calls that are given up together: more than h2 puts up with by itself, and fewer than a connection may have open.
const GIVEN_UP: usize = 200;
/// So often every task of this thread has its turn: none of them waits for anything but another one.
const ROUNDS: usize = 100;

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_stop() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    who_am_i(&channel).await.unwrap();
    assert_eq!(server.stop().await, DrainOutcome::Completely);
}

#[tokio::test]
async fn a_stream_that_goes_on_is_cut_at_the_deadline() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    let (sender, mut answers) = open_stream(&channel).await.unwrap();
    sender.send(text("hello")).await.unwrap();
    answers.message().await.unwrap();
    assert_eq!(server.stop().await, DrainOutcome::Cut);
    let broken = answers.message().await.unwrap_err();
    assert!(matches!(RetryAdvice::of(&broken), RetryAdvice::Again { .. }), "{broken:?}");
    let view = ErrorView::from(&broken);
    assert_eq!((view.code, view.reason.as_str()), (Code::Unavailable, "PEER_UNAVAILABLE"), "{view}");
}

/// Imitates a client that was stopped for a while, or whose server was: what it gave up meanwhile arrives in one piece.
#[tokio::test]
async fn a_client_that_gives_up_many_calls_at_once_keeps_its_connection() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let registry = Registry::new();
    server.mount.metrics().register(&registry).unwrap();
    let proxy = FaultProxy::start(ProxyTarget::Tcp(server.address)).await;
    let address = format!("https://{}", proxy.address());
    let channel = Channel::remote(&address, &authority.issue(SCHEDULER), None).unwrap();
    who_am_i(&channel).await.unwrap();

    proxy.set(ProxyFault::Hold);
    let never = || Box::pin(call(&channel, "Never", Request::new(text(""))));
    let mut calls: Vec<_> = (0..GIVEN_UP).map(|_| never()).collect();
    for _ in 0..ROUNDS {
        for call in &mut calls {
            assert!(futures_util::poll!(call).is_pending());
        }
        tokio::task::yield_now().await;
    }
    drop(calls);
    for _ in 0..ROUNDS {
        tokio::task::yield_now().await;
    }
    proxy.restore();
    who_am_i(&channel).await.unwrap();
    let families = registry.gather();
    let connections = families.iter().find(|family| family.name() == "mycora_connections_total").unwrap();
    let count: f64 = connections.get_metric().iter().map(|metric| metric.get_counter().get_value()).sum();
    assert_eq!(count, 1.0, "the connection was ended, and another one made");
}

#[tokio::test]
async fn a_channel_finds_its_server_again() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let address = server.address;
    let channel = server.channel(&authority.issue(SCHEDULER));
    who_am_i(&channel).await.unwrap();
    server.stop().await;
    assert_eq!(who_am_i(&channel).await.unwrap_err().code(), Code::Unavailable);
    let files = authority.issue(Identity::Service(ServiceName::Storage));
    let _again = Running::start_on(address, &files).await;
    assert_eq!(who_am_i(&channel).await.unwrap(), "service/scheduler");
}
