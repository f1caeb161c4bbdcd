//! A PKI, a tiny service, and ways to it.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use futures_util::future::BoxFuture;
use identity::{Identity, IssueOptions, Pki, ServiceName, SigningKey, TrustDomain};
use model::ActorId;
use rpc::{
    Allow, Caller, Channel, Directory, Drained, LocalServer, MethodPolicy, Mount, PolicyTable, Server,
    TlsFiles,
};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::NamedService;
use tonic::{Request, Response, Status, Streaming};
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
    ("/test.Echo/Stream", &[Allow::Service(ServiceName::Scheduler), Allow::AnyActor]),
];

/// The message of every method here; its `service` field carries the text.
pub(crate) type Text = HealthCheckRequest;

pub(crate) fn text(text: impl Into<String>) -> Text {
    Text { service: text.into() }
}

/// `Stream` sends back what it gets, `WhoAmI` and `Administer` say who calls, `Never` never answers.
#[derive(Clone)]
pub(crate) struct Echo {
    /// How many streams its tasks are serving.
    pub(crate) open: watch::Sender<usize>,
}

impl Echo {
    pub(crate) fn new() -> Self {
        Self { open: watch::Sender::new(0) }
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
                "WhoAmI" | "Administer" => {
                    let handler = service_fn(|request: Request<Text>| async move {
                        Caller::of(&request).map(|caller| Response::new(text(caller.identity().to_string())))
                    });
                    grpc.unary(handler, request).await
                }
                _ => {
                    let handler = service_fn(|_: Request<Text>| std::future::pending());
                    grpc.unary(handler, request).await
                }
            })
        })
    }
}

pub(crate) fn mount(echo: &Echo) -> Mount {
    mount_knowing(echo, None)
}

fn mount_knowing(echo: &Echo, directory: Option<Arc<dyn Directory>>) -> Mount {
    let policy = MethodPolicy::new(&[POLICY]).unwrap();
    let policy = policy.with_administrative(&["/test.Echo/Administer"]).unwrap();
    let builder = Mount::builder(policy);
    let builder = match directory {
        Some(directory) => builder.directory(directory),
        None => builder,
    };
    builder.service(echo.clone()).descriptors(tonic_health::pb::FILE_DESCRIPTOR_SET).build().unwrap()
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
    task: JoinHandle<std::io::Result<Drained>>,
}

impl Running {
    pub(crate) async fn start(authority: &Authority) -> Self {
        Self::start_knowing(authority, Some(Known::with(ACTOR_ID, &SigningKey::generate()))).await
    }

    pub(crate) async fn start_on(address: SocketAddr, files: &TlsFiles) -> Self {
        Self::serve(address, files, None).await
    }

    pub(crate) async fn start_knowing(authority: &Authority, known: Option<Arc<Known>>) -> Self {
        let files = authority.issue(Identity::Service(ServiceName::Storage));
        Self::serve("127.0.0.1:0".parse().unwrap(), &files, known).await
    }

    async fn serve(address: SocketAddr, files: &TlsFiles, known: Option<Arc<Known>>) -> Self {
        let echo = Echo::new();
        let mount = mount_knowing(&echo, known.map(|known| known as _));
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let server =
            Server::new(mount.clone(), files).unwrap().drain_deadline(std::time::Duration::from_millis(200));
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(server.serve(listener, async { drop(stopped.await) }));
        Self { address, echo, mount, stop, task }
    }

    pub(crate) fn channel(&self, files: &TlsFiles) -> Channel {
        Channel::remote(&format!("https://{}", self.address), files, None).unwrap()
    }

    pub(crate) async fn stop(self) -> Drained {
        drop(self.stop);
        self.task.await.unwrap().unwrap()
    }
}

/// The same service in this process.
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

/// The same with something more in the request.
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
