//! A PKI, a tiny service, and ways to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, SystemTime};

use futures_util::future::BoxFuture;
use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use model::ActorId;
use prost::Message as _;
use prost_types::{FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto};
use rpc::{
    Allow, Caller, CallsMax, Channel, Deadline, Directory, DrainOutcome, LocalServer, MessageBytesMax,
    MethodPolicy, Mount, MountBuilder, PolicyTable, Server, TlsFiles, forward_status,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;
use tonic::transport::{self, Certificate, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_health::pb::HealthCheckRequest;
use tonic_prost::ProstCodec;
use tower::{Service, service_fn};

use crate::known::Known;

pub(crate) const SCHEDULER: Identity = Identity::Service(ServiceName::Scheduler);
pub(crate) const ROUTER: Identity = Identity::Service(ServiceName::Router);
pub(crate) const ACTOR_ID: ActorId = ActorId(7);
pub(crate) const ACTOR: Identity = Identity::Actor(ACTOR_ID);

pub(crate) const POLICY: PolicyTable<'static> = &[
    ("/test.Echo/*", &[Allow::Service(ServiceName::Scheduler)]),
    ("/test.Echo/WhoAmI", &[Allow::Authenticated]),
    ("/test.Echo/Administer", &[Allow::AnyActor]),
    ("/test.Echo/Wait", &[Allow::Service(ServiceName::Scheduler), Allow::AnyActor]),
    ("/test.Echo/Stream", &[Allow::Service(ServiceName::Scheduler), Allow::AnyActor]),
    ("/test.Echo/Use", &[Allow::AnyActor]),
    ("/test.Echo/Large", &[Allow::Service(ServiceName::Scheduler), Allow::AnyActor]),
    ("/test.Echo/Header", &[Allow::Anyone]),
];

/// The message of every method here; its `service` field carries the text.
pub(crate) type Text = HealthCheckRequest;

pub(crate) fn text(text: impl Into<String>) -> Text {
    Text { service: text.into() }
}

/// Long enough to be recognized as set.
pub(crate) const PATIENCE: Duration = Duration::from_secs(300);

/// `Stream` sends back what it gets, `WhoAmI` and `Administer` say who calls, `Never` and `Wait` never answer. `Header`
/// gives a header of the request, `Left` the milliseconds until the deadline, `Relay` what the next service answers to
/// that method, `Bare` fails with that code and nothing else, `Use` leaves more jobs than its caller's share allows for, `Large` answers so many bytes.
#[derive(Clone)]
pub(crate) struct Echo {
    /// How many streams its tasks are serving.
    pub(crate) open: watch::Sender<usize>,
    /// Where `Relay` asks.
    pub(crate) next: Option<Channel>,
}

impl Echo {
    pub(crate) fn new() -> Self {
        Self { open: watch::Sender::new(0), next: None }
    }

    fn stream(&self, request: Request<Streaming<Text>>) -> Response<ReceiverStream<Result<Text, Status>>> {
        let (answers, receiver) = mpsc::channel(1);
        let open = self.open.clone();
        open.send_modify(|n| *n += 1);
        let mut requests = request.into_inner();
        tokio::spawn(async move {
            let mut closed = pin!(answers.closed());
            loop {
                let next = tokio::select! {
                    () = &mut closed => break,
                    next = requests.message() => next,
                };
                let Ok(Some(message)) = next else { break };
                if message.service == "end" || answers.send(Ok(message)).await.is_err() {
                    break;
                }
            }
            open.send_modify(|n| *n -= 1);
        });
        Response::new(ReceiverStream::new(receiver))
    }
}

impl Echo {
    async fn answer(self, method: String, request: Request<Text>) -> Result<Response<Text>, Status> {
        let input = request.get_ref().service.clone();
        let answer = match method.as_str() {
            "WhoAmI" | "Administer" => Caller::of(&request)?.identity().to_string(),
            "Header" => {
                let value = request.metadata().get(&input);
                value.map_or("none", |value| value.to_str().unwrap()).to_owned()
            }
            "Left" => {
                assert_eq!(Deadline::of(&request), Deadline::current());
                let spawned = tokio::spawn(async { Deadline::current() }).await.unwrap();
                assert_eq!(spawned, None, "a task is on its own");
                let left = |Deadline(at)| at.saturating_duration_since(tokio::time::Instant::now());
                Deadline::current().map(left).map_or("none".to_owned(), |left| left.as_millis().to_string())
            }
            "Relay" => {
                let (method, argument) = input.split_once(' ').unwrap_or((&input, ""));
                call(self.next.as_ref().unwrap(), method, Request::new(text(argument)))
                    .await
                    .map_err(forward_status)?
            }
            "Use" => {
                rpc::leaves_jobs(&request, usize::MAX);
                input
            }
            "Large" => "x".repeat(input.parse().unwrap()),
            "Bare" => return Err(Status::new(Code::from_i32(input.parse().unwrap()), "bare")),
            _ => std::future::pending().await,
        };
        Ok(Response::new(text(answer)))
    }
}

/// Returns the descriptors of the service, for reflection.
pub(crate) fn descriptors() -> &'static [u8] {
    let method = |name: &str| MethodDescriptorProto {
        name: Some(name.to_owned()),
        input_type: Some(".grpc.health.v1.HealthCheckRequest".to_owned()),
        output_type: Some(".grpc.health.v1.HealthCheckRequest".to_owned()),
        client_streaming: Some(name == "Stream"),
        server_streaming: Some(name == "Stream"),
        options: None,
    };
    let methods = [
        "Stream",
        "WhoAmI",
        "Administer",
        "Never",
        "Wait",
        "Header",
        "Left",
        "Relay",
        "Bare",
        "Use",
        "Large",
    ]
    .map(method);
    let service =
        ServiceDescriptorProto { name: Some("Echo".to_owned()), method: methods.into(), options: None };
    let mut file =
        FileDescriptorProto { name: Some("test.proto".to_owned()), ..FileDescriptorProto::default() };
    file.package = Some("test".to_owned());
    file.dependency = vec!["health.proto".to_owned()];
    file.service = vec![service];
    file.syntax = Some("proto3".to_owned());
    let mut set = FileDescriptorSet::decode(tonic_health::pb::FILE_DESCRIPTOR_SET).unwrap();
    file.dependency = vec![set.file[0].name().to_owned()];
    set.file.push(file);
    set.encode_to_vec().leak()
}

