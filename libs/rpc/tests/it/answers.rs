//! Contents of every answer, and the fate of those that tonic gives by itself.

use std::time::Duration;

use identity::Identity;
use rpc::{CallsMax, Channel, ErrorView};
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::{Bytes, http};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;
use tonic_types::StatusExt as _;
use tower::Service as _;

use crate::stage::{Authority, ROUTER, Running, SCHEDULER, Text, call, local, open_stream, text, who_am_i};

struct Stage {
    authority: Authority,
    server: Running,
}

impl Stage {
    async fn new() -> Self {
        let authority = Authority::new();
        let server = Running::start(&authority).await;
        Self { authority, server }
    }

    fn scheduler(&self) -> Channel {
        self.server.channel(&self.authority.issue(SCHEDULER))
    }
}

/// Sends these bytes as a call, and gives how it failed.
async fn raw(channel: &Channel, path: &str, headers: &[(&str, &str)], body: Vec<u8>) -> Status {
    let mut request = http::Request::post(path).header("te", "trailers");
    if headers.iter().all(|(name, _)| *name != "content-type") {
        request = request.header("content-type", "application/grpc");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request.body(Body::new(Once(Some(Bytes::from(body))))).unwrap();
    let mut channel = channel.clone();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    let answer = channel.call(request).await.unwrap();
    assert!(answer.headers().contains_key("x-request-id"));
    Status::from_header_map(answer.headers()).expect("the status stands in the headers")
}

/// A body of one piece.
struct Once(Option<Bytes>);

impl http_body::Body for Once {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        std::task::Poll::Ready(self.0.take().map(|bytes| Ok(http_body::Frame::data(bytes))))
    }
}

fn is(status: &Status, code: Code, reason: &str) {
    let view = ErrorView::from(status);
    assert_eq!((status.code(), view.reason.as_str()), (code, reason), "{status:?}");
    let id = status.get_details_request_info().expect("always there").request_id;
    assert!(!id.is_empty());
}

const WHO_AM_I: &str = "/test.Echo/WhoAmI";

#[tokio::test]
async fn what_cannot_be_read_is_an_invalid_argument() {
    let stage = Stage::new().await;
    let channel = stage.scheduler();
    for body in [
        // A field of 127 bytes that has none; a field number of 0; half a message; flags that do not exist.
        vec![0, 0, 0, 0, 2, 0x0a, 0x7f],
        vec![0, 0, 0, 0, 2, 0, 0],
        vec![0, 0, 0, 0, 9, 1],
        vec![7, 0, 0, 0, 0],
        // Compressed, and no header says how; nothing at all.
        vec![1, 0, 0, 0, 0],
        vec![],
    ] {
        let status = raw(&channel, WHO_AM_I, &[], body.clone()).await;
        is(&status, Code::InvalidArgument, "INVALID_REQUEST");
        // It is about no field.
        assert!(status.message().starts_with("the message cannot be read: "), "{status}");
        assert_eq!(ErrorView::from(&status).violations.len(), 1, "{body:?}");
    }
}

#[tokio::test]
async fn what_is_not_here_is_unimplemented() {
    let stage = Stage::new().await;
    // Also to whom nothing is said otherwise.
    for channel in [stage.scheduler(), stage.server.channel(&stage.authority.anonymous())] {
        for path in
            ["/test.Echo/Other", "/test.Other/WhoAmI", "/nothing", "/", "/grpc.health.v1.Health/Other"]
        {
            let status = raw(&channel, path, &[], vec![0; 5]).await;
            is(&status, Code::Unimplemented, "UNIMPLEMENTED");
            assert!(status.message().contains(path), "{status}");
        }
    }
}

#[tokio::test]
async fn an_unknown_compression_is_named() {
    let stage = Stage::new().await;
    let headers = [("grpc-encoding", "snappy")];
    let status = raw(&stage.scheduler(), WHO_AM_I, &headers, vec![0; 5]).await;
    is(&status, Code::Unimplemented, "UNIMPLEMENTED");
    assert!(status.message().contains("snappy"), "{status}");
    assert!(status.metadata().get("grpc-accept-encoding").is_some(), "{status:?}");
}

#[tokio::test]
async fn a_message_that_is_too_large_names_the_limit() {
    let stage = Stage::new().await;
    let large = text("x".repeat(5 * 1024 * 1024));
    let status = call(&stage.scheduler(), "WhoAmI", Request::new(large)).await.unwrap_err();
    is(&status, Code::ResourceExhausted, "LIMIT_EXCEEDED");
    let metadata = ErrorView::from(&status).metadata;
    assert_eq!(metadata["limit"], "rpc_message_bytes_max");
    assert_eq!(metadata["max"], (4 * 1024 * 1024).to_string());
    assert!(metadata["asked"].parse::<usize>().unwrap() > 5 * 1024 * 1024);
}

#[tokio::test]
async fn metadata_that_is_too_large_names_the_limit() {
    let stage = Stage::new().await;
    let channel = stage.scheduler();
    let with = |bytes: usize| {
        let mut request = Request::new(text("x"));
        request.metadata_mut().insert("x-padding", "x".repeat(bytes).parse().unwrap());
        request
    };
    call(&channel, "WhoAmI", with(12 * 1024)).await.unwrap();
    let status = call(&channel, "WhoAmI", with(20 * 1024)).await.unwrap_err();
    is(&status, Code::ResourceExhausted, "LIMIT_EXCEEDED");
    assert_eq!(ErrorView::from(&status).metadata["limit"], "rpc_header_list_bytes_max");
    call(&channel, "WhoAmI", with(1)).await.expect("the connection is as good as before");
}

