//! Large messages over real connections: how many of them are held at once.

use std::future::Future;
use std::pin::Pin;

use identity::SigningKey;
use prometheus::Registry;
use rpc::{Channel, ErrorView, MessageBytesMax};
use tonic::{Code, Request, Status, Streaming, transport};
use tonic_prost::ProstCodec;

use crate::known::Known;
use crate::stage::{ACTOR, ACTOR_ID, Authority, PATIENCE, Running, SCHEDULER, Text, call, text};

/// With what its message says of itself; it is counted in steps of a KiB.
const LARGE: usize = 60 * 1024;
const COUNTED: usize = 61 * 1024;
/// More than goes out to a caller that reads nothing, and not so much that two go out at once.
const ANSWER: usize = 160 * 1024;
/// One caller may have three of these received and one handled, and one of those answered.
const MAX: MessageBytesMax =
    MessageBytesMax { received: 4 * 192 * 1024, handled: 4 * 64 * 1024, answered: 4 * 192 * 1024 };

type Calling<'a> = Pin<Box<dyn Future<Output = Result<String, Status>> + 'a>>;

struct Scene {
    server: Running,
    registry: Registry,
    authority: Authority,
}

impl Scene {
    async fn new() -> Self {
        let authority = Authority::new();
        let known = Known::with(ACTOR_ID, &SigningKey::generate());
        let server = Running::start_holding(&authority, known, MAX).await;
        let registry = Registry::new();
        server.mount.metrics().register(&registry).unwrap();
        Self { server, registry, authority }
    }

    fn actor(&self) -> Channel {
        self.server.channel(&self.authority.issue(ACTOR))
    }

    fn held(&self, kind: &str) -> usize {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == "mycora_message_bytes_in_flight");
        let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
        let of_kind = metrics.iter().find(|metric| metric.get_label()[0].value() == kind);
        of_kind.map_or(0, |metric| metric.get_gauge().get_value() as usize)
    }

    /// Goes on with these calls, none of which ends, until so many bytes are held.
    async fn until_held(&self, kind: &str, bytes: usize, calls: &mut [Calling<'_>]) {
        let reached = async {
            while self.held(kind) != bytes {
                for call in calls.iter_mut() {
                    let polled = futures_util::poll!(call);
                    assert!(polled.is_pending(), "{polled:?}");
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("so much is held");
    }
}

fn large<'a>(channel: &'a Channel, method: &'a str) -> Calling<'a> {
    Box::pin(call(channel, method, Request::new(text("x".repeat(LARGE)))))
}

/// On one connection: those that wait are read, so that they keep nobody from being read.
#[tokio::test]
async fn a_large_message_waits_until_its_caller_has_room_for_it() {
    let scene = Scene::new().await;
    let channel = scene.actor();
    let mut first = [large(&channel, "Wait")];
    scene.until_held("handled", COUNTED, &mut first).await;
    let mut second = [large(&channel, "WhoAmI")];
    scene.until_held("received", 2 * COUNTED, &mut second).await;
    let small = call(&channel, "WhoAmI", Request::new(text(""))).await;
    assert_eq!(small.unwrap(), ACTOR.to_string(), "small ones go on");
    assert!(futures_util::poll!(&mut second[0]).is_pending(), "there is room for one");
    drop(first);
    let [second] = second;
    let answered = tokio::time::timeout(PATIENCE, second).await.expect("it has room now");
    assert_eq!(answered.unwrap(), ACTOR.to_string());
    scene.until_held("received", 0, &mut []).await;
    assert_eq!(scene.held("handled"), 0);
}

#[tokio::test]
async fn more_than_its_caller_may_send_is_refused_and_services_are_not() {
    let scene = Scene::new().await;
    let channel = scene.actor();
    let mut held = [large(&channel, "Wait"), large(&channel, "Wait"), large(&channel, "Wait")];
    scene.until_held("received", 3 * COUNTED, &mut held).await;
    let refused = large(&channel, "WhoAmI").await.expect_err("it has sent as much as it may");
    let view = ErrorView::from(&refused);
    assert_eq!((view.code, view.reason.as_str()), (Code::ResourceExhausted, "OVERLOADED"));
    assert!(view.retry_after.is_some());
    let service = scene.server.channel(&scene.authority.issue(SCHEDULER));
    assert_eq!(large(&service, "WhoAmI").await.unwrap(), SCHEDULER.to_string());
    drop(held);
    scene.until_held("received", 0, &mut []).await;
    large(&channel, "WhoAmI").await.expect("there is room again");
}

/// An answer of so many bytes that is not read before it is asked for.
async fn ask(channel: &transport::Channel, bytes: usize) -> Result<Streaming<Text>, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
    let (request, path) = (Request::new(text(bytes.to_string())), "/test.Echo/Large".parse().unwrap());
    let codec = ProstCodec::<Text, Text>::default();
    grpc.server_streaming(request, path, codec).await.map(tonic::Response::into_inner)
}

async fn read(mut answer: Streaming<Text>) -> usize {
    answer.message().await.unwrap().unwrap().service.len()
}

#[tokio::test]
async fn a_large_answer_waits_until_its_caller_has_taken_others() {
    let scene = Scene::new().await;
    let narrow = scene.server.narrow(&scene.authority, ACTOR).await;
    let unread = ask(&narrow, ANSWER).await.expect("there is room");
    let (wide, service) = (scene.actor(), scene.server.channel(&scene.authority.issue(SCHEDULER)));
    let request = || Request::new(text(ANSWER.to_string()));
    let mut second = Box::pin(call(&wide, "Large", request()));
    // Those that come behind it on its connection have all been answered.
    for _ in 0..20 {
        assert!(futures_util::poll!(&mut second).is_pending(), "there is room for one");
        let small = call(&wide, "WhoAmI", Request::new(text(""))).await;
        assert_eq!(small.unwrap(), ACTOR.to_string(), "small ones go on");
    }
    assert!((1..=ANSWER + 1024).contains(&scene.held("answered")), "{}", scene.held("answered"));
    let of_service = call(&service, "Large", request()).await;
    assert_eq!(of_service.unwrap().len(), ANSWER, "services are not counted");
    assert!(futures_util::poll!(&mut second).is_pending(), "nobody has read anything");
    assert_eq!(read(unread).await, ANSWER);
    let second = tokio::time::timeout(PATIENCE, second).await.expect("it has room now");
    assert_eq!(second.unwrap().len(), ANSWER);
    scene.until_held("answered", 0, &mut []).await;
}

#[tokio::test]
async fn the_room_of_an_answer_is_free_when_its_caller_goes_away() {
    let scene = Scene::new().await;
    let narrow = scene.server.narrow(&scene.authority, ACTOR).await;
    let unread = ask(&narrow, ANSWER).await.expect("there is room");
    assert!(scene.held("answered") > 0, "most of it cannot go out");
    drop((unread, narrow));
    scene.until_held("answered", 0, &mut []).await;
}
