//! The gRPC side of a process: its port, and what it waits for.

use rpc::{Mount, Server, TlsFiles};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::Host;
use crate::flags::MissingTls;
use crate::{Failure, error_chain};

impl Host {
    /// The certificates of this process, to serve and to call with.
    ///
    /// # Errors
    /// Names every flag that is missing.
    pub fn tls_files(&self) -> Result<TlsFiles, MissingTls> {
        let paths = self.tls.required()?;
        Ok(TlsFiles::new(paths.ca, paths.cert, paths.key))
    }

    /// Serves on the port of this process until the shutdown; health says SERVING while the process is ready.
    ///
    /// # Errors
    /// When a certificate file cannot be used, or the process was given no port.
    pub fn serve(&mut self, mount: Mount, tls: &TlsFiles) -> Result<(), Failure> {
        let listener = self.listener.take().ok_or("a service with gRPC methods was given no port")?;
        let health = mount.health().clone();
        let server = Server::new(mount, tls)?.drain_deadline(self.drain_deadline);
        let shutdown = self.shutdown.clone();
        self.tasks.spawn("grpc", async move {
            server.serve(listener, shutdown.begun_owned()).await?;
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

    /// The process is ready only while this is true.
    pub fn ready_while(&self, name: &'static str, mut ready: watch::Receiver<bool>) {
        let condition = self.readiness.condition(name);
        tokio::spawn(async move {
            loop {
                if *ready.borrow_and_update() {
                    condition.met();
                } else {
                    condition.unmet("not now");
                }
                if let Err(error) = ready.changed().await {
                    tracing::debug!(name, "readiness is not told any more: {}", error_chain(&error));
                    return;
                }
            }
        });
    }
}