impl NamedService for Echo {
    const NAME: &'static str = "test.Echo";
}

impl Service<http::Request<Body>> for Echo {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<http::Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let echo = self.clone();
        Box::pin(async move {
            let mut grpc = tonic::server::Grpc::new(ProstCodec::<Text, Text>::default());
            let method = request.uri().path().rsplit('/').next().unwrap().to_owned();
            Ok(match method.as_str() {
                "Stream" => {
                    let handler = service_fn(|request| std::future::ready(Ok(echo.stream(request))));
                    grpc.streaming(handler, request).await
                }
                _ => {
                    let handler = service_fn(|request| echo.clone().answer(method.clone(), request));
                    grpc.unary(handler, request).await
                }
            })
        })
    }
}

pub(crate) fn mount(echo: &Echo) -> Mount {
    mount_knowing(echo, None, CallsMax::default())
}

fn mount_knowing(echo: &Echo, directory: Option<Arc<dyn Directory>>, calls_max: CallsMax) -> Mount {
    builder(echo, directory).calls_max(calls_max).build().unwrap()
}

fn builder(echo: &Echo, directory: Option<Arc<dyn Directory>>) -> MountBuilder {
    let policy = MethodPolicy::new(&[POLICY]).unwrap();
    let policy = policy.with_administrative(&["/test.Echo/Administer"]).unwrap();
    let builder = Mount::builder(policy);
    let builder = match directory {
        Some(directory) => builder.directory(directory),
        None => builder,
    };
    builder
        .service(echo.clone())
        .descriptors(descriptors())
        .method_timeouts(&[("/test.Echo/Wait", PATIENCE), ("/test.Echo/Relay", PATIENCE)])
}

/// An authority in a directory of its own.
pub(crate) struct Authority {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) pki: Pki,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::init(dir.path(), &TrustDomain::default(), SystemTime::now()).unwrap();
        Self { dir, pki }
    }

    pub(crate) fn issue(&self, identity: Identity) -> TlsFiles {
        let files = self.pki.issue(identity, &IssueOptions::from(SystemTime::now())).unwrap();
        TlsFiles::new(files.ca, files.certificate, files.key)
    }

    pub(crate) fn anonymous(&self) -> TlsFiles {
        TlsFiles::anonymous(self.pki.ca_file())
    }
}

/// A server on a free port of this machine.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    pub(crate) echo: Echo,
    pub(crate) mount: Mount,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<DrainOutcome>>,
}

impl Running {
    pub(crate) async fn start(authority: &Authority) -> Self {
        Self::start_knowing(authority, Some(Known::with(ACTOR_ID, &SigningKey::generate()))).await
    }

    /// A server with room for so much of large messages.
    pub(crate) async fn start_holding(
        authority: &Authority,
        known: Arc<Known>,
        max: MessageBytesMax,
    ) -> Self {
        let files = authority.issue(Identity::Service(ServiceName::Storage));
        let mount = |echo: &Echo| builder(echo, Some(known)).message_bytes_max(max).build().unwrap();
        let server = |mount| Server::new(mount, &files).unwrap();
        Self::serve_mount(Echo::new(), mount, "127.0.0.1:0".parse().unwrap(), server).await
    }

    pub(crate) async fn start_on(address: SocketAddr, files: &TlsFiles) -> Self {
        Self::serve(address, files, None).await
    }

