//! A collector of traces that speaks OTLP over gRPC, and keeps what it is sent as it came.

use std::convert::Infallible;
use std::future::{Future, Ready, ready};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use bytes::Buf as _;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, UnaryService};
use tower::Service;

/// A span as it was exported, with the service that exported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CollectedSpan {
    /// The resource's `service.name`.
    pub service: String,
    /// Name of the span.
    pub name: String,
    wire: WireSpan,
}

impl CollectedSpan {
    /// Returns the span's trace and its own id, as `traceparent` has them.
    #[must_use]
    pub fn place(&self) -> String {
        place(&self.wire.trace_id, &self.wire.span_id)
    }

    /// Returns the span's trace and the span above it, as `traceparent` has them.
    #[must_use]
    pub fn above(&self) -> String {
        place(&self.wire.trace_id, &self.wire.parent_span_id)
    }

    /// Returns the id of the span's trace: 32 hex digits.
    #[must_use]
    pub fn trace(&self) -> String {
        hex::encode(&self.wire.trace_id)
    }

    /// Returns the places that the span is linked to.
    #[must_use]
    pub fn links(&self) -> Vec<String> {
        self.wire.links.iter().map(|link| place(&link.trace_id, &link.span_id)).collect()
    }

    /// Returns the value of an attribute; nothing where the span does not have it.
    #[must_use]
    pub fn attribute(&self, what: &str) -> String {
        value_of(&self.wire.attributes, what)
    }
}

fn place(trace: &[u8], span: &[u8]) -> String {
    format!("{}-{}", hex::encode(trace), hex::encode(span))
}

fn value_of(attributes: &[SpanAttribute], what: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == what);
    match found.and_then(|attribute| attribute.value.as_ref()) {
        Some(AttributeValue { text, number }) if text.is_empty() => number.to_string(),
        Some(AttributeValue { text, .. }) => text.clone(),
        None => String::new(),
    }
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct WireSpan {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<SpanAttribute>,
    #[prost(message, repeated, tag = "13")]
    links: Vec<SpanLink>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct SpanAttribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct AttributeValue {
    #[prost(string, tag = "1")]
    text: String,
    #[prost(int64, tag = "3")]
    number: i64,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct SpanLink {
    #[prost(bytes = "vec", tag = "1")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    span_id: Vec<u8>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct TraceExport {
    #[prost(message, repeated, tag = "1")]
    resources: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<SpanResource>,
    #[prost(message, repeated, tag = "2")]
    scopes: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct SpanResource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<SpanAttribute>,
}

#[derive(Clone, PartialEq, Eq, prost::Message)]
struct ScopeSpans {
    #[prost(message, repeated, tag = "2")]
    spans: Vec<WireSpan>,
}

/// Everything that was exported, one message behind the other. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct TestCollector(Arc<Mutex<Vec<u8>>>);

impl TestCollector {
    /// Serves the collector for as long as the runtime lives; returns its URL.
    ///
    /// # Panics
    /// When no port is free.
    pub async fn serve(&self) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("bound");
        let server = tonic::transport::Server::builder().add_service(self.clone());
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        format!("http://{address}")
    }

    /// Returns the spans that came so far.
    ///
    /// # Panics
    /// When something else than spans came.
    #[must_use]
    pub fn spans(&self) -> Vec<CollectedSpan> {
        // Messages that are one behind the other are one message.
        let export: TraceExport = prost::Message::decode(&*self.bytes()).expect("spans");
        let of_resource = |ResourceSpans { resource, scopes }| {
            let attributes = resource.map(|resource| resource.attributes).unwrap_or_default();
            let service = value_of(&attributes, "service.name");
            let spans = scopes.into_iter().flat_map(|scope| scope.spans);
            spans.map(move |wire| CollectedSpan { service: service.clone(), name: wire.name.clone(), wire })
        };
        export.resources.into_iter().flat_map(of_resource).collect()
    }

    /// Returns the bytes that came so far. Protobuf keeps texts as they are.
    #[must_use]
    pub fn bytes(&self) -> Vec<u8> {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl NamedService for TestCollector {
    const NAME: &'static str = "opentelemetry.proto.collector.trace.v1.TraceService";
}

impl Service<http::Request<Body>> for TestCollector {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let keeps = self.clone();
        Box::pin(async move { Ok(Grpc::new(RawCodec).unary(keeps, request).await) })
    }
}

impl UnaryService<Vec<u8>> for TestCollector {
    type Response = ();
    type Future = Ready<Result<tonic::Response<()>, Status>>;

    fn call(&mut self, request: tonic::Request<Vec<u8>>) -> Self::Future {
        self.lock().extend(request.into_inner());
        ready(Ok(tonic::Response::new(())))
    }
}

/// Messages as their bytes; answers without a field.
#[derive(Debug, Clone, Copy)]
struct RawCodec;

impl Codec for RawCodec {
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

impl Encoder for RawCodec {
    type Item = ();
    type Error = Status;

    fn encode(&mut self, (): (), _: &mut EncodeBuf<'_>) -> Result<(), Status> {
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining()).to_vec()))
    }
}
