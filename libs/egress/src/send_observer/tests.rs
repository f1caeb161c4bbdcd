//! Departures over real connections.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::Duration;

use bytes::Bytes;
use http::Method;

use super::SendObserver;
use crate::{EgressFailure, EgressRequest, EgressResponse, HostAllowlist, TrustAnchors, send_once};

const PATIENCE: Duration = Duration::from_secs(30);

/// Passes its notifications to a thread.
struct ChannelObserver(Sender<&'static str>);

impl SendObserver for ChannelObserver {
    fn on_sending(&mut self) {
        self.0.send("leaves").expect("somebody listens");
    }

    fn on_sent(&mut self) {
        self.0.send("has left").expect("somebody listens");
    }
}

/// Sends a body of so many bytes to a server that treats the connection as `serve` does, and gives it the notifications.
fn send(
    body_bytes: usize,
    serve: impl FnOnce(TcpStream, Receiver<&'static str>) + Send + 'static,
) -> Result<EgressResponse, EgressFailure> {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    let (sender, events) = mpsc::channel();
    let server = std::thread::spawn(move || serve(listener.accept().expect("a connection").0, events));
    let uri = format!("http://{address}/").parse().expect("a URL");
    let mut ask = EgressRequest::new(Method::POST, uri);
    ask.body = Bytes::from(vec![b'x'; body_bytes]);
    let hosts = HostAllowlist::exact(&[address.to_string()], address.port(), true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = runtime.block_on(send_once(
        &TrustAnchors::from_system(),
        &hosts,
        &ask,
        1024,
        ChannelObserver(sender),
    ));
    server.join().expect("no panic");
    reply
}

/// Reads a request whose body has so many bytes to its end.
fn read(stream: &mut TcpStream, body_bytes: usize) {
    let (mut bytes, mut buffer) = (Vec::new(), [0; 65_536]);
    loop {
        let count = stream.read(&mut buffer).expect("it comes");
        assert!(count > 0, "it is cut off after {} bytes", bytes.len());
        bytes.extend_from_slice(&buffer[..count]);
        let end = bytes.windows(4).position(|window| window == b"\r\n\r\n");
        if end.is_some_and(|end| bytes.len() == end + 4 + body_bytes) {
            return;
        }
    }
}

fn answer(mut stream: TcpStream) {
    stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").expect("it is heard");
}

#[test]
fn a_request_has_left_before_its_answer_comes() {
    // Without a body, with one that is written at once, and with one that takes many writes.
    for body_bytes in [0, 10, 20 << 20] {
        let reply = send(body_bytes, move |mut stream, events| {
            assert_eq!(events.recv_timeout(PATIENCE), Ok("leaves"));
            read(&mut stream, body_bytes);
            assert_eq!(events.recv_timeout(PATIENCE), Ok("has left"));
            answer(stream);
            assert!(events.recv_timeout(PATIENCE).is_err(), "each is told once");
        });
        assert_eq!(reply.expect("an answer").status, 204, "{body_bytes}");
    }
}

#[test]
fn what_the_system_does_not_take_has_not_left() {
    let reply = send(20 << 20, |mut stream, events| {
        assert_eq!(events.recv_timeout(PATIENCE), Ok("leaves"));
        stream.read_exact(&mut [0; 1024]).expect("it has begun");
        drop(stream);
        assert!(events.recv_timeout(PATIENCE).is_err(), "it broke off");
    });
    assert!(matches!(reply, Err(EgressFailure::Http(_))), "{reply:?}");
}

#[test]
fn nothing_leaves_without_a_connection() {
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound").port();
    let (sender, events) = mpsc::channel();
    let ask = EgressRequest::new(Method::GET, format!("http://127.0.0.1:{port}/").parse().expect("a URL"));
    let hosts = HostAllowlist::exact(&[format!("127.0.0.1:{port}")], port, true);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let reply = runtime.block_on(send_once(
        &TrustAnchors::from_system(),
        &hosts,
        &ask,
        1024,
        ChannelObserver(sender),
    ));
    assert!(matches!(reply, Err(EgressFailure::Unreachable(_))), "{reply:?}");
    assert!(events.try_recv().is_err());
}
