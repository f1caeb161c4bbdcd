//! Stopping, and coming back.

use identity::{Identity, ServiceName};
use rpc::{Drained, Retry};
use tonic::Code;

use crate::stage::{Authority, Running, SCHEDULER, open_stream, text, who_am_i};

#[tokio::test]
async fn idle_connections_do_not_hold_up_a_stop() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    who_am_i(&channel).await.unwrap();
    assert_eq!(server.stop().await, Drained::Completely);
}

#[tokio::test]
async fn a_stream_that_goes_on_is_cut_at_the_deadline() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    let (sender, mut answers) = open_stream(&channel).await.unwrap();
    sender.send(text("hello")).await.unwrap();
    answers.message().await.unwrap();
    assert_eq!(server.stop().await, Drained::Cut);
    let broken = answers.message().await.unwrap_err();
    assert!(matches!(Retry::of(&broken), Retry::Again { .. }), "{broken:?}");
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
