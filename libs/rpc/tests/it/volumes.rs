//! Large messages over real connections: how many of them are held at once.

use std::future::Future;
use std::pin::Pin;

use identity::SigningKey;
use prometheus::Registry;
use rpc::{Channel, ErrorView, MessageBytesMax};
use tonic::{Code, Request, Status};

use crate::known::Known;
use crate::stage::{ACTOR, ACTOR_ID, Authority, PATIENCE, Running, SCHEDULER, call, text};

/// With what its message says of itself; it is counted in steps of a KiB.
const LARGE: usize = 60 * 1024;
const COUNTED: usize = 61 * 1024;
/// One caller may have three of these received, and one handled.
const MAX: MessageBytesMax = MessageBytesMax { received: 4 * 192 * 1024, handled: 4 * 64 * 1024 };

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
