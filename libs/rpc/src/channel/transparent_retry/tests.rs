use std::collections::BTreeMap;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tower::Service as _;

use super::*;
use crate::channel::Channel;
use crate::server::lingering::LingeringStream;
use crate::tls::TlsFiles;

/// Calls of a connection after which it is asked to leave.
const CALLS_OF_CONNECTION: usize = 100;
const CALLS: usize = 20_000;
const AT_ONCE: usize = 64;

/// Serves a connection; asks it to leave in the middle of its calls.
async fn serve(health: HealthServer<impl Health>, connection: TcpStream) {
    let (calls, enough) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let is_enough = Arc::clone(&enough);
    let service = service_fn(move |request: Request<Incoming>| {
        if calls.fetch_add(1, Ordering::Relaxed) == CALLS_OF_CONNECTION {
            is_enough.notify_one();
        }
        let mut health = health.clone();
        async move { Ok::<_, Infallible>(health.call(request).await.unwrap_or_else(|never| match never {})) }
    });
    let server = http2::Builder::new(TokioExecutor::new());
    let mut serving = pin!(server.serve_connection(TokioIo::new(LingeringStream::new(connection)), service));
    tokio::select! {
        ended = &mut serving => return drop(ended),
        () = enough.notified() => serving.as_mut().graceful_shutdown(),
    }
    drop(serving.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_of_connections_that_are_asked_to_leave_are_answered() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = format!("http://{}", listener.local_addr().expect("its address"));
    let (_reporter, health) = tonic_health::server::health_reporter();
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    let serving = tokio::spawn(async move {
        while let Ok((connection, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::spawn(serve(health.clone(), connection));
        }
    });
    let client = HealthClient::new(Channel::remote(&address, &TlsFiles::none(), None).expect("an address"));

    let mut open = FuturesUnordered::new();
    let mut failed = BTreeMap::<String, usize>::new();
    for number in 0..CALLS + AT_ONCE {
        if number < CALLS {
            let mut client = client.clone();
            open.push(async move { client.check(HealthCheckRequest::default()).await });
        }
        if number >= AT_ONCE
            && let Some(Err(error)) = open.next().await
        {
            *failed.entry(error.to_string()).or_default() += 1;
        }
    }
    serving.abort();
    assert!(connections.load(Ordering::Relaxed) > 50, "they were asked to leave");
    assert_eq!(failed, BTreeMap::new());
}

/// A request of these parts.
fn request(parts: &[&'static [u8]]) -> Request<Body> {
    let parts: Vec<_> =
        parts.iter().map(|part| Ok::<_, Status>(Frame::data(Bytes::from_static(part)))).collect();
    let mut request = Request::new(Body::new(StreamBody::new(futures_util::stream::iter(parts))));
    request.headers_mut().insert("te", http::HeaderValue::from_static("trailers"));
    request
}

/// Reads so many parts of a request that is then dropped; returns what can be sent again.
async fn sent(parts: &[&'static [u8]], read: usize) -> Option<Request<Body>> {
    let (mut lent, retained) = RetainedRequest::retain(request(parts));
    for _ in 0..read {
        lent.body_mut().frame().await;
    }
    drop(lent);
    // A second try is not different from the first.
    let (mut lent, retained) = retained.again().await?;
    lent.body_mut().frame().await;
    drop(lent);
    Some(retained.again().await?.0)
}

#[tokio::test]
async fn a_request_is_sent_again_whole_unless_more_than_its_first_part_was_read() {
    for (parts, read) in [(&[&b"one"[..]][..], 0), (&[b"one"], 1), (&[b"one"], 2), (&[b"one", b"two"], 1)] {
        let again = sent(parts, read).await.expect("it can be sent again");
        assert_eq!(again.headers().get("te").map(http::HeaderValue::as_bytes), Some(&b"trailers"[..]));
        let body = again.into_body().collect().await.expect("it can be read").to_bytes();
        assert_eq!(body, parts.concat(), "{read} parts were read");
    }
    assert!(sent(&[b"one", b"two"], 2).await.is_none(), "a second part is not kept");
    let large: &'static [u8] = vec![1; KEPT_BYTES_MAX + 1].leak();
    assert!(sent(&[large], 1).await.is_none(), "a large part is not kept");
}
