//! Callers behind a sidecar, identified by a header of the mesh.
//!
//! A mesh does mTLS between sidecars, and a sidecar names the other side to its program in a header.
//! Anybody who reaches such a port can write that header. So it is believed only on the listener that is meant for the
//! sidecar, and only the header that this very mesh strips from incoming requests: behind Linkerd
//! anybody can send `x-forwarded-client-cert`.

use std::str::FromStr;

use http::{HeaderMap, HeaderName, Request};
use identity::{Identity, ServiceName, TrustDomain};

use crate::caller::{Caller, ConnectionPeer, PeerIdentity};

const LINKERD_HEADER: HeaderName = HeaderName::from_static("l5d-client-id");
const ENVOY_HEADER: HeaderName = HeaderName::from_static("x-forwarded-client-cert");
/// Infix between a service account's namespace and the control plane's in a name of Linkerd.
const LINKERD_INFIX: &str = ".serviceaccount.identity.";
/// A service account may be called `mycora-scheduler` instead of `scheduler`.
const ACCOUNT_PREFIX: &str = "mycora-";

/// Which mesh.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeshKind {
    /// `l5d-client-id`, which Linkerd's proxy sets.
    Linkerd,
    /// `x-forwarded-client-cert`, which Envoy sets, for instance in Istio.
    Istio,
}

/// Workloads that a mesh may vouch for: those that run as a service account of one namespace, and are called as a
/// service of ours. All others are callers without an identity, as those without a certificate elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MeshTrust {
    kind: MeshKind,
    domain: String,
    namespace: String,
    ours: TrustDomain,
}

impl MeshTrust {
    /// Trusts this mesh for the service accounts of `namespace` in its own trust domain, which is `cluster.local`
    /// unless the mesh was set up otherwise. `ours` is the one that actors' tokens are made for.
    pub fn new(
        kind: MeshKind,
        domain: impl Into<String>,
        namespace: impl Into<String>,
        ours: TrustDomain,
    ) -> Self {
        Self { kind, domain: domain.into(), namespace: namespace.into(), ours }
    }

    pub(crate) const fn ours(&self) -> &TrustDomain {
        &self.ours
    }

    fn identify(&self, headers: &HeaderMap) -> PeerIdentity {
        let claimed = match self.kind {
            MeshKind::Linkerd => single(headers, &LINKERD_HEADER),
            MeshKind::Istio => last_uri(headers),
        };
        match claimed {
            Ok(None) => PeerIdentity::Anonymous,
            Ok(Some(name)) => match self.service(&name) {
                Some(service) => PeerIdentity::Known(Caller::local(Identity::Service(service))),
                None => {
                    tracing::debug!(name, "the name in the mesh header is not one of our services");
                    PeerIdentity::Anonymous
                }
            },
            Err(why) => PeerIdentity::Unusable(why.into()),
        }
    }

    /// The service that runs under this name of a workload.
    fn service(&self, workload: &str) -> Option<ServiceName> {
        let account = match self.kind {
            MeshKind::Linkerd => {
                let (subject, authority) = workload.split_once(LINKERD_INFIX)?;
                let (_control_plane, domain) = authority.split_once('.')?;
                let (account, namespace) = subject.rsplit_once('.')?;
                (domain == self.domain && namespace == self.namespace).then_some(account)?
            }
            MeshKind::Istio => {
                let path = workload.strip_prefix("spiffe://")?.strip_prefix(&self.domain)?;
                path.strip_prefix("/ns/")?.strip_prefix(&self.namespace)?.strip_prefix("/sa/")?
            }
        };
        ServiceName::from_str(account.strip_prefix(ACCOUNT_PREFIX).unwrap_or(account)).ok()
    }
}

/// Finds out who calls where a mesh says it, and takes what a mesh would say out of every request: nothing
/// behind this may ever read it.
pub(crate) fn resolve_caller<B>(request: &mut Request<B>) {
    let trust = request.extensions().get::<ConnectionPeer>().and_then(|peer| peer.mesh.clone());
    if let Some(trust) = trust {
        let identity = trust.identify(request.headers());
        if let Some(peer) = request.extensions_mut().get_mut::<ConnectionPeer>() {
            peer.identity = identity;
        }
    }
    request.headers_mut().remove(LINKERD_HEADER);
    request.headers_mut().remove(ENVOY_HEADER);
}

/// The value of a header that may be there once.
fn single(headers: &HeaderMap, name: &HeaderName) -> Result<Option<String>, &'static str> {
    let mut values = headers.get_all(name).iter();
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err("the mesh's header came more than once");
    }
    let text = value.to_str().map_err(|_| "the mesh's header is no text")?;
    Ok((!text.is_empty()).then(|| text.to_owned()))
}

