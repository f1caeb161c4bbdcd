//! Verifies that a caller is who it says: the checks that the gate makes before it lets an actor in.
//!
//! Services and the bootstrap identity are believed by their certificates alone, and callers of this process as they are:
//! nothing is looked up for them. An actor's certificate counts only while the actor exists and has not revoked
//! certificates of that age; a token, only while the key that signed it counts. Both are looked up in the [`Directory`], which
//! answers from memory as long as it receives changes.

use std::sync::Arc;
use std::time::Duration;

use http::header::AUTHORIZATION;
use http::{HeaderMap, Request};
use identity::token::TokenVerdict;
use identity::{Identity, Token, VerifyingKey};
use model::{ActorId, Timestamp};
use tonic::Status;
use tonic::body::Body;

use crate::caller::directory::{Directory, DirectorySubject, KnownActor};
use crate::caller::{Caller, ConnectionPeer, PeerIdentity, identity_required};
use crate::error::{Error, ErrorKind, RpcReason};
use crate::gate::actor_limits::ActorCallPermit;
use crate::stream::member::{AccessGrantState, until_lost};

/// How long the directory may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Credentials that a request presents.
pub(crate) enum PresentedCredentials {
    /// Needs no looking up.
    Settled(Result<Option<Caller>, Error>),
    /// An actor, which has to be looked up.
    Actor(Box<ActorClaim>),
}

/// An actor as it says that it is.
pub(crate) struct ActorClaim {
    actor: ActorId,
    /// The client certificate, when it came with one of its own.
    certificate: Option<Caller>,
    token: Option<Token>,
}

/// A verified caller, and the credential that it was believed for.
#[derive(Clone)]
pub(crate) struct VerifiedCaller {
    pub(crate) caller: Caller,
    credential: Credential,
    /// The caller's share of the server, for as long as the call lasts.
    share: Option<Arc<ActorCallPermit>>,
}

/// Credential that has to stay in force while an actor's stream goes on.
#[derive(Clone)]
struct Credential {
    directory: Arc<dyn Directory>,
    actor: ActorId,
    certificate: Option<Caller>,
    key: Option<VerifyingKey>,
}

/// Reads what a request shows. Nothing of it is looked at where the method is `open` to anyone.
pub(crate) fn read_credentials(request: &Request<Body>, open: bool) -> PresentedCredentials {
    // A caller of this process brings its identity along; extensions cannot come over a connection.
    if let Some(local) = request.extensions().get::<Caller>() {
        return PresentedCredentials::Settled(Ok(Some(*local)));
    }
    let Some(peer) = request.extensions().get::<ConnectionPeer>() else {
        return PresentedCredentials::Settled(Ok(None));
    };
    if open {
        // Open methods look nothing up, so an actor is not identified for them: it may be revoked.
        let known = match &peer.identity {
            PeerIdentity::Known(caller) => Some(*caller).filter(|caller| caller.actor().is_none()),
            PeerIdentity::Anonymous | PeerIdentity::Unusable(_) => None,
        };
        return PresentedCredentials::Settled(Ok(known));
    }
    claimed(peer, request.headers()).unwrap_or_else(|error| PresentedCredentials::Settled(Err(error)))
}

fn claimed(peer: &ConnectionPeer, headers: &HeaderMap) -> Result<PresentedCredentials, Error> {
    let certificate = match &peer.identity {
        PeerIdentity::Anonymous => None,
        PeerIdentity::Known(caller) => Some(*caller),
        PeerIdentity::Unusable(why) => {
            return Err(unusable(format!("the client certificate cannot be used: {why}")));
        }
    };
    let Some(token) = bearer(headers)? else {
        return Ok(match certificate.and_then(|caller| caller.actor()) {
            Some(actor) => {
                PresentedCredentials::Actor(Box::new(ActorClaim { actor, certificate, token: None }))
            }
            None => PresentedCredentials::Settled(Ok(certificate)),
        });
    };
    let token = Token::read(token, &peer.trust_domain, Timestamp::now())
        .map_err(|error| unusable(format!("the token cannot be used: {error}")))?;
    let actor = token.actor();
    let certificate = match certificate.map(|caller| (caller, caller.identity())) {
        // A service in between, as a proxy with a certificate of its own.
        None | Some((_, Identity::Service(_))) => None,
        Some((caller, Identity::Actor(own))) if own == actor => Some(caller),
        Some((_, other)) => {
            let message = format!("the token is of actor {actor}, the client certificate of {other}");
            return Err(unusable(message));
        }
    };
    Ok(PresentedCredentials::Actor(Box::new(ActorClaim { actor, certificate, token: Some(token) })))
}

/// The token of `authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Result<Option<&str>, Error> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(unusable("`authorization` came more than once".to_owned()));
    }
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then(|| token.trim_matches(' '))
    });
    token.map(Some).ok_or_else(|| unusable("`authorization` has to be `Bearer <token>`".to_owned()))
}

impl ActorClaim {
    /// Returns the actor that the claim names.
    pub(crate) const fn actor(&self) -> ActorId {
        self.actor
    }

    /// Returns the claimed identity.
    pub(crate) const fn identity(&self) -> Identity {
        Identity::Actor(self.actor)
    }

