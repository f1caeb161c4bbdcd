//! Streams both ways, over the network and within the process.

use rpc::Channel;

use crate::stage::{Authority, Echo, Running, SCHEDULER, local, open_stream, text};

/// Every message comes back, one at a time and while others are on their way.
async fn echoes(channel: &Channel) {
    let (sender, mut answers) = open_stream(channel).await.unwrap();
    for n in 0..3 {
        sender.send(text(n.to_string())).await.unwrap();
        assert_eq!(answers.message().await.unwrap(), Some(text(n.to_string())));
    }
    let sending = async {
        for n in 0..500 {
            sender.send(text(n.to_string())).await.unwrap();
        }
        drop(sender);
    };
    let receiving = async {
        for n in 0..500 {
            assert_eq!(answers.message().await.unwrap(), Some(text(n.to_string())));
        }
        assert_eq!(answers.message().await.unwrap(), None);
    };
    tokio::join!(sending, receiving);
}

/// The handler's task learns that its caller is gone. Over the network it does so only when the
/// caller has let go of both ways: a half that is still held keeps the call alive.
async fn ends_when_the_caller_goes(channel: &Channel, echo: &Echo) {
    let (sender, mut answers) = open_stream(channel).await.unwrap();
    sender.send(text("hello")).await.unwrap();
    answers.message().await.unwrap();
    assert_eq!(*echo.open.borrow(), 1);
    drop((sender, answers));
    echo.open.subscribe().wait_for(|open| *open == 0).await.unwrap();
}

/// The caller learns that the handler has ended, on both ways.
async fn ends_when_the_handler_goes(channel: &Channel) {
    let (sender, mut answers) = open_stream(channel).await.unwrap();
    sender.send(text("end")).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), None);
    drop(answers);
    sender.closed().await;
}

#[tokio::test]
async fn streams_within_the_process() {
    let (echo, _server, channel) = local(SCHEDULER);
    echoes(&channel).await;
    ends_when_the_caller_goes(&channel, &echo).await;
    ends_when_the_handler_goes(&channel).await;
}

#[tokio::test]
async fn streams_over_the_network() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    echoes(&channel).await;
    ends_when_the_caller_goes(&channel, &server.echo).await;
    ends_when_the_handler_goes(&channel).await;
}

#[tokio::test]
async fn a_local_stream_outlives_the_withdrawal_of_its_service() {
    let (_echo, server, channel) = local(SCHEDULER);
    let (sender, mut answers) = open_stream(&channel).await.unwrap();
    server.withdraw();
    sender.send(text("still")).await.unwrap();
    assert_eq!(answers.message().await.unwrap(), Some(text("still")));
}
