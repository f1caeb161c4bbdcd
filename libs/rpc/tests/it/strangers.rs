//! Connections without an identity, which keep no others out.

use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use rpc::{ErrorView, LIMITS};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustls::version::TLS13;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Code;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use crate::actors::{Stage, ask, with_token};
use crate::stage::{SCHEDULER, open_stream_with, text, who_am_i};
use crate::tls::refused_so_far;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A call of a client that is waited for.
const CALL: Duration = Duration::from_secs(5);
/// How a client of HTTP/2 begins: the preface, and settings that change nothing.
const HTTP2_BEGINS: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const GOAWAY: u8 = 7;
/// How a record of a handshake begins that never ends.
const HELLO_BEGINS: &[u8] = &[0x16, 3, 1, 2, 0, 1];

fn limit(name: &str) -> usize {
    let (_, value) = LIMITS.iter().find(|(named, _)| *named == name).unwrap();
    usize::try_from(*value).unwrap()
}

/// Both ends of what is connected here are files of this process.
fn allow_files(count: u64) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < count) {
        setrlimit(Resource::Nofile, Rlimit { current: Some(count), ..limit }).unwrap();
    }
}

fn counters(stage: &Stage) -> Registry {
    let registry = Registry::new();
    stage.server.mount.metrics().register(&registry).unwrap();
    registry
}

fn came_about(registry: &Registry) -> f64 {
    counted(registry, "mycora_connections_total")
}

fn counted(registry: &Registry, name: &str) -> f64 {
    let families = registry.gather();
    let family = families.iter().find(|family| family.name() == name);
    family.map_or(0.0, |family| family.get_metric().iter().map(|one| one.get_counter().get_value()).sum())
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let met = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, met).await.unwrap_or_else(|_| panic!("{what}"));
}

async fn tcp(stage: &Stage) -> TcpStream {
    TcpStream::connect(stage.server.address).await.unwrap()
}

/// A connection without a certificate on which nothing was sent yet.
async fn tls(stage: &Stage, socket: TcpStream) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(stage.authority.pki.ca_file()).unwrap() {
        roots.add(authority.unwrap()).unwrap();
    }
    let builder = ClientConfig::builder_with_protocol_versions(&[&TLS13]);
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, socket).await
}

/// Reads to the end, and gives the types of the frames that came.
async fn frames(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let mut bytes = Vec::new();
    // What comes after the last frame may be the end, or a broken connection.
    drop(timeout(PATIENCE, stream.read_to_end(&mut bytes)).await.expect("it is never closed"));
    let (mut rest, mut types) = (bytes.as_slice(), Vec::new());
    while let [a, b, c, kind, _, _, _, _, _, payload @ ..] = rest {
        types.push(*kind);
        let length = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
        rest = payload.get(length..).unwrap_or_default();
    }
    types
}

async fn is_closed(socket: &mut TcpStream) {
    // Closed, or closed before it could be read from.
    let read = timeout(PATIENCE, socket.read(&mut [0])).await.expect("it is never closed");
    assert_eq!(read.unwrap_or(0), 0);
}

/// A client with a token, over a connection of its own.
async fn expect_token_accepted(stage: &Stage) {
    let called = timeout(CALL, async {
        let channel = stage.anonymous();
        ask(&channel, "WhoAmI", &stage.token()).await
    });
    assert_eq!(called.await.expect("in time").expect("it is let in"), "actor/7");
}

/// All come from one address.
#[tokio::test]
async fn the_oldest_handshake_gives_way_to_the_next() {
    allow_files(4096);
    let stage = Stage::new().await;
    let registry = counters(&stage);
    let mut silent = Vec::new();
    for _ in 0..limit("rpc_handshakes_local_max") {
        silent.push(tcp(&stage).await);
    }
    let next = tcp(&stage).await;
    is_closed(&mut silent[0]).await;
    let waits = silent[1].try_read(&mut [0]).unwrap_err();
    assert_eq!(waits.kind(), ErrorKind::WouldBlock, "it ran out of time");
    assert!(refused_so_far(&registry) >= 1.0);
    expect_token_accepted(&stage).await;
    assert_eq!(
        who_am_i(&stage.server.channel(&stage.authority.issue(SCHEDULER))).await.unwrap(),
        "service/scheduler"
    );
    drop(next);
}

