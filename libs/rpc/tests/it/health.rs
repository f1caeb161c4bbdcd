//! Health and reflection.

use std::collections::BTreeSet;

use identity::Identity;
use rpc::{Channel, LocalServer, MethodPolicy, Mount};
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient;
use tonic_reflection::pb::v1::server_reflection_request::MessageRequest;
use tonic_reflection::pb::v1::server_reflection_response::MessageResponse;
use tonic_reflection::pb::{v1, v1alpha};

use crate::stage::{Authority, POLICY, Running};

/// Services that reflection lists: the mounted ones, whatever else the descriptors contain.
const MOUNTED: [&str; 4] = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
    "test.Echo",
];

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test]
async fn services_report_not_serving_until_they_are_set_to_serving() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let mut client = HealthClient::new(server.channel(&authority.anonymous()));
    for service in ["", "test.Echo"] {
        let status = client.check(of(service)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::NotServing);
    }
    server.mount.health().set_serving(true);
    for service in ["", "test.Echo"] {
        let status = client.check(of(service)).await.unwrap().into_inner().status();
        assert_eq!(status, ServingStatus::Serving);
    }
    assert_eq!(client.check(of("test.Other")).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn health_watchers_are_notified_and_closed_at_the_end() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let mut client = HealthClient::new(server.channel(&authority.anonymous()));
    let mut known = client.watch(of("test.Echo")).await.unwrap().into_inner();
    let mut unknown = client.watch(of("test.Other")).await.unwrap().into_inner();
    let first = known.message().await.unwrap().unwrap().status();
    assert_eq!(first, ServingStatus::NotServing);
    let first = unknown.message().await.unwrap().unwrap().status();
    assert_eq!(first, ServingStatus::ServiceUnknown);

    server.mount.health().set_serving(true);
    assert_eq!(known.message().await.unwrap().unwrap().status(), ServingStatus::Serving);

    let stopping = tokio::spawn(server.stop());
    assert_eq!(known.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    assert_eq!(known.message().await.unwrap(), None);
    assert_eq!(unknown.message().await.unwrap().unwrap().status(), ServingStatus::ServiceUnknown);
    assert_eq!(unknown.message().await.unwrap(), None);
    assert_eq!(stopping.await.unwrap(), rpc::DrainOutcome::Completely);
}

#[tokio::test]
async fn a_part_has_a_health_of_its_own() {
    let (well, receiver) = tokio::sync::watch::channel(false);
    let policy = MethodPolicy::new(&[POLICY]).unwrap();
    let mount = Mount::builder(policy).part("bus", receiver).build().expect("nothing is uncovered");
    let server = LocalServer::new("test");
    server.publish(&mount);
    let mut client = HealthClient::new(Channel::local(server.handle(), Identity::Admin));
    let mut updates = client.watch(of("bus")).await.unwrap().into_inner();
    mount.health().set_serving(true);
    for (is_well, want) in [(false, ServingStatus::NotServing), (true, ServingStatus::Serving)] {
        well.send_replace(is_well);
        assert_eq!(updates.message().await.unwrap().unwrap().status(), want);
        assert_eq!(client.check(of("bus")).await.unwrap().into_inner().status(), want);
    }
    assert_eq!(client.check(of("")).await.unwrap().into_inner().status(), ServingStatus::Serving);
    mount.health().set_serving(false);
    assert_eq!(updates.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
}

#[tokio::test]
async fn readiness_is_followed() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let (ready, receiver) = tokio::sync::watch::channel(false);
    tokio::spawn(server.mount.health().clone().follow(receiver));
    let mut client = HealthClient::new(server.channel(&authority.anonymous()));
    let mut updates = client.watch(of("")).await.unwrap().into_inner();
    for serving in [false, true, false] {
        ready.send_replace(serving);
        let want = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
        assert_eq!(updates.message().await.unwrap().unwrap().status(), want);
    }
}

#[tokio::test]
async fn a_server_is_followed_from_afar() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let (sender, mut updates) = tokio::sync::mpsc::unbounded_channel();
    let channel = server.channel(&authority.anonymous());
    tokio::spawn(rpc::follow_health(channel, move |update| drop(sender.send(update))));
    let not_serving = Err("it does not serve".to_owned());
    assert_eq!(updates.recv().await, Some(not_serving.clone()));
    server.mount.health().set_serving(true);
    assert_eq!(updates.recv().await, Some(Ok(())));
    server.mount.health().set_serving(false);
    assert_eq!(updates.recv().await, Some(not_serving));
    server.mount.health().set_serving(true);
    assert_eq!(updates.recv().await, Some(Ok(())));
    server.stop().await;
    assert!(updates.recv().await.expect("it goes on").is_err());
}

#[tokio::test]
async fn reflection_lists_what_is_mounted_in_both_versions() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let channel = server.channel(&authority.anonymous());

    let request = v1::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(MessageRequest::ListServices(String::new())),
    };
    let mut client = ServerReflectionClient::new(channel.clone());
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(MessageResponse::ListServicesResponse(list)) = answer.message_response else {
        panic!("another answer: {answer:?}")
    };
    let names: BTreeSet<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, MOUNTED.into());

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(
            v1alpha::server_reflection_request::MessageRequest::ListServices(String::new()),
        ),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel.clone());
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    let Some(v1alpha::server_reflection_response::MessageResponse::ListServicesResponse(list)) =
        answer.message_response
    else {
        panic!("another answer")
    };
    let names: BTreeSet<_> = list.service.iter().map(|service| service.name.as_str()).collect();
    assert_eq!(names, MOUNTED.into());

    let request = v1alpha::ServerReflectionRequest {
        host: String::new(),
        message_request: Some(v1alpha::server_reflection_request::MessageRequest::FileContainingSymbol(
            "grpc.health.v1.Health".to_owned(),
        )),
    };
    let mut client = v1alpha::server_reflection_client::ServerReflectionClient::new(channel);
    let answers = client.server_reflection_info(tokio_stream::iter([request])).await.unwrap();
    let answer = answers.into_inner().message().await.unwrap().unwrap();
    assert!(
        matches!(
            answer.message_response,
            Some(v1alpha::server_reflection_response::MessageResponse::FileDescriptorResponse(_))
        ),
        "{answer:?}"
    );
}
