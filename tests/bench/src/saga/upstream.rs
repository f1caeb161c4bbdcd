//! A stand-in for what effects call: answers at once, and counts.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::Error;

/// Path of the call that ends what is measured.
const NOTIFICATION_PATH: &str = "/tell";
/// Path of the call that fails permanently.
const FAILS: &str = "/fail";

/// A server of HTTP on a port of its own.
pub(super) struct Upstream {
    address: SocketAddr,
    notifications: watch::Receiver<usize>,
}

impl Upstream {
    pub(super) async fn start() -> Result<Self, Error> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let (to, notifications) = watch::channel(0);
        let to = Arc::new(to);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let to = Arc::clone(&to);
                // A connection that breaks is the client's to open again.
                tokio::spawn(async move { drop(serve(stream, &to).await) });
            }
        });
        Ok(Self { address, notifications })
    }

    /// Waits until the last call of so many sagas has come.
    pub(super) async fn until_notified(&self, wanted: usize) {
        // The server goes on as long as this.
        let _ = self.notifications.clone().wait_for(|notifications| *notifications >= wanted).await;
    }

    /// An order that reserves, waits for its payment, ships, gives a command and sends a notification.
    pub(super) fn orders(&self) -> String {
        let saga = "kind: Saga\nname: order\nversion: 1\nstate: { id: optional text }\nsources: [{ aggregate: Order }]\n\
            start: { on: OrderPlaced, goto: reserve }\nsteps:\n\
            \x20 reserve: { effect: reserve, input: {}, on_success: { set: { id: \"${{ result.id }}\" }, goto: wait } }\n\
            \x20 wait: { on: { Paid: { goto: ship } } }\n\
            \x20 ship: { pivot: true, effect: ship, input: {}, on_success: { goto: mark } }\n\
            \x20 mark: { command: { aggregate: Order, id: o, type: Mark, payload: {} }, on_success: { goto: tell } }\n\
            \x20 tell: { effect: tell, input: {}, on_done: { end: completed } }\n";
        self.with_provider(saga, ["reserve", "ship", "tell"].into_iter().map(str::to_owned))
    }

    /// Ten steps, of which the last fails; what they did is undone, and then a notification is sent.
    pub(super) fn ten_steps(&self) -> String {
        let mut saga = "kind: Saga\nname: ten\nversion: 1\nstate: { id: optional text }\nsources: [{ aggregate: Order }]\n\
            start: { on: OrderPlaced, goto: s1 }\nsteps:\n"
            .to_owned();
        for step in 1..10 {
            let undo = if step == 1 { "tell".to_owned() } else { format!("undo{step}") };
            let _ = writeln!(
                saga,
                "  s{step}: {{ effect: do{step}, input: {{}}, on_success: {{ goto: s{} }}, compensate: {{ effect: {undo}, input: {{}} }} }}",
                step + 1
            );
        }
        saga.push_str("  s10: { effect: fail, input: {}, on_success: { end: completed }, on_failure: { compensate: failed } }\n");
        let names = (1..10).map(|step| format!("do{step}")).chain((2..10).map(|step| format!("undo{step}")));
        self.with_provider(&saga, names.chain(["fail".to_owned(), "tell".to_owned()]))
    }

    fn with_provider(&self, saga: &str, effects: impl Iterator<Item = String>) -> String {
        let address = self.address;
        let mut text = format!(
            "{saga}---\nkind: EffectProvider\nname: upstream\ntransport: http\n\
             http: {{ base_url: \"http://{address}\", allow_hosts: [\"{address}\"], private: true }}\neffects:\n"
        );
        for effect in effects {
            let _ = writeln!(
                text,
                "  {effect}: {{ request: {{ method: POST, path: /{effect}, body: \"${{{{ input }}}}\" }}, terminal: status == 422, \
                 result: {{ id: \"${{{{ body.id }}}}\" }}, limits: {{ concurrency: 64, per_tenant: 64 }} }}"
            );
        }
        text
    }
}

/// Answers the requests of one connection.
async fn serve(stream: TcpStream, notifications: &watch::Sender<usize>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut stream = BufReader::new(stream);
    loop {
        let mut first = String::new();
        if stream.read_line(&mut first).await? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut line = String::new();
            stream.read_line(&mut line).await?;
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or_default();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await?;
        let path = first.split(' ').nth(1).unwrap_or_default();
        let status = if path == FAILS { "422 Unprocessable Content" } else { "200 OK" };
        if path == NOTIFICATION_PATH {
            notifications.send_modify(|notifications| *notifications += 1);
        }
        let answer = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: 10\r\n\r\n{{\"id\":\"p\"}}"
        );
        stream.get_mut().write_all(answer.as_bytes()).await?;
    }
}
