//! Plaintext: to the sidecar of a mesh, and while callers move to TLS.

use std::net::SocketAddr;

use rpc::{CallsMax, Channel, ChannelError, ErrorView, MeshKind, MeshTrust, TlsFiles, TlsMode, TrustDomain};
use tokio::io::AsyncReadExt as _;
use tokio::net::{TcpListener, TcpStream};
use tonic::{Code, Request, Status};

use crate::stage::{ACTOR, Authority, ROUTER, Running, SCHEDULER, call, text, who_am_i};

const LINKERD: &str = "l5d-client-id";
const ENVOY: &str = "x-forwarded-client-cert";
const SCHEDULER_AT_LINKERD: &str = "scheduler.mycora.serviceaccount.identity.linkerd.cluster.local";
const SCHEDULER_AT_ENVOY: &str = "By=spiffe://x;URI=spiffe://cluster.local/ns/mycora/sa/mycora-scheduler";

/// A server with a port for everybody and one for the sidecar.
async fn meshed(authority: &Authority, kind: MeshKind) -> (Running, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let trust = MeshTrust::new(kind, "cluster.local", "mycora", TrustDomain::default());
    let prepare = |server: rpc::Server| server.mesh(listener, trust);
    (Running::start_with(authority, CallsMax::default(), prepare).await, address)
}

fn plaintext(address: SocketAddr) -> Channel {
    Channel::remote(&format!("http://{address}"), &TlsFiles::none(), None).unwrap()
}

async fn with_header(
    channel: &Channel,
    method: &str,
    name: &'static str,
    value: &str,
) -> Result<String, Status> {
    // `Header` gives what the handler sees of it.
    let mut request = Request::new(text(name));
    request.metadata_mut().insert(name, value.parse().unwrap());
    call(channel, method, request).await
}

#[tokio::test]
async fn the_caller_is_read_from_the_header_of_the_mesh() {
    let authority = Authority::new();
    for (kind, name, value, other) in [
        (MeshKind::Linkerd, LINKERD, SCHEDULER_AT_LINKERD, (ENVOY, SCHEDULER_AT_ENVOY)),
        (MeshKind::Istio, ENVOY, SCHEDULER_AT_ENVOY, (LINKERD, SCHEDULER_AT_LINKERD)),
    ] {
        let (_server, address) = meshed(&authority, kind).await;
        let channel = plaintext(address);
        assert_eq!(with_header(&channel, "WhoAmI", name, value).await.unwrap(), "service/scheduler");
        // What is behind the port never sees it.
        assert_eq!(with_header(&channel, "Header", name, value).await.unwrap(), "none");
        // Anybody can write the other mesh's header here.
        for forged in [other, (name, "somebody"), ("x-other", "x")] {
            let refused = with_header(&channel, "WhoAmI", forged.0, forged.1).await.unwrap_err();
            assert_eq!(ErrorView::from(&refused).reason, "IDENTITY_REQUIRED", "{forged:?}");
        }
    }
}

#[tokio::test]
async fn a_connection_of_the_sidecar_is_not_one_caller() {
    let authority = Authority::new();
    let (_server, address) = meshed(&authority, MeshKind::Linkerd).await;
    let channel = plaintext(address);
    let router = SCHEDULER_AT_LINKERD.replace("scheduler", "router");
    for _ in 0..3 {
        assert_eq!(
            with_header(&channel, "WhoAmI", LINKERD, SCHEDULER_AT_LINKERD).await.unwrap(),
            "service/scheduler"
        );
        assert_eq!(with_header(&channel, "WhoAmI", LINKERD, &router).await.unwrap(), "service/router");
        assert_eq!(who_am_i(&channel).await.unwrap_err().code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn elsewhere_a_mesh_is_not_believed() {
    let authority = Authority::new();
    let (server, _address) = meshed(&authority, MeshKind::Linkerd).await;
    let router = server.channel(&authority.issue(ROUTER));
    let anonymous = server.channel(&authority.anonymous());
    for (name, value) in [(LINKERD, SCHEDULER_AT_LINKERD), (ENVOY, SCHEDULER_AT_ENVOY)] {
        assert_eq!(with_header(&router, "WhoAmI", name, value).await.unwrap(), "service/router");
        assert_eq!(with_header(&router, "Header", name, value).await.unwrap(), "none");
        let refused = with_header(&anonymous, "WhoAmI", name, value).await.unwrap_err();
        assert_eq!(refused.code(), Code::Unauthenticated);
    }
}

#[tokio::test]
async fn plaintext_is_for_meshes() {
    let authority = Authority::new();
    let refused = Channel::remote("http://localhost:1", &authority.issue(SCHEDULER), None).unwrap_err();
    assert!(matches!(refused, ChannelError::Plaintext { .. }), "{refused}");
    let both = authority.issue(SCHEDULER).in_mesh();
    Channel::remote("http://localhost:1", &both, None).unwrap();
    Channel::remote("https://localhost:1", &both, None).unwrap();
    let refused = Channel::remote("https://localhost:1", &TlsFiles::none(), None).unwrap_err();
    assert!(matches!(refused, ChannelError::Tls(_)), "{refused}");
}

async fn with_mode(authority: &Authority, mode: TlsMode) -> Running {
    Running::start_with(authority, CallsMax::default(), |server| server.tls_mode(mode)).await
}

#[tokio::test]
async fn a_permissive_port_takes_both() {
    let authority = Authority::new();
    let server = with_mode(&authority, TlsMode::Permissive).await;
    let known = server.channel(&authority.issue(SCHEDULER));
    assert_eq!(who_am_i(&known).await.unwrap(), "service/scheduler");
    let plain = plaintext(server.address);
    assert_eq!(call(&plain, "Header", Request::new(text("x"))).await.unwrap(), "none");
    // Without TLS there is no identity, whatever a header says.
    let refused = with_header(&plain, "WhoAmI", LINKERD, SCHEDULER_AT_LINKERD).await.unwrap_err();
    assert_eq!(ErrorView::from(&refused).reason, "IDENTITY_REQUIRED");

    let registry = prometheus::Registry::new();
    server.mount.metrics().register(&registry).unwrap();
    let text = prometheus::TextEncoder::new().encode_to_string(&registry.gather()).unwrap();
    for line in [
        r#"mycora_connections_total{entrance="tls"} 1"#,
        r#"mycora_connections_total{entrance="plaintext"} 1"#,
    ] {
        assert!(text.contains(line), "{text}");
    }
}

#[tokio::test]
async fn a_strict_port_takes_tls_only() {
    let authority = Authority::new();
    let server = with_mode(&authority, TlsMode::Strict).await;
    let refused = who_am_i(&plaintext(server.address)).await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    // Neither port waits for the second byte of an unknown protocol.
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    tokio::io::AsyncWriteExt::write_all(&mut socket, b"G").await.unwrap();
    assert_eq!(socket.read(&mut [0; 8]).await.unwrap_or(0), 0);
    who_am_i(&server.channel(&authority.issue(ROUTER))).await.unwrap();
}

#[tokio::test]
async fn a_mesh_vouches_for_no_actor() {
    let authority = Authority::new();
    let (_server, address) = meshed(&authority, MeshKind::Istio).await;
    for name in
        ["spiffe://mycora/actor/7", "spiffe://mycora/admin", "spiffe://cluster.local/ns/mycora/sa/actor-7"]
    {
        let refused = with_header(&plaintext(address), "WhoAmI", ENVOY, &format!("URI={name}")).await;
        assert_eq!(refused.unwrap_err().code(), Code::Unauthenticated, "{name}, such as {ACTOR}");
    }
}
