//! Network between nodes that are processes: connections on the loopback interface. Each node passes packets for
//! others on over all its other connections.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::identity::ip_of;
use crate::node::Node;
use crate::packet::Packet;

/// How often a neighbor that is not there is dialled. The real daemon takes ten times as long.
const REDIAL: Duration = Duration::from_millis(500);
/// Packets that may wait for a neighbor; what is more gets lost, and is repeated.
const WAITING_MAX: usize = 4096;

/// A neighbor that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Neighbor {
    /// Where it listens.
    pub address: SocketAddr,
    /// True while there is a connection.
    pub alive: bool,
}

/// The connections of one node. Clones are the same.
#[derive(Debug, Clone, Default)]
pub struct Mesh(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    links: Mutex<BTreeMap<u64, mpsc::Sender<Packet>>>,
    next: AtomicU64,
    neighbors: Mutex<Vec<Neighbor>>,
    /// Known keys, by their address.
    known: Mutex<HashMap<IpAddr, [u8; 32]>>,
}

impl Mesh {
    /// Listens, and dials the neighbors, for as long as the runtime lives.
    ///
    /// # Errors
    /// When the port is taken.
    pub async fn open(&self, node: &Node, port: u16, peers: &[SocketAddr]) -> io::Result<()> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await?;
        let (mesh, accepting) = (self.clone(), node.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (mesh, node) = (mesh.clone(), accepting.clone());
                tokio::spawn(async move { mesh.keep(stream, &node).await });
            }
        });
        for peer in peers.iter().copied() {
            self.neighbors().push(Neighbor { address: peer, alive: false });
            let (mesh, node) = (self.clone(), node.clone());
            tokio::spawn(async move { mesh.dial(peer, &node).await });
        }
        Ok(())
    }

    /// The neighbors that were named.
    #[must_use]
    pub fn named(&self) -> Vec<Neighbor> {
        self.neighbors().clone()
    }

    pub(crate) fn key_of(&self, ip: IpAddr) -> Option<[u8; 32]> {
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).get(&ip).copied()
    }

    pub(crate) fn carry(&self, packet: &Packet) {
        self.pass_on(packet, None);
    }

    fn pass_on(&self, packet: &Packet, but: Option<u64>) {
        let links = self.0.links.lock().unwrap_or_else(PoisonError::into_inner);
        for (_, link) in links.iter().filter(|(id, _)| Some(**id) != but) {
            // A neighbor that does not read loses packets.
            let _ = link.try_send(packet.clone());
        }
    }

    async fn dial(&self, address: SocketAddr, node: &Node) {
        loop {
            let again = Instant::now() + REDIAL;
            if let Ok(stream) = TcpStream::connect(address).await {
                self.note(address, true);
                self.keep(stream, node).await;
                self.note(address, false);
            }
            tokio::time::sleep_until(again).await;
        }
    }

    fn note(&self, address: SocketAddr, alive: bool) {
        self.neighbors().iter_mut().filter(|n| n.address == address).for_each(|n| n.alive = alive);
    }

    /// Until one end has enough.
    async fn keep(&self, stream: TcpStream, node: &Node) {
        // Only makes it faster.
        let _ = stream.set_nodelay(true);
        let id = self.0.next.fetch_add(1, Ordering::Relaxed);
        let (sender, mut packets) = mpsc::channel(WAITING_MAX);
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner).insert(id, sender);
        node.introduce();
        let (mut reader, mut writer) = stream.into_split();
        let reading = async {
            while let Ok(packet) = read(&mut reader).await {
                self.receive(packet, node, id);
            }
        };
        let writing = async {
            while let Some(packet) = packets.recv().await {
                let bytes = serde_json::to_vec(&packet).expect("packets can be written");
                let length = u32::try_from(bytes.len()).expect("packets are short");
                if writer.write_u32(length).await.is_err() || writer.write_all(&bytes).await.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = reading => {}
            () = writing => {}
        }
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    fn receive(&self, mut packet: Packet, node: &Node, link: u64) {
        let from = IpAddr::from(ip_of(&packet.from));
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner).insert(from, packet.from);
        if packet.to == IpAddr::from(node.identity().ip) {
            node.take(packet);
        } else if packet.hops > 0 {
            packet.hops -= 1;
            self.pass_on(&packet, Some(link));
        }
    }

    fn neighbors(&self) -> MutexGuard<'_, Vec<Neighbor>> {
        self.0.neighbors.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn read(from: &mut (impl AsyncReadExt + Unpin)) -> io::Result<Packet> {
    let length = from.read_u32().await?;
    let mut bytes = vec![0; length as usize];
    from.read_exact(&mut bytes).await?;
    serde_json::from_slice(&bytes).map_err(io::Error::other)
}