#[tokio::test]
async fn a_status_without_a_reason_gets_one() {
    let stage = Stage::new().await;
    for channel in [stage.scheduler(), local(SCHEDULER).2] {
        for code in 1..=16 {
            let request = Request::new(text(code.to_string()));
            let Err(status) = call(&channel, "Bare", request).await else { panic!("{code} is an error") };
            assert!(!ErrorView::from(&status).reason.is_empty(), "{status:?}");
        }
    }
}

async fn header(channel: &Channel, name: &str, prepare: impl FnOnce(&mut Request<Text>)) -> String {
    let mut request = Request::new(text(name));
    prepare(&mut request);
    call(channel, "Header", request).await.unwrap()
}

#[tokio::test]
async fn a_request_id_goes_all_the_way() {
    let stage = Stage::new().await;
    let first = Running::start_before(&stage.authority, stage.scheduler()).await;
    let channel = first.channel(&stage.authority.issue(SCHEDULER));
    let mut request = Request::new(text("Header x-request-id"));
    request.metadata_mut().insert("x-request-id", "mine-7".parse().unwrap());
    assert_eq!(call(&channel, "Relay", request).await.unwrap(), "mine-7");
    // An invalid id is replaced, and a missing one is made.
    let made = call(&channel, "Relay", Request::new(text("Header x-request-id"))).await.unwrap();
    assert_eq!(made.len(), 32, "{made}");
    assert_eq!(header(&channel, "x-request-id", |_| ()).await, "none", "the request stays as it came");

    let mut request = Request::new(text("5"));
    request.metadata_mut().insert("x-request-id", "mine-8".parse().unwrap());
    let status = call(&channel, "Bare", request).await.unwrap_err();
    assert_eq!(status.metadata().get("x-request-id").unwrap(), "mine-8");
    assert_eq!(status.get_details_request_info().unwrap().request_id, "mine-8");
}

#[tokio::test]
async fn too_many_calls_are_refused_and_services_have_some_left() {
    let authority = Authority::new();
    let max = CallsMax { quick: 8, waiting: 1, streams: 8 };
    let server = Running::start_with(&authority, max, |server| server).await;
    let channel = server.channel(&authority.issue(SCHEDULER));
    let mut hanging = JoinSet::new();
    for _ in 0..8 {
        let channel = channel.clone();
        hanging.spawn(async move { call(&channel, "Never", Request::new(text(""))).await });
    }
    // They are under way when the first one more is refused.
    let refused = loop {
        if let Err(status) = who_am_i(&channel).await {
            break status;
        }
    };
    is(&refused, Code::ResourceExhausted, "OVERLOADED");
    assert_eq!(ErrorView::from(&refused).retry_after, Some(Duration::from_millis(500)));
    // Streams and calls that wait have places of their own.
    let (sender, mut answers) = open_stream(&channel).await.unwrap();
    sender.send(text("hello")).await.unwrap();
    answers.message().await.unwrap();
    // Who goes gives a place back, of which the last quarter is for services.
    hanging.abort_all();
    while hanging.join_next().await.is_some() {}
    let other = server.channel(&authority.issue(ROUTER));
    while who_am_i(&other).await.is_err() {}
    let anonymous = server.channel(&authority.anonymous());
    header(&anonymous, "x", |_| ()).await;
}

#[tokio::test]
async fn health_answers_when_nothing_else_does() {
    let authority = Authority::new();
    let max = CallsMax { quick: 0, waiting: 0, streams: 0 };
    let none = Running::start_with(&authority, max, |server| server).await;
    let refused = who_am_i(&none.channel(&authority.issue(SCHEDULER))).await.unwrap_err();
    is(&refused, Code::ResourceExhausted, "OVERLOADED");
    let mut health = tonic_health::pb::health_client::HealthClient::new(none.channel(&authority.anonymous()));
    health.check(text("")).await.unwrap();
}

/// A call of a method that is open to anyone, whose message never comes.
async fn stall(channel: Channel) -> Status {
    let mut grpc = tonic::client::Grpc::new(channel);
    grpc.ready().await.unwrap();
    let path = "/test.Echo/Header".parse().unwrap();
    let nothing = Request::new(futures_util::stream::pending::<Text>());
    let answer = grpc.client_streaming(nothing, path, ProstCodec::<Text, Text>::default()).await;
    answer.expect_err("it has no message")
}

#[tokio::test]
async fn strangers_that_stall_take_the_places_of_strangers_alone() {
    let authority = Authority::new();
    let max = CallsMax { quick: 8, waiting: 1, streams: 8 };
    let server = Running::start_with(&authority, max, |server| server).await;
    let stranger = server.channel(&authority.anonymous());
    let mut stalling = JoinSet::new();
    for _ in 0..16 {
        stalling.spawn(stall(stranger.clone()));
    }
    let refused = stalling.join_next().await.unwrap().unwrap();
    is(&refused, Code::ResourceExhausted, "OVERLOADED");
    who_am_i(&server.channel(&authority.issue(Identity::Admin))).await.expect("there is room for others");
}

#[tokio::test]
async fn a_connection_watches_the_health_of_a_server_so_often_and_no_more() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.anonymous());
    let mut watches = Vec::new();
    let refused = loop {
        let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
        match health.watch(text("")).await {
            Ok(watch) => watches.push(watch),
            Err(status) => break status,
        }
        assert!(watches.len() <= 32, "any number");
    };
    is(&refused, Code::ResourceExhausted, "OVERLOADED");
    let other = server.channel(&authority.anonymous());
    tonic_health::pb::health_client::HealthClient::new(other).check(text("")).await.unwrap();
    drop(watches);
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel);
    while health.check(text("")).await.is_err() {}
}
