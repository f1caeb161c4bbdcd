//! Durations of calls, as a server's metrics show them.

use std::time::Duration;

use prometheus::Registry;
use rpc::{Channel, LocalServer};
use tonic::{Code, Request};

use crate::stage::{Echo, ROUTER, SCHEDULER, call, mount, open_stream, text, who_am_i};

/// How long a call may take that never ends by itself.
const TIMEOUT: Duration = Duration::from_millis(30);

/// A service in this process, with its metrics.
struct Scene {
    server: LocalServer,
    registry: Registry,
}

impl Scene {
    fn new() -> Self {
        let (server, registry, mount) = (LocalServer::new("echo"), Registry::new(), mount(&Echo::new()));
        mount.metrics().register(&registry).unwrap();
        server.publish(&mount);
        Self { server, registry }
    }

    fn scheduler(&self) -> Channel {
        Channel::local(self.server.handle(), SCHEDULER)
    }

    /// Calls so far, each as its method and its code with how many there were, and how many seconds they took together.
    fn durations(&self) -> Vec<(String, u64, f64)> {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == "mycora_call_duration_seconds");
        let metrics = family.map(|family| family.get_metric()).unwrap_or_default();
        let shown = metrics.iter().map(|metric| {
            let label = |name: &str| {
                let labels = metric.get_label().iter();
                labels.filter(|label| label.name() == name).map(|label| label.value()).collect::<String>()
            };
            let histogram = metric.get_histogram();
            let name = format!("{} {}", label("method"), label("code"));
            (name, histogram.get_sample_count(), histogram.get_sample_sum())
        });
        shown.collect()
    }

    fn count(&self, name: &str) -> u64 {
        self.durations().iter().filter(|(shown, ..)| shown == name).map(|(_, count, _)| count).sum()
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_counts_under_its_method_and_its_code() {
    let scene = Scene::new();
    let channel = scene.scheduler();
    for _ in 0..3 {
        who_am_i(&channel).await.unwrap();
    }
    let not_found = (Code::NotFound as i32).to_string();
    call(&channel, "Bare", Request::new(text(not_found))).await.unwrap_err();
    let router = Channel::local(scene.server.handle(), ROUTER);
    call(&router, "Bare", Request::new(text("0"))).await.unwrap_err();
    assert_eq!(scene.count("test.Echo/WhoAmI OK"), 3);
    assert_eq!(scene.count("test.Echo/Bare NOT_FOUND"), 1);
    assert_eq!(scene.count("test.Echo/Bare PERMISSION_DENIED"), 1, "a refusal is an answer too");
}

#[tokio::test(start_paused = true)]
async fn a_call_is_measured_from_its_receipt_to_its_answer() {
    let scene = Scene::new();
    let mut request = Request::new(text(""));
    request.set_timeout(TIMEOUT);
    call(&scene.scheduler(), "Never", request).await.unwrap_err();
    let durations = scene.durations();
    let [(name, 1, seconds)] = &durations[..] else { panic!("{durations:?}") };
    assert_eq!(name, "test.Echo/Never DEADLINE_EXCEEDED");
    assert!((TIMEOUT.as_secs_f64() * 0.9..1.0).contains(seconds), "{seconds}");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_its_caller_gives_up_is_cancelled() {
    let scene = Scene::new();
    let channel = scene.scheduler();
    let never = call(&channel, "Never", Request::new(text("")));
    tokio::time::timeout(TIMEOUT, never).await.unwrap_err();
    assert_eq!(scene.count("test.Echo/Never CANCELLED"), 1);
}

#[tokio::test(start_paused = true)]
async fn texts_of_callers_are_no_labels_and_streams_have_no_duration() {
    let scene = Scene::new();
    let channel = scene.scheduler();
    for method in ["Made", "Up"] {
        let refused = call(&channel, method, Request::new(text(""))).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unimplemented);
    }
    let (sender, mut answers) = open_stream(&channel).await.unwrap();
    sender.send(text("hello")).await.unwrap();
    answers.message().await.unwrap();
    sender.send(text("end")).await.unwrap();
    assert!(answers.message().await.unwrap().is_none());
    let durations = scene.durations();
    let [(name, 2, _)] = &durations[..] else { panic!("{durations:?}") };
    assert_eq!(name, "unknown UNIMPLEMENTED");
}
