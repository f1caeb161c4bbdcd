//! A collector of traces, as OpenTelemetry's: keeps what it is sent as it came.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::Buf as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tower::Service;

/// A span as it was exported.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct Span {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<Link>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Value>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Value {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Link {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Export {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<Resource>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Resource {
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<Scope>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct Scope {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

impl Span {
    /// Returns the span's trace and its own id, as `traceparent` has them.
    pub(crate) fn place(&self) -> String {
        format!("{}-{}", hex::encode(&self.trace_id), hex::encode(&self.span_id))
    }

    /// Returns the span's trace and the span above it, as `traceparent` has them.
    pub(crate) fn above(&self) -> String {
        format!("{}-{}", hex::encode(&self.trace_id), hex::encode(&self.parent_span_id))
    }

    /// The places that it is linked to.
    pub(crate) fn links(&self) -> Vec<String> {
        let place = |link: &Link| format!("{}-{}", hex::encode(&link.trace_id), hex::encode(&link.span_id));
        self.links.iter().map(place).collect()
    }

    /// Returns the value of an attribute; nothing where the span does not have it.
    pub(crate) fn attribute(&self, what: &str) -> String {
        let found = self.attributes.iter().find(|attribute| attribute.key == what);
        match found.and_then(|attribute| attribute.value.as_ref()) {
            Some(Value { text, number }) if text.is_empty() => number.to_string(),
            Some(Value { text, .. }) => text.clone(),
            None => String::new(),
        }
    }
}

/// Everything that was exported, one message behind the other.
#[derive(Clone, Default)]
pub(crate) struct Collector(Arc<Mutex<Vec<u8>>>);

impl Collector {
    /// Serves it; gives its URL.
    pub(crate) async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder().add_service(self.clone());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        format!("http://{address}")
    }

    /// The spans that came so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        // Messages that are one behind the other are one message.
        let export: Export = prost::Message::decode(&*self.bytes()).expect("spans");
        let scopes = export.resources.into_iter().flat_map(|resource| resource.scopes);
        scopes.flat_map(|scope| scope.spans).collect()
    }

    /// Returns the bytes that came so far. Protobuf keeps texts as they are.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no panic").clone()
    }
}

impl NamedService for Collector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<http::Request<Body>> for Collector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let keeps = self.clone();
        Box::pin(async move { Ok(Grpc::new(Raw).unary(keeps, request).await) })
    }
}

impl UnaryService<Vec<u8>> for Collector {
    type Response = ();
    type Future = Ready<Result<tonic::Response<()>, Status>>;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Self::Future {
        self.0.lock().expect("no panic").extend(request.into_inner());
        ready(Ok(tonic::Response::new(())))
    }
}

/// Messages as their bytes; answers without a field.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = ();
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}
