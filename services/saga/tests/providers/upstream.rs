//! An HTTP server that does what a test wants it to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use testkit::{PATIENCE, wait_until};
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;

use crate::stage::{CANARY, Stage};

/// A request.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamRequest {
    /// Method and target.
    pub(crate) line: String,
    /// Headers, by their names in small letters.
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl UpstreamRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

/// Reaction of the server to a request.
#[derive(Debug, Clone)]
pub(crate) enum Act {
    /// Sends this, and closes.
    Send(String),
    /// Sends the first, and the second once the gate is open.
    SendSlowly(String, String),
    /// Sends this, and nothing more.
    SendAndHang(String),
}

/// An answer.
pub(crate) fn answer(status: u16, headers: &[&str], body: &str) -> Act {
    let mut head = format!("HTTP/1.1 {status} So\r\nContent-Length: {}\r\n", body.len());
    for header in headers {
        head.push_str(header);
        head.push_str("\r\n");
    }
    Act::Send(format!("{head}\r\n{body}"))
}

type Acts = Arc<dyn Fn(&UpstreamRequest) -> Act + Send + Sync>;

#[derive(Default)]
struct Seen {
    requests: Mutex<Vec<UpstreamRequest>>,
    accepted: Mutex<Vec<SocketAddr>>,
    answered: AtomicUsize,
    gate: Notify,
}

pub(crate) struct Upstream {
    pub(crate) port: u16,
    seen: Arc<Seen>,
}

impl Upstream {
    /// A server that is `localhost`, with TLS or without.
    pub(crate) async fn start(
        tls: Option<TlsAcceptor>,
        acts: impl Fn(&UpstreamRequest) -> Act + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let seen = Arc::new(Seen::default());
        let (keeps, acts): (_, Acts) = (Arc::clone(&seen), Arc::new(acts));
        tokio::spawn(async move {
            while let Ok((stream, peer)) = listener.accept().await {
                keeps.accepted.lock().expect("it is whole").push(peer);
                tokio::spawn(serve(stream, tls.clone(), Arc::clone(&keeps), Arc::clone(&acts)));
            }
        });
        Self { port, seen }
    }

    /// A server with TLS that always does the same.
    pub(crate) async fn always(stage: &Stage, act: Act) -> Self {
        Self::start(Some(stage.acceptor("localhost")), move |_| act.clone()).await
    }

    /// The transport of a provider that reaches this server, and nothing else.
    pub(crate) fn transport(&self) -> String {
        let port = self.port;
        format!(
            "transport: http\nhttp: {{ base_url: \"https://localhost:{port}\", allow_hosts: [\"localhost:{port}\"], \
             private: true, ca: \"secret:ca\", auth: {{ bearer: \"secret:token\" }} }}\n"
        )
    }

    pub(crate) fn requests(&self) -> Vec<UpstreamRequest> {
        self.seen.requests.lock().expect("it is whole").clone()
    }

    /// The only request.
    pub(crate) fn only(&self) -> UpstreamRequest {
        let requests = self.requests();
        assert_eq!(requests.len(), 1, "{requests:?}");
        requests.into_iter().next().expect("one")
    }

    /// How many connections there were: all that were made before this one more.
    pub(crate) async fn connections(&self) -> usize {
        let probe = TcpStream::connect(("127.0.0.1", self.port)).await.expect("it listens");
        let probe = probe.local_addr().expect("its address");
        // Connections are accepted in their order.
        let before =
            async || self.seen.accepted.lock().expect("it is whole").iter().position(|peer| *peer == probe);
        wait_until(before, PATIENCE, "the probe is accepted").await
    }

    /// Waits until a request was read, and the first part of the answer was sent.
    pub(crate) async fn until_answered(&self) {
        let has_answered = async || (self.seen.answered.load(Ordering::SeqCst) > 0).then_some(());
        wait_until(has_answered, PATIENCE, "the server is asked").await;
    }

    /// Lets slow answers go on.
    pub(crate) fn open_gate(&self) {
        self.seen.gate.notify_one();
    }
}

async fn serve(stream: TcpStream, tls: Option<TlsAcceptor>, seen: Arc<Seen>, acts: Acts) -> Option<()> {
    match tls {
        None => exchange(stream, &seen, &acts).await,
        Some(tls) => exchange(tls.accept(stream).await.ok()?, &seen, &acts).await,
    }
}

async fn exchange(stream: impl AsyncRead + AsyncWrite + Unpin, seen: &Seen, acts: &Acts) -> Option<()> {
    let mut stream = BufReader::new(stream);
    let request = read(&mut stream).await?;
    let act = acts(&request);
    seen.requests.lock().expect("it is whole").push(request);
    let (Act::Send(first) | Act::SendSlowly(first, _) | Act::SendAndHang(first)) = &act;
    stream.write_all(first.as_bytes()).await.ok()?;
    stream.flush().await.ok()?;
    seen.answered.fetch_add(1, Ordering::SeqCst);
    match &act {
        Act::Send(_) => {}
        Act::SendSlowly(_, rest) => {
            seen.gate.notified().await;
            stream.write_all(rest.as_bytes()).await.ok()?;
        }
        Act::SendAndHang(_) => {
            // Until the other side has gone.
            let _ = stream.read(&mut [0]).await;
        }
    }
    stream.shutdown().await.ok()
}

async fn read(stream: &mut BufReader<impl AsyncRead + Unpin>) -> Option<UpstreamRequest> {
    let mut line = String::new();
    stream.read_line(&mut line).await.ok().filter(|length| *length > 0)?;
    let line = line.trim_end().trim_end_matches(" HTTP/1.1").to_owned();
    let mut headers = BTreeMap::new();
    loop {
        let mut header = String::new();
        stream.read_line(&mut header).await.ok()?;
        let Some((name, value)) = header.trim_end().split_once(": ") else { break };
        headers.insert(name.to_ascii_lowercase(), value.to_owned());
    }
    let length = headers.get("content-length").map_or(0, |length| length.parse().expect("a length"));
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(UpstreamRequest { line, headers, body: String::from_utf8(body).expect("UTF-8") })
}

/// Fails when a text shows the canary.
pub(crate) fn without_canary(text: &str) {
    assert!(!text.contains(CANARY), "a secret is shown: {text}");
}
