//! Any method called by its name, with requests and answers as JSON.

use bytes::{Buf as _, BufMut as _, Bytes};
use prost::Message as _;
use prost_reflect::{DescriptorPool, DynamicMessage, MethodDescriptor};
use rpc::Channel;
use serde_json::Value;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Request, Status, Streaming};

/// A method that does not answer within this time hangs.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);

/// Public services that no server of these suites has: sagas are served by their own, which is tested beside it, and commands of
/// aggregates by an external aggregate service.
const ELSEWHERE: [&str; 2] = ["SagaService", "CommandService"];

/// Every method that the descriptors know.
pub(crate) struct Methods(DescriptorPool);

impl Methods {
    pub(crate) fn new() -> Self {
        Self(DescriptorPool::decode(proto::DESCRIPTORS).expect("the build checks the descriptor set"))
    }

    /// Those of one package, as in `mycora.v1`, that are served here.
    pub(crate) fn of(&self, package: &str) -> Vec<MethodDescriptor> {
        let mut methods = self.all(package);
        methods.retain(|method| !ELSEWHERE.contains(&method.parent_service().name()));
        methods
    }

    /// Public methods that no service here offers.
    pub(crate) fn elsewhere(&self) -> Vec<MethodDescriptor> {
        let mut methods = self.all("mycora.v1");
        methods.retain(|method| ELSEWHERE.contains(&method.parent_service().name()));
        methods
    }

    fn all(&self, package: &str) -> Vec<MethodDescriptor> {
        let services = self.0.services().filter(|service| service.parent_file().package_name() == package);
        services.flat_map(|service| service.methods().collect::<Vec<_>>()).collect()
    }

    /// One, as in `FlowService/GetFlow`.
    pub(crate) fn get(&self, name: &str) -> MethodDescriptor {
        let found = self.of("mycora.v1").into_iter().chain(self.of("mycora.internal.v1"));
        found
            .into_iter()
            .find(|method| short(method) == name)
            .unwrap_or_else(|| panic!("there is no method {name}"))
    }
}

/// Returns the short name of a method, such as `FlowService/GetFlow`.
pub(crate) fn short(method: &MethodDescriptor) -> String {
    format!("{}/{}", method.parent_service().name(), method.name())
}

/// Calls a method; the first message of an answer that is a stream. A stream that ended without one is `null`.
pub(crate) async fn call(
    channel: Channel,
    token: Option<&str>,
    method: &MethodDescriptor,
    body: &Value,
) -> Result<Value, Status> {
    let message = DynamicMessage::deserialize(method.input(), body.clone())
        .unwrap_or_else(|error| panic!("{}: {error}: {body}", short(method)));
    let mut request = Request::new(tokio_stream::iter([Bytes::from(message.encode_to_vec())]));
    request.set_timeout(PATIENCE);
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().expect("a token is ASCII");
        request.metadata_mut().insert("authorization", value);
    }
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path: PathAndQuery = path.parse().expect("names make a path");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let mut answers = client.streaming(request, path, Plain).await?.into_inner();
    match answers.message().await? {
        None => Ok(Value::Null),
        Some(bytes) => Ok(read(method, bytes)),
    }
}

/// One answer of a method.
pub(crate) fn read(method: &MethodDescriptor, bytes: Bytes) -> Value {
    let answer = DynamicMessage::decode(method.output(), bytes).expect("what the method gives");
    serde_json::to_value(&answer).expect("a message is JSON")
}

/// Opens a stream of answers that lasts as long as it likes.
pub(crate) async fn open(
    channel: Channel,
    method: &MethodDescriptor,
    body: &Value,
) -> Result<Streaming<Bytes>, Status> {
    let message = DynamicMessage::deserialize(method.input(), body.clone())
        .unwrap_or_else(|error| panic!("{}: {error}: {body}", short(method)));
    let request = Request::new(tokio_stream::iter([Bytes::from(message.encode_to_vec())]));
    let path = format!("/{}/{}", method.parent_service().full_name(), method.name());
    let path: PathAndQuery = path.parse().expect("names make a path");
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    Ok(client.streaming(request, path, Plain).await?.into_inner())
}

/// Messages as they are on the wire.
struct Plain;

impl Codec for Plain {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        let bytes = from.remaining();
        Ok(Some(from.copy_to_bytes(bytes)))
    }
}