/// The URI of the peer that is nearest: each proxy on the way appends an element.
fn last_uri(headers: &HeaderMap) -> Result<Option<String>, &'static str> {
    let Some(value) = headers.get_all(ENVOY_HEADER).iter().next_back() else { return Ok(None) };
    let text = value.to_str().map_err(|_| "x-forwarded-client-cert is no text")?;
    let elements = split_unquoted(text, ',').ok_or("a quote in x-forwarded-client-cert is not closed")?;
    let Some(last) = elements.last().filter(|element| !element.is_empty()) else { return Ok(None) };
    let pairs = split_unquoted(last, ';').ok_or("a quote in x-forwarded-client-cert is not closed")?;
    let mut uris = pairs.iter().filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        key.trim().eq_ignore_ascii_case("uri").then(|| value.trim().trim_matches('"'))
    });
    let first = uris.next().filter(|uri| !uri.is_empty());
    if uris.next().is_some() {
        return Err("x-forwarded-client-cert has more than one URI for the peer");
    }
    Ok(first.map(str::to_owned))
}

/// Splits where the separator does not stand in double quotes; none when a quote stays open.
fn split_unquoted(text: &str, separator: char) -> Option<Vec<&str>> {
    let (mut parts, mut begin, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, character) in text.char_indices() {
        match character {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if character == separator && !quoted => {
                parts.push(text[begin..at].trim());
                begin = at + character.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(text[begin..].trim());
    (!quoted).then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn istio() -> MeshTrust {
        MeshTrust::new(MeshKind::Istio, "cluster.local", "mycora", TrustDomain::default())
    }

    fn linkerd() -> MeshTrust {
        MeshTrust::new(MeshKind::Linkerd, "cluster.local", "mycora", TrustDomain::default())
    }

    fn says(trust: &MeshTrust, header: &HeaderName, values: &[&str]) -> String {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(header, value.parse().expect("a header value"));
        }
        match trust.identify(&headers) {
            PeerIdentity::Anonymous => "nobody".to_owned(),
            PeerIdentity::Known(caller) => caller.identity().to_string(),
            PeerIdentity::Unusable(_) => "unusable".to_owned(),
        }
    }

    #[test]
    fn linkerd_vouches_for_accounts_of_one_namespace() {
        for (value, want) in [
            ("scheduler.mycora.serviceaccount.identity.linkerd.cluster.local", "service/scheduler"),
            ("mycora-router.mycora.serviceaccount.identity.linkerd.cluster.local", "service/router"),
            ("scheduler.other.serviceaccount.identity.linkerd.cluster.local", "nobody"),
            ("scheduler.mycora.serviceaccount.identity.linkerd.cluster.local.evil", "nobody"),
            ("a.scheduler.mycora.serviceaccount.identity.linkerd.cluster.local", "nobody"),
            ("admin.mycora.serviceaccount.identity.linkerd.cluster.local", "nobody"),
            ("scheduler", "nobody"),
            ("", "nobody"),
        ] {
            assert_eq!(says(&linkerd(), &LINKERD_HEADER, &[value]), want, "{value}");
        }
        let good = "scheduler.mycora.serviceaccount.identity.linkerd.cluster.local";
        assert_eq!(says(&linkerd(), &LINKERD_HEADER, &[good, good]), "unusable");
        assert_eq!(says(&linkerd(), &LINKERD_HEADER, &[]), "nobody");
        // Linkerd does not strip the other mesh's header.
        let forged = "URI=spiffe://cluster.local/ns/mycora/sa/scheduler";
        assert_eq!(says(&linkerd(), &ENVOY_HEADER, &[forged]), "nobody");
    }

    #[test]
    fn envoy_vouches_for_the_nearest_peer() {
        let scheduler = "By=spiffe://x;Hash=ab;Subject=\"CN=a,b;c\\\"\";URI=spiffe://cluster.local/ns/mycora/sa/scheduler";
        let router = "URI=spiffe://cluster.local/ns/mycora/sa/router";
        for (values, want) in [
            (vec![scheduler], "service/scheduler"),
            (vec![router, scheduler], "service/scheduler"),
            (vec!["URI=\"spiffe://cluster.local/ns/mycora/sa/mycora-storage\""], "service/storage"),
            (vec!["URI=spiffe://cluster.local/ns/other/sa/router"], "nobody"),
            (vec!["URI=spiffe://cluster.local.evil/ns/mycora/sa/router"], "nobody"),
            (vec!["URI=spiffe://cluster.local/ns/mycora/sa/router/x"], "nobody"),
            (vec!["URI=spiffe://mycora/service/router"], "nobody"),
            (vec!["Hash=ab"], "nobody"),
            (vec![""], "nobody"),
            (vec!["URI=a;URI=b"], "unusable"),
            (vec!["Subject=\"open"], "unusable"),
        ] {
            assert_eq!(says(&istio(), &ENVOY_HEADER, &values), want, "{values:?}");
        }
        let both = format!("{router},{scheduler}");
        assert_eq!(says(&istio(), &ENVOY_HEADER, &[&both]), "service/scheduler");
    }
}
