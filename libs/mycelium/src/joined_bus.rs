//! Two buses as one: the nodes of this program, and everybody else.

use std::net::Ipv6Addr;
use std::sync::Arc;

use async_trait::async_trait;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::bus::{
    Bus, BusDestination, BusError, BusInbox, BusStatus, Datagram, INBOX_LEN, IncomingPayload, PublicKey,
};
use crate::memory::MemoryBus;

/// Reaches nodes of this program in memory, and all others through another bus, whose node it is to them.
pub struct JoinedBus {
    near: MemoryBus,
    far: Arc<dyn Bus>,
}

impl JoinedBus {
    /// Joins a node of this program with the bus that leads elsewhere.
    #[must_use]
    pub const fn new(near: MemoryBus, far: Arc<dyn Bus>) -> Self {
        Self { near, far }
    }

    fn towards(&self, to: BusDestination) -> &dyn Bus {
        if self.near.leads_to(to) { &self.near } else { &*self.far }
    }
}

#[async_trait]
impl Bus for JoinedBus {
    fn key(&self) -> Option<PublicKey> {
        self.far.key()
    }

    fn kind(&self) -> &'static str {
        self.far.kind()
    }

    fn status(&self) -> watch::Receiver<BusStatus> {
        self.far.status()
    }

    fn is_in_process(&self, node: PublicKey) -> bool {
        self.near.leads_to(BusDestination::Key(node)) && self.near.is_in_process(node)
    }

    fn window(&self) -> usize {
        self.far.window()
    }

    async fn key_of(&self, ip: Ipv6Addr) -> Result<PublicKey, BusError> {
        self.towards(BusDestination::Ip(ip)).key_of(ip).await
    }

    async fn send(&self, parcel: Datagram<'_>) -> Result<(), BusError> {
        self.towards(parcel.to).send(parcel).await
    }

    async fn ping(&self, to: BusDestination, topic: &str, deadline: Instant) -> Result<(), BusError> {
        self.towards(to).ping(to, topic, deadline).await
    }

    fn listen(&self, topic: &str) -> Result<BusInbox, BusError> {
        let (sender, payloads) = mpsc::channel(INBOX_LEN);
        let shortcut = self.near.listen_through(topic, sender.clone())?;
        tokio::spawn(pass_on(self.far.listen(topic)?, sender));
        Ok(BusInbox::with_shortcut(payloads, shortcut))
    }
}

/// Forwards payloads from elsewhere, until the listener is gone.
async fn pass_on(mut inbox: BusInbox, to: mpsc::Sender<IncomingPayload>) {
    loop {
        let next = tokio::select! {
            next = inbox.next() => next,
            () = to.closed() => return,
        };
        let Some(incoming) = next else { return };
        if to.send(incoming).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::bus::PayloadForm;
    use crate::memory::MemoryNetwork;

    #[tokio::test]
    async fn each_node_is_reached_through_its_own_bus() {
        let (program, elsewhere) = (MemoryNetwork::within_one_program(), MemoryNetwork::default());
        let node = |network: &MemoryNetwork| network.node(PublicKey::random());
        let (part, stranger) = (node(&program), node(&elsewhere));
        let (near, far) = (node(&program), node(&elsewhere));
        let (near_key, far_key) = (near.key(), far.key());
        let joined = JoinedBus::new(near, Arc::new(far));
        assert_eq!(Bus::key(&joined), Some(far_key));
        assert!(joined.is_in_process(part.key()));
        assert!(!joined.is_in_process(stranger.key()));

        let mut inbox = joined.listen("t").expect("free");
        for (other, here) in [(&part, near_key), (&stranger, far_key)] {
            let parcel = |to| Datagram {
                to: BusDestination::Key(to),
                topic: "t",
                payload: Bytes::from_static(b"{}"),
                form: PayloadForm::Framed,
                deadline: None,
                reply_to: None,
            };
            let mut there = other.listen("t").expect("free");
            joined.send(parcel(other.key())).await.expect("sent");
            assert_eq!(there.next().await.expect("it came").from, here);
            other.send(parcel(here)).await.expect("sent");
            assert_eq!(inbox.next().await.expect("it came").from, other.key());
            assert_eq!(joined.key_of(other.ip()).await, Ok(other.key()));
        }
        drop(inbox);
        // The task that passed on lets go of its topic.
        while joined.listen("t").is_err() {
            tokio::task::yield_now().await;
        }
    }
}
