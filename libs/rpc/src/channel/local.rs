//! Calling a service of the same process.

use std::time::Duration;

use tokio::sync::watch;
use tonic::Status;

use crate::error::{Error, RpcReason};
use crate::gate::Gate;
use crate::server::mount::Mount;

/// How long a call waits for a service that is still starting.
const START_PATIENCE: Duration = Duration::from_secs(10);

/// The side of the service: where its mount is put once it exists.
#[derive(Debug)]
pub struct LocalServer {
    name: &'static str,
    gate: watch::Sender<Option<Gate>>,
}

impl LocalServer {
    /// A place for the service of this name, so that its clients can be wired before it exists.
    #[must_use]
    pub fn new(name: &'static str) -> Self {
        Self { name, gate: watch::Sender::new(None) }
    }

    /// For those who will call it.
    #[must_use]
    pub fn handle(&self) -> LocalHandle {
        LocalHandle { name: self.name, gate: self.gate.subscribe() }
    }

    /// From now on calls go to this mount.
    pub fn publish(&self, mount: &Mount) {
        self.gate.send_replace(Some(mount.gate.clone()));
    }

    /// From now on calls wait again, for 10 s at most. Those under way go on.
    pub fn withdraw(&self) {
        self.gate.send_replace(None);
    }
}

/// The side of those who call. Cheap to clone.
#[derive(Debug, Clone)]
pub struct LocalHandle {
    name: &'static str,
    gate: watch::Receiver<Option<Gate>>,
}

impl LocalHandle {
    /// Returns the name of the service.
    pub(crate) const fn name(&self) -> &'static str {
        self.name
    }

    /// The service when it is there already.
    pub(crate) fn now(&self) -> Option<Gate> {
        self.gate.borrow().clone()
    }

    /// The service, as soon as it is there.
    pub(crate) async fn when_published(mut self) -> Result<Gate, Status> {
        let published = tokio::time::timeout(START_PATIENCE, self.gate.wait_for(Option::is_some)).await;
        let gate = published.ok().and_then(Result::ok).and_then(|gate| gate.clone());
        gate.ok_or_else(|| {
            let message = format!("{} is not running in this process", self.name);
            Error::unavailable(RpcReason::NotReady, message).into()
        })
    }
}