    /// Verifies the claim against the directory.
    pub(crate) async fn verify(&self, directory: &Arc<dyn Directory>) -> Result<VerifiedCaller, Error> {
        let known = in_time(directory.actor(self.actor)).await?;
        let (now, identity) = (Timestamp::now(), self.identity());
        let Some(token) = &self.token else {
            let certificate = self.certificate.ok_or_else(identity_required)?;
            judge_certificate(known.as_deref(), self.actor, certificate)?;
            return Ok(self.believed(directory, certificate, None));
        };
        let keys = known.as_ref().map(|known| known.keys.as_slice()).unwrap_or_default();
        let key = match token.verify(keys, now) {
            TokenVerdict::Good(key) => key.key,
            TokenVerdict::Revoked => {
                return Err(revoked(self.actor, "the key that signed the token does not count"));
            }
            // The same for an actor that does not exist: who cannot sign learns nothing.
            TokenVerdict::Refused => {
                return Err(unusable(format!(
                    "no key of `{identity}` that counts, or that the token names, has signed it"
                )));
            }
        };
        if let Some(certificate) = self.certificate {
            judge_certificate(known.as_deref(), self.actor, certificate)?;
        }
        let caller = Caller::by_token(identity, token.issued_at(), token.expires_at());
        Ok(self.believed(directory, caller, Some(key)))
    }

    /// Uses up the token, for methods that take each only once.
    pub(crate) async fn consume_token(&self, directory: &Arc<dyn Directory>) -> Result<(), Error> {
        let Some(token) = &self.token else { return Ok(()) };
        let until = token.expires_at() + identity::token::TOKEN_SKEW;
        if in_time(directory.consume_token(self.actor, token.id().to_owned(), until)).await? {
            return Ok(());
        }
        let message = "this token was used before, and this method takes each only once: make a new one (`mycora token`)";
        Err(unusable(message.to_owned()))
    }

    fn believed(
        &self,
        directory: &Arc<dyn Directory>,
        caller: Caller,
        key: Option<VerifyingKey>,
    ) -> VerifiedCaller {
        let credential = Credential {
            directory: Arc::clone(directory),
            actor: self.actor,
            certificate: self.certificate,
            key,
        };
        VerifiedCaller { caller, credential, share: None }
    }
}

impl VerifiedCaller {
    /// Returns the caller with a share of the server added.
    pub(crate) fn sharing(self, share: ActorCallPermit) -> Self {
        Self { share: Some(Arc::new(share)), ..self }
    }

    /// Waits until the caller is not believed any more, and returns the status that it gets. That a token has expired does not
    /// matter: it was good when the stream began.
    pub(crate) async fn until_revoked(self) -> Status {
        let Self { credential: Credential { directory, actor, certificate, key }, share: _share, .. } = self;
        until_lost(&*directory, DirectorySubject::Actor(actor), || async {
            let known = directory.actor(actor).await?;
            let judged =
                certificate.map_or(Ok(()), |shown| judge_certificate(known.as_deref(), actor, shown));
            let judged = judged.and_then(|()| judge_key(known.as_deref(), actor, key));
            Ok(match judged {
                Ok(until) => AccessGrantState::Holds { until },
                Err(error) => AccessGrantState::Lost(error.into()),
            })
        })
        .await
    }
}

fn judge_certificate(known: Option<&KnownActor>, actor: ActorId, shown: Caller) -> Result<(), Error> {
    let Some(known) = known else {
        return Err(revoked(actor, "the actor does not exist here, or was removed"));
    };
    // A caller without an issue time cannot prove that its certificate is newer than the revocation.
    let counts =
        known.certificates_not_before.is_none_or(|from| shown.issued_at().is_some_and(|at| at >= from));
    if counts { Ok(()) } else { Err(revoked(actor, "its certificate was issued before it was revoked")) }
}

/// The end of the key with which a stream began, when one is set.
fn judge_key(
    known: Option<&KnownActor>,
    actor: ActorId,
    key: Option<VerifyingKey>,
) -> Result<Option<Timestamp>, Error> {
    let Some(key) = key else { return Ok(None) };
    let now = Timestamp::now();
    // One that was given up and taken again stands there twice.
    let kept = known.iter().flat_map(|known| &known.keys).filter(|kept| kept.key == key);
    let ends: Vec<_> =
        kept.map(|kept| kept.revoked_at).filter(|end| end.is_none_or(|end| end > now)).collect();
    match ends.as_slice() {
        [] => Err(revoked(actor, "the key that signed the token does not count any more")),
        ends if ends.contains(&None) => Ok(None),
        ends => Ok(ends.iter().copied().flatten().max()),
    }
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Status>>) -> Result<T, Error> {
    let why = match tokio::time::timeout(LOOKUP_TIMEOUT, answer).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(status)) => status.message().to_owned(),
        Err(_) => format!("no answer within {} s", LOOKUP_TIMEOUT.as_secs()),
    };
    let message = format!("who calls cannot be looked up now: {why}");
    Err(Error::unavailable(RpcReason::PeerUnavailable, message))
}

fn unusable(message: String) -> Error {
    Error::new(ErrorKind::Unauthenticated, RpcReason::IdentityUnusable, message)
}

fn revoked(actor: ActorId, why: &str) -> Error {
    let message = format!("actor {actor} is not believed: {why}");
    Error::new(ErrorKind::Unauthenticated, RpcReason::IdentityRevoked, message)
}

/// Returns the error that a server without a directory gives to actors that its policy would let in.
pub(crate) fn cannot_look_up() -> Error {
    unusable(
        "this server cannot look actors up, so it believes neither their certificates nor tokens".to_owned(),
    )
}
