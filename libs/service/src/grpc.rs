//! The gRPC side of a process: its port, and what it waits for.

use rpc::{DrainOutcome, Mount, Server, TlsFiles, TlsMode};
use tokio_util::sync::CancellationToken;

use crate::Failure;
use crate::app::ServiceHost;
use crate::certificates::CertificateMetrics;
use crate::flags::MissingTls;

impl ServiceHost {
    /// The certificates of this process, to serve and to call with. In a mesh there may be none.
    ///
    /// # Errors
    /// Names every flag that is missing.
    pub fn tls_files(&self) -> Result<TlsFiles, MissingTls> {
        if self.mesh.is_some() && self.tls.is_empty() {
            return Ok(TlsFiles::none());
        }
        let paths = self.tls.required()?;
        let files = TlsFiles::new(paths.ca, paths.cert, paths.key);
        Ok(if self.mesh.is_some() { files.in_mesh() } else { files })
    }

    /// Serves on the ports of this process until the shutdown; health says SERVING while the process is ready.
    ///
    /// # Errors
    /// When a certificate file cannot be used, or the process was given no port.
    pub fn serve(&mut self, mount: Mount, tls: &TlsFiles) -> Result<(), Failure> {
        mount.metrics().register(&self.metrics)?;
        self.metrics.register(Box::new(CertificateMetrics::of(tls)))?;
        mount.bound_actors(self.actor_calls);
        let health = mount.health().clone();
        let (listener, mesh) = (self.listener.take(), self.mesh.take());
        if listener.is_none() && mesh.is_none() {
            return Err("a service with gRPC methods was given no port".into());
        }
        let server = match listener {
            Some(_) => Server::new(mount, tls)?.tls_mode(self.tls_mode),
            None => Server::without_tls(mount),
        };
        if self.tls_mode == TlsMode::Permissive {
            tracing::warn!("plaintext is taken as well; who comes that way has no identity");
        }
        let server = match mesh {
            Some((listener, trust)) => server.mesh(listener, trust),
            None => server,
        };
        let server = server.drain_deadline(self.drain_deadline);
        let shutdown = self.shutdown.clone();
        self.tasks.spawn("grpc", async move {
            let drained = match listener {
                Some(listener) => server.serve(listener, shutdown.begun_owned()).await?,
                None => server.run(shutdown.begun_owned()).await?,
            };
            if drained == DrainOutcome::Cut {
                tracing::warn!("calls and streams that did not end by the drain deadline are cut");
            }
            Ok(())
        });
        // Not one of the tasks that a drain waits for: it has nothing to finish.
        tokio::spawn(health.follow(self.readiness.subscribe()));
        Ok(())
    }

    /// Runs the service itself until it ends, which it does by the token it is given.
    pub fn run<F>(&self, name: &'static str, service: impl FnOnce(CancellationToken) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let running = service(self.shutdown.token());
        self.tasks.spawn(name, async move {
            running.await;
            Ok(())
        });
    }
}
