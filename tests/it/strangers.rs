//! Connections of strangers, as a job on the same machine can open them, against `mycora up`.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use identity::{SigningKey, Token, TrustDomain};
use model::{ActorId, Timestamp};
use proto::v1;
use proto::v1::actor_service_client::ActorServiceClient;
use rpc::{Channel, TlsFiles};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::{ClientConfig, RootCertStore, crypto, version};
use tonic::Request;

use crate::suite::{PATIENCE, Up, get};

/// Time that a client with a token waits for an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// Slow handshakes at once: a quarter more than the server has places for those of this machine (`rpc_handshakes_local_max`).
const HANDSHAKES: usize = 1280;
/// How a record of a handshake begins that never ends.
const HELLO_BEGINS: &[u8] = &[0x16, 3, 1, 2, 0, 1];

/// Calls as actor 1 with tokens, each time over a connection of its own.
struct Client {
    address: SocketAddr,
    tls: TlsFiles,
    key: SigningKey,
}

impl Client {
    fn new(dir: &Path, address: SocketAddr) -> Self {
        let pki = dir.join("pki");
        let key = SigningKey::load(&dir.join("actor-1.ed25519")).expect("`up` makes it");
        Self { address, tls: TlsFiles::anonymous(pki.join("ca.pem")), key }
    }

    async fn calls(&self, when: &str) {
        let channel =
            Channel::remote(&format!("https://{}", self.address), &self.tls, None).expect("an address");
        let mut actors = ActorServiceClient::new(channel);
        let minute = Duration::from_secs(60);
        let token = Token::sign(&self.key, &TrustDomain::default(), ActorId(1), Timestamp::now(), minute);
        let mut request = Request::new(v1::GetActorRequest { id: 1 });
        request.set_timeout(DEADLINE);
        let value = format!("Bearer {token}").parse().expect("a token is ASCII");
        request.metadata_mut().insert("authorization", value);
        let answer = actors.get_actor(request).await;
        answer.unwrap_or_else(|status| panic!("{when}: a client with a token is kept out: {status}"));
    }
}

fn connector(dir: &Path) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    for authority in CertificateDer::pem_file_iter(dir.join("pki/ca.pem")).expect("read") {
        roots.add(authority.expect("a certificate")).expect("an authority");
    }
    let builder = ClientConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()));
    let builder = builder.with_protocol_versions(&[&version::TLS13]).expect("TLS 1.3");
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

async fn stranger(connector: &TlsConnector, address: SocketAddr) -> TlsStream<TcpStream> {
    let socket = TcpStream::connect(address).await.expect("it listens");
    let name = ServerName::try_from("127.0.0.1").expect("an address");
    connector.connect(name, socket).await.expect("a handshake")
}

/// Begins handshakes from addresses of this machine and never goes on with them; whenever one is closed there is another.
fn slow_handshakes(address: SocketAddr, from: Vec<Ipv4Addr>) -> Vec<JoinHandle<()>> {
    let begin = move |from: Ipv4Addr| async move {
        loop {
            let socket = TcpSocket::new_v4().expect("a socket");
            socket.bind((from, 0).into()).expect("an address of this machine");
            let Ok(mut socket) = socket.connect(address).await else { continue };
            drop(socket.write_all(HELLO_BEGINS).await);
            drop(socket.read(&mut [0]).await);
        }
    };
    from.into_iter().map(|from| tokio::spawn(begin(from))).collect()
}

/// Connections of the server that were ended, for any reason.
fn given_up(dir: &Path, ops_port: u16, why: &str) -> u64 {
    let name = format!("mycora_connections_given_up_total{{why=\"{why}\"}} ");
    let text = get(dir, ops_port, "/metrics");
    let value = text.lines().find_map(|line| line.strip_prefix(&name));
    value.map_or(0, |value| value.trim().parse().expect("a number"))
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_strangers_keep_no_client_with_a_token_out() {
    let dir = tempfile::tempdir().expect("a directory");
    let data = dir.path().join("data");
    let up = Up::start(&data, &[]);
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, up.port()));
    let client = Client::new(&data, address);
    client.calls("before").await;

    let mut silent = Vec::new();
    for count in 0..1000 {
        silent.push(TcpStream::connect(address).await.expect("it listens"));
        if count % 250 == 249 {
            client.calls("over TCP").await;
        }
    }
    let connector = connector(&data);
    let mut strangers = Vec::new();
    for count in 0..1000 {
        strangers.push(stranger(&connector, address).await);
        if count % 100 == 99 {
            client.calls("over TLS").await;
        }
    }
    let ops_port = up.port() + 100;
    assert!(given_up(&data, ops_port, "evicted") > 0, "there were not too many");
    let one = vec![Ipv4Addr::LOCALHOST; HANDSHAKES];
    let many = (0..HANDSHAKES as u32).map(|count| Ipv4Addr::from_bits(0x7f07_0001 + count)).collect();
    for from in [one, many] {
        let slow = slow_handshakes(address, from);
        for _ in 0..10 {
            client.calls("over slow handshakes").await;
        }
        slow.iter().for_each(JoinHandle::abort);
    }
    // What is left of them goes by itself.
    let gone = async {
        for mut stranger in strangers {
            drop(stranger.read_to_end(&mut Vec::new()).await);
        }
    };
    tokio::time::timeout(PATIENCE, gone).await.expect("they were sent away");
    assert!(given_up(&data, ops_port, "unidentified") > 0);
    client.calls("after").await;
    drop(silent);
    up.stop();
}
