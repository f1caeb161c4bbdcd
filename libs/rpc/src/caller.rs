//! Who calls.

use std::net::SocketAddr;
use std::sync::Arc;

use identity::{Identity, LeafIdentity, TrustDomain};
use model::{ActorId, Timestamp};
use tonic::Status;

use crate::error::{Error, ErrorKind};
use crate::reason::Reason;

/// The verified identity behind a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    identity: Identity,
    issued_at: Option<Timestamp>,
}

impl Caller {
    /// A service of this process.
    #[must_use]
    pub const fn local(identity: Identity) -> Self {
        Self { identity, issued_at: None }
    }

    /// Who made this request.
    ///
    /// # Errors
    /// `UNAUTHENTICATED` when nobody is known, which can only happen in a
    /// method that its policy opens to anyone.
    pub fn of<T>(request: &tonic::Request<T>) -> Result<Self, Status> {
        request.extensions().get::<Self>().copied().ok_or_else(|| identity_required().into())
    }

    /// Its identity.
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

    /// When its certificate was issued; nothing for a service of this process.
    /// A certificate from before the actor was revoked does not count.
    #[must_use]
    pub const fn issued_at(&self) -> Option<Timestamp> {
        self.issued_at
    }
}

/// The other end of a TLS connection, found out once, after the handshake.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    pub(crate) identity: PeerIdentity,
}

/// What a peer's certificate says.
#[derive(Debug, Clone)]
pub(crate) enum PeerIdentity {
    /// It gave none.
    Anonymous,
    /// It is one of ours.
    Known(Caller),
    /// It was signed by our authority, but names nobody whom we know.
    Unusable(Arc<str>),
}

impl PeerIdentity {
    /// Reads a leaf whose chain was verified.
    pub(crate) fn from_leaf(der: Option<&[u8]>, ours: &TrustDomain) -> Self {
        let Some(der) = der else { return Self::Anonymous };
        match LeafIdentity::from_der(der) {
            Ok(leaf) if leaf.id.trust_domain == *ours => {
                Self::Known(Caller { identity: leaf.id.identity, issued_at: Some(leaf.not_before) })
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
        Reason::IdentityRequired,
        "this method needs a client certificate (`mycora pki issue` makes one) and the call came without",
    )
}
