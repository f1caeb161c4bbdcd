//! A daemon in this process.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::Duration;

use jsonrpsee_server::ServerHandle;
use testkit::{PATIENCE, wait_until_blocking};
use tokio::runtime::Runtime;

use crate::identity::Identity;
use crate::node::{Clock, Node};
use crate::overlay::Overlay;
use crate::server;
use crate::traps::Traps;

/// A daemon of an [`Overlay`], on a runtime of its own, so that it can be killed like a process.
#[derive(Debug)]
pub struct StandIn {
    identity: Identity,
    traps: Traps,
    overlay: Overlay,
    clock: Clock,
    address: SocketAddr,
    running: Option<Running>,
    /// State of the previous process, where a restart forgets nothing.
    former: Option<Node>,
}

#[derive(Debug)]
struct Running {
    node: Node,
    runtime: Runtime,
    _server: ServerHandle,
}

impl StandIn {
    /// Starts one with a new identity, on a free port.
    ///
    /// # Panics
    /// When there is no port, or no thread, left.
    #[must_use]
    pub fn start(overlay: &Overlay, traps: Traps) -> Self {
        let mut this = Self::stopped(overlay, traps);
        this.launch();
        this
    }

    /// One that is not started yet; its port is known already.
    ///
    /// # Panics
    /// When there is no port left.
    #[must_use]
    pub fn stopped(overlay: &Overlay, traps: Traps) -> Self {
        Self {
            identity: Identity::random(),
            traps,
            overlay: overlay.clone(),
            clock: Clock::default(),
            address: (Ipv4Addr::LOCALHOST, testkit::free_port()).into(),
            running: None,
            former: None,
        }
    }

    /// Starts it, with the same identity on the same port.
    ///
    /// # Panics
    /// When the port stays taken.
    pub fn launch(&mut self) {
        let bind = || {
            let listener = TcpListener::bind(self.address).ok()?;
            listener.set_nonblocking(true).ok()?;
            Some(listener)
        };
        let listener = wait_until_blocking(bind, PATIENCE, format!("{} is free", self.address));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("stand-in")
            .enable_all()
            .build()
            .expect("a runtime");
        let entered = runtime.enter();
        let node = Node::on_overlay(self.identity, self.traps, self.clock.clone(), self.overlay.clone());
        if let Some(former) = self.former.take().filter(|_| !self.traps.forgets) {
            node.inherit(&former);
        }
        let server = server::serve(node.clone(), listener).expect("a listener that is bound");
        drop(entered);
        self.overlay.join(node.clone());
        self.running = Some(Running { node, runtime, _server: server });
    }

    /// Kills it: connections end in the middle, and what is in memory is gone.
    pub fn kill(&mut self) {
        self.overlay.leave(self.identity);
        if let Some(Running { node, runtime, .. }) = self.running.take() {
            runtime.shutdown_background();
            self.former = Some(node);
        }
    }

    /// Kills it and starts it again.
    pub fn restart(&mut self) {
        self.kill();
        self.launch();
    }

    /// Lets time pass for it.
    pub fn advance(&self, by: Duration) {
        self.clock.advance(by);
    }

    /// Returns the identity of the node.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// Where its API is: `http` or `ws`.
    #[must_use]
    pub fn url(&self, scheme: &str) -> String {
        format!("{scheme}://{}", self.address)
    }
}

impl Drop for StandIn {
    fn drop(&mut self) {
        self.overlay.leave(self.identity);
        if let Some(running) = self.running.take() {
            running.runtime.shutdown_background();
        }
    }
}