#[tokio::test]
async fn a_stranger_is_sent_away_and_a_known_actor_is_not() {
    let stage = Stage::new().await;
    let registry = counters(&stage);
    let known = stage.anonymous();
    assert_eq!(ask(&known, "WhoAmI", &stage.token()).await.unwrap(), "actor/7");
    let began = Instant::now();
    // One that sends nothing, and one that makes a call that is open to anyone.
    let mut silent = tls(&stage, tcp(&stage).await).await.unwrap();
    let mut stranger = tls(&stage, tcp(&stage).await).await.unwrap();
    stranger.write_all(HTTP2_BEGINS).await.unwrap();
    let mut health = HealthClient::new(stage.anonymous());
    health.check(HealthCheckRequest::default()).await.unwrap();
    assert!(frames(&mut stranger).await.contains(&GOAWAY), "it is not told");
    frames(&mut silent).await;
    let took = began.elapsed();
    let after = Duration::from_secs(limit("rpc_identity_secs_max") as u64);
    assert!(took + Duration::from_millis(200) > after && took < 3 * after, "{took:?}");
    until("three were sent away", || counted(&registry, "mycora_connections_given_up_total") >= 3.0).await;
    // A stranger connects again to ask for health again; a caller that has shown a token need not.
    let before = came_about(&registry);
    assert_eq!(ask(&known, "WhoAmI", &stage.token()).await.unwrap(), "actor/7");
    assert_eq!(came_about(&registry), before);
    health.check(HealthCheckRequest::default()).await.unwrap();
    assert_eq!(came_about(&registry), before + 1.0);
}

/// All come from one address.
#[tokio::test]
async fn a_full_house_gives_up_its_oldest_stranger_and_no_caller() {
    allow_files(4096);
    let stage = Stage::new().await;
    let registry = counters(&stage);
    let max = limit("rpc_connections_anonymous_local_max");
    let (busy, key) = (stage.anonymous(), stage.token());
    // A call of a known actor, under way over the oldest connection of all.
    let (sender, mut answers) = open_stream_with(&busy, |request| {
        *request.metadata_mut() = with_token(&key, ()).metadata().clone();
    })
    .await
    .unwrap();
    let mut idle = Vec::new();
    while idle.len() < max + 16 {
        idle.push(tls(&stage, tcp(&stage).await).await.unwrap());
    }
    until("all came about", || came_about(&registry) >= (max + 17) as f64).await;
    assert_eq!(refused_so_far(&registry), 0.0);
    assert!(counted(&registry, "mycora_connections_given_up_total") >= 16.0);
    expect_token_accepted(&stage).await;
    frames(&mut idle[0]).await;
    sender.send(text("still here")).await.unwrap();
    assert_eq!(answers.message().await.unwrap().unwrap().service, "still here");
}

/// Opens as many connections as one job can at once, from whichever addresses of this machine.
#[tokio::test]
async fn clients_with_tokens_come_in_whatever_strangers_hold() {
    allow_files(16384);
    let stage = Stage::new().await;
    let mut silent = Vec::new();
    for _ in 0..1000 {
        silent.push(tcp(&stage).await);
    }
    expect_token_accepted(&stage).await;
    let mut strangers = Vec::new();
    for count in 0..1000 {
        strangers.push(tls(&stage, tcp(&stage).await).await.unwrap());
        if count % 100 == 0 {
            expect_token_accepted(&stage).await;
        }
    }
    expect_token_accepted(&stage).await;
    let mut slow = Vec::new();
    for count in 0..3000_u16 {
        let [high, low] = (count % 200 + 1).to_be_bytes();
        let socket = TcpSocket::new_v4().unwrap();
        // From one address, then from many.
        let from = if count < 1500 { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(127, 7, high, low) };
        socket.bind((from, 0).into()).unwrap();
        let mut socket = socket.connect(stage.server.address).await.unwrap();
        // It may have been closed already.
        drop(socket.write_all(HELLO_BEGINS).await);
        slow.push(socket);
        if count % 100 == 0 {
            expect_token_accepted(&stage).await;
        }
    }
    expect_token_accepted(&stage).await;
    drop((silent, strangers, slow));
}

#[tokio::test]
async fn one_actor_leaves_room_for_others() {
    allow_files(4096);
    let stage = Stage::new().await;
    let mut busy = Vec::new();
    for _ in 0..limit("rpc_connections_of_actor_max") {
        let channel = stage.anonymous();
        assert_eq!(ask(&channel, "WhoAmI", &stage.token()).await.unwrap(), "actor/7");
        busy.push(channel);
    }
    let next = stage.anonymous();
    let refused = ErrorView::from(&ask(&next, "WhoAmI", &stage.token()).await.unwrap_err());
    assert_eq!((refused.code, refused.reason.as_str()), (Code::ResourceExhausted, "LIMIT_EXCEEDED"));
    assert_eq!(refused.metadata["limit"], "rpc_connections_of_actor_max");
    assert!(refused.retry_after.is_some());
    // What is its own already goes on, and with one that is gone there is room for the next.
    assert_eq!(ask(&busy[0], "WhoAmI", &stage.token()).await.unwrap(), "actor/7");
    drop(busy.pop());
    let came_in = async {
        while ask(&next, "WhoAmI", &stage.token()).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, came_in).await.expect("there is no room again");
}
