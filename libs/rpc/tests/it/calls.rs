//! Calls within the process, deadlines, and errors of wiring.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rpc::{
    AddressCheck, Allow, Channel, ErrorView, LocalServer, MethodPolicy, Mount, MountError, PolicyTable,
};
use tonic::{Code, Request};

use crate::stage::{
    Authority, Echo, ROUTER, Running, SCHEDULER, call, descriptors, local, mount, text, who_am_i,
};

#[tokio::test]
async fn a_service_of_the_same_process_is_known_and_held_to_the_policy() {
    let (_echo, server, channel) = local(SCHEDULER);
    assert_eq!(who_am_i(&channel).await.unwrap(), "service/scheduler");
    let router = Channel::local(server.handle(), ROUTER);
    let denied = call(&router, "Never", Request::new(text(""))).await.unwrap_err();
    assert_eq!(denied.code(), Code::PermissionDenied);
}

#[tokio::test]
async fn a_caller_cannot_pass_on_another_identity() {
    let (_echo, _server, channel) = local(SCHEDULER);
    let mut request = Request::new(text(""));
    request.extensions_mut().insert(rpc::Caller::local(ROUTER));
    assert_eq!(call(&channel, "WhoAmI", request).await.unwrap(), "service/scheduler");
}

#[tokio::test]
async fn a_call_waits_until_the_service_is_there() {
    let server = LocalServer::new("echo");
    let channel = Channel::local(server.handle(), SCHEDULER);
    let early = who_am_i(&channel);
    let publish = async { server.publish(&mount(&Echo::new())) };
    assert_eq!(tokio::join!(early, publish).0.unwrap(), "service/scheduler");
}

#[tokio::test(start_paused = true)]
async fn a_service_that_never_comes_is_unavailable() {
    let server = LocalServer::new("echo");
    let channel = Channel::local(server.handle(), SCHEDULER);
    let refused = who_am_i(&channel).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(refused.message().contains("echo"), "{refused}");
    drop(server);
    assert_eq!(ErrorView::from(&who_am_i(&channel).await.unwrap_err()).reason, "NOT_READY");
}

async fn ends_at_its_deadline(channel: &Channel) {
    let mut request = Request::new(text(""));
    request.set_timeout(Duration::from_millis(30));
    let status = call(channel, "Never", request).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded, "{status}");
    assert_eq!(ErrorView::from(&status).reason, "DEADLINE_EXCEEDED");
}

#[tokio::test]
async fn deadlines_hold_in_the_process() {
    let (_echo, _server, channel) = local(SCHEDULER);
    ends_at_its_deadline(&channel).await;
}

#[tokio::test]
async fn deadlines_hold_over_the_network() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    ends_at_its_deadline(&server.channel(&authority.issue(SCHEDULER))).await;
}

#[tokio::test]
async fn a_service_without_a_row_in_the_policy_is_not_mounted() {
    let policy = MethodPolicy::new(&[&[("/test.Other/*", &[Allow::Admin])]]).unwrap();
    let error = Mount::builder(policy).service(Echo::new()).build().unwrap_err();
    assert_eq!(error, MountError::Uncovered { service: "test.Echo" });
}

#[tokio::test]
async fn a_policy_that_names_a_method_that_is_not_there_is_not_mounted() {
    let missing = "/test.Echo/Misspelt";
    let open: PolicyTable<'_> = &[("/test.Echo/*", &[Allow::Admin])];
    let named = MethodPolicy::new(&[open, &[(missing, &[Allow::Admin])]]);
    let once = MethodPolicy::new(&[open]).and_then(|policy| policy.with_administrative(&[missing]));
    for policy in [named, once] {
        let mount = Mount::builder(policy.unwrap()).service(Echo::new()).descriptors(descriptors());
        assert_eq!(mount.build().unwrap_err(), MountError::NoMethod { path: missing.to_owned() });
    }
    // A service that is not mounted here may be mounted elsewhere.
    let elsewhere = MethodPolicy::new(&[open, &[("/test.Other/Any", &[Allow::Admin])]]);
    Mount::builder(elsewhere.unwrap()).service(Echo::new()).descriptors(descriptors()).build().unwrap();
}

#[tokio::test]
async fn what_a_name_leads_to_is_checked_and_then_connected_to() {
    let authority = Authority::new();
    let server = Running::start(&authority).await;
    let files = authority.issue(SCHEDULER);
    let (seen, address) = (Arc::new(Mutex::new(Vec::new())), format!("localhost:{}", server.address.port()));
    for (allowed, called) in [(true, true), (false, false)] {
        let seen = Arc::clone(&seen);
        let check: AddressCheck = Arc::new(move |address: SocketAddr| {
            seen.lock().unwrap().push(address);
            if allowed { Ok(()) } else { Err(format!("REFUSED {address}")) }
        });
        let channel = Channel::remote_where(&address, &files, None, check).unwrap();
        let answer = who_am_i(&channel).await;
        assert_eq!(answer.is_ok(), called, "{answer:?}");
        if let Err(refused) = answer {
            assert!(
                refused.code() == Code::Unavailable && refused.message().contains("REFUSED"),
                "{refused}"
            );
        }
    }
    let seen = seen.lock().unwrap();
    assert!(
        seen.contains(&server.address) && seen.iter().all(|address| address.ip().is_loopback()),
        "{seen:?}"
    );
}