    pub(crate) async fn start_knowing(authority: &Authority, known: Option<Arc<Known>>) -> Self {
        let files = authority.issue(Identity::Service(ServiceName::Storage));
        Self::serve("127.0.0.1:0".parse().unwrap(), &files, known).await
    }

    async fn serve(address: SocketAddr, files: &TlsFiles, known: Option<Arc<Known>>) -> Self {
        let mount = |echo: &Echo| mount_knowing(echo, known.map(|known| known as _), CallsMax::default());
        Self::serve_mount(Echo::new(), mount, address, |mount| Server::new(mount, files).unwrap()).await
    }

    /// A server that is not like the others.
    pub(crate) async fn start_with(
        authority: &Authority,
        calls_max: CallsMax,
        prepare: impl FnOnce(Server) -> Server,
    ) -> Self {
        let files = authority.issue(Identity::Service(ServiceName::Storage));
        let mount = |echo: &Echo| mount_knowing(echo, None, calls_max);
        let server = |mount| prepare(Server::new(mount, &files).unwrap());
        Self::serve_mount(Echo::new(), mount, "127.0.0.1:0".parse().unwrap(), server).await
    }

    /// A server whose `Relay` asks another one.
    pub(crate) async fn start_before(authority: &Authority, next: Channel) -> Self {
        let files = authority.issue(Identity::Service(ServiceName::Storage));
        let echo = Echo { next: Some(next), ..Echo::new() };
        let server = |mount| Server::new(mount, &files).unwrap();
        Self::serve_mount(echo, mount, "127.0.0.1:0".parse().unwrap(), server).await
    }

    async fn serve_mount(
        echo: Echo,
        mount: impl FnOnce(&Echo) -> Mount,
        address: SocketAddr,
        server: impl FnOnce(Mount) -> Server,
    ) -> Self {
        let mount = mount(&echo);
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = server(mount.clone()).drain_deadline(Duration::from_millis(200));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
        Self { address, echo, mount, stop, task }
    }

    pub(crate) fn channel(&self, files: &TlsFiles) -> Channel {
        Channel::remote(&format!("https://{}", self.address), files, None).unwrap()
    }

    /// A connection that takes no more than 64 KiB of unread answers.
    pub(crate) async fn narrow(&self, authority: &Authority, identity: Identity) -> transport::Channel {
        const WINDOW: u32 = 65_535;
        let files = authority.pki.issue(identity, &IssueOptions::from(SystemTime::now())).unwrap();
        let read = |file: &Path| std::fs::read(file).unwrap();
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(read(&files.ca)))
            .identity(transport::Identity::from_pem(read(&files.certificate), read(&files.key)));
        let endpoint = Endpoint::from_shared(format!("https://{}", self.address)).unwrap();
        let endpoint = endpoint.tls_config(tls).unwrap();
        let endpoint = endpoint.initial_stream_window_size(WINDOW).initial_connection_window_size(WINDOW);
        endpoint.connect().await.unwrap()
    }

    pub(crate) async fn stop(self) -> DrainOutcome {
        drop(self.stop);
        self.task.await.unwrap().unwrap()
    }
}

/// Starts the service in this process.
pub(crate) fn local(identity: Identity) -> (Echo, LocalServer, Channel) {
    let echo = Echo::new();
    let server = LocalServer::new("echo");
    server.publish(&mount(&echo));
    let channel = Channel::local(server.handle(), identity);
    (echo, server, channel)
}

/// Calls a unary method of the service.
pub(crate) async fn call(channel: &Channel, method: &str, request: Request<Text>) -> Result<String, Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
    let path = format!("/test.Echo/{method}").parse().unwrap();
    let answer = grpc.unary(request, path, ProstCodec::<Text, Text>::default()).await?;
    Ok(answer.into_inner().service)
}

pub(crate) async fn who_am_i(channel: &Channel) -> Result<String, Status> {
    call(channel, "WhoAmI", Request::new(text(""))).await
}

/// Opens the stream: what to send into it, and what comes out.
pub(crate) async fn open_stream(channel: &Channel) -> Result<(mpsc::Sender<Text>, Streaming<Text>), Status> {
    open_stream_with(channel, |_| ()).await
}

/// Opens the stream with something more in the request.
pub(crate) async fn open_stream_with(
    channel: &Channel,
    prepare: impl FnOnce(&mut Request<ReceiverStream<Text>>),
) -> Result<(mpsc::Sender<Text>, Streaming<Text>), Status> {
    let mut grpc = tonic::client::Grpc::new(channel.clone());
    grpc.ready().await.map_err(|e| Status::from_error(e.into()))?;
    let (sender, receiver) = mpsc::channel(1);
    let mut request = Request::new(ReceiverStream::new(receiver));
    prepare(&mut request);
    let path = "/test.Echo/Stream".parse().unwrap();
    let answers = grpc.streaming(request, path, ProstCodec::<Text, Text>::default()).await?;
    Ok((sender, answers.into_inner()))
}
