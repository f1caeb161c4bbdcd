//! The identified caller of a request.

pub(crate) mod directory;
pub(crate) mod mesh;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use identity::{Identity, LeafIdentity, TrustDomain};
use model::{ActorId, Timestamp};
use tonic::Status;

use crate::caller::mesh::MeshTrust;
use crate::error::{Error, ErrorKind, RpcReason};
use crate::server::connection_state::StrangerConnectionState;

/// The verified identity behind a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    identity: Identity,
    issued_at: Option<Timestamp>,
    expires_at: Option<Timestamp>,
}

impl Caller {
    /// A service of this process.
    #[must_use]
    pub const fn local(identity: Identity) -> Self {
        Self { identity, issued_at: None, expires_at: None }
    }

    /// Returns the caller of a request.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` when the caller is not known, which can only happen in a
    /// method that its policy opens to anyone.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        request.extensions().get::<Self>().copied().ok_or_else(|| identity_required().into())
    }

    /// Returns the caller's identity.
    #[must_use]
    pub const fn identity(&self) -> Identity {
        self.identity
    }

    /// The actor, when it is one.
    #[must_use]
    pub const fn actor(&self) -> Option<ActorId> {
        match self.identity {
            Identity::Actor(id) => Some(id),
            Identity::Service(_) | Identity::Admin => None,
        }
    }

    /// The actor behind this request.
    ///
    /// # Errors
    /// As [`Caller::of`]; `PERMISSION_DENIED` for a service and the bootstrap identity, which have no roles.
    pub fn actor_of<T>(request: &tonic::Request<T>) -> Result<ActorId, Status> {
        let actor = Self::of(request)?.actor();
        actor.ok_or_else(|| Status::permission_denied("only actors have roles in a context"))
    }

    /// An actor that showed a token.
    pub(crate) const fn by_token(identity: Identity, issued_at: Timestamp, expires_at: Timestamp) -> Self {
        Self { identity, issued_at: Some(issued_at), expires_at: Some(expires_at) }
    }

    /// When its certificate or its token was issued; nothing for a caller of this process.
    #[must_use]
    pub const fn issued_at(&self) -> Option<Timestamp> {
        self.issued_at
    }

    /// When its certificate or its token ends; nothing for a caller of this process.
    #[must_use]
    pub const fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }
}

/// The other end of a TLS connection, found out once, after the handshake.
#[derive(Debug, Clone)]
pub(crate) struct ConnectionPeer {
    pub(crate) address: SocketAddr,
    pub(crate) identity: PeerIdentity,
    /// For which tokens have to be made.
    pub(crate) trust_domain: TrustDomain,
    /// A sidecar, which says of each call who makes it.
    pub(crate) mesh: Option<Arc<MeshTrust>>,
    /// How many calls of this connection ask for health and reflection.
    pub(crate) probes: Arc<AtomicUsize>,
    /// State of its connection, while it is one of a stranger's.
    pub(crate) connection: Option<Arc<StrangerConnectionState>>,
}

impl ConnectionPeer {
    pub(crate) fn new(address: SocketAddr, identity: PeerIdentity, trust_domain: TrustDomain) -> Self {
        Self { address, identity, trust_domain, mesh: None, probes: Arc::default(), connection: None }
    }

    /// Returns true for a peer whose certificate does not identify it: such a peer has to say with each call who it is.
    pub(crate) fn is_stranger(&self) -> bool {
        let is_known = matches!(self.identity, PeerIdentity::Known(_));
        self.mesh.is_none() && !is_known
    }

    /// Our own sidecar, which carries the calls of many.
    pub(crate) fn behind_sidecar(address: SocketAddr, trust: Arc<MeshTrust>) -> Self {
        let trust_domain = trust.ours().clone();
        Self { mesh: Some(trust), ..Self::new(address, PeerIdentity::Anonymous, trust_domain) }
    }
}

/// Identity in a peer's certificate.
#[derive(Debug, Clone)]
pub(crate) enum PeerIdentity {
    /// No certificate was given.
    Anonymous,
    /// Certificate of one of ours.
    Known(Caller),
    /// Certificate that our authority signed, but whose name is none that we know.
    Unusable(Arc<str>),
}

impl PeerIdentity {
    /// Reads a leaf whose chain was verified.
    pub(crate) fn from_leaf(der: Option<&[u8]>, ours: &TrustDomain) -> Self {
        let Some(der) = der else { return Self::Anonymous };
        match LeafIdentity::from_der(der) {
            Ok(leaf) if leaf.id.trust_domain == *ours => {
                let (issued_at, expires_at) = (Some(leaf.not_before), Some(leaf.not_after));
                Self::Known(Caller { identity: leaf.id.identity, issued_at, expires_at })
            }
            Ok(leaf) => Self::Unusable(
                format!("it is of trust domain {}, this server of {ours}", leaf.id.trust_domain).into(),
            ),
            Err(error) => {
                let detail = std::error::Error::source(&error).map(|s| format!(": {s}")).unwrap_or_default();
                Self::Unusable(format!("{error}{detail}").into())
            }
        }
    }
}

pub(crate) fn identity_required() -> Error {
    Error::new(
        ErrorKind::Unauthenticated,
        RpcReason::IdentityRequired,
        "this method needs a client certificate (`mycora pki issue` makes one) or an actor's token (`mycora token`), and \
         the call came without",
    )
}
