//! SPIFFE ids: `spiffe://<trust domain>/service/<name>`, `/actor/<id>`, `/admin`.
//!
//! The form follows the SPIFFE ID standard: lower-case trust domain, no port,
//! no user, no query, no fragment, no empty or dotted path segments.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use model::ActorId;

/// A trust domain has at most this many characters (SPIFFE ID 2.1).
const TRUST_DOMAIN_CHARS_MAX: usize = 255;
/// How much of a refused text an error repeats.
const QUOTED_CHARS_MAX: usize = 120;

/// Name of the domain that one certificate authority issues identities for. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrustDomain(Arc<str>);

impl TrustDomain {
    /// The trust domain of a suite that was not given another one.
    pub const DEFAULT: &'static str = "mycora";

    /// The text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for TrustDomain {
    fn default() -> Self {
        Self(Self::DEFAULT.into())
    }
}

impl FromStr for TrustDomain {
    type Err = SpiffeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, b'.' | b'-' | b'_');
        if text.is_empty() || text.len() > TRUST_DOMAIN_CHARS_MAX || !text.bytes().all(allowed) {
            return Err(SpiffeError::TrustDomain(quote(text)));
        }
        Ok(Self(text.into()))
    }
}

impl fmt::Display for TrustDomain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

macro_rules! service_names {
    ($($(#[$doc:meta])* $name:ident = $text:literal),+ $(,)?) => {
        /// One of the services of the suite.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum ServiceName {
            $($(#[$doc])* $name),+
        }

        impl ServiceName {
            /// All of them.
            pub const ALL: &'static [Self] = &[$(Self::$name),+];

            /// Returns the name that stands in an id, a host name and a file name.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$name => $text),+ }
            }
        }
    };
}

service_names! {
    /// Owns the coordinator's state.
    Storage = "storage",
    /// Runs flows.
    Scheduler = "scheduler",
    /// Gets messages delivered.
    Router = "router",
    /// Knows where jobs can run.
    RunnerRegistry = "runner-registry",
    /// Exchanges messages with other machines.
    MyceliumGateway = "mycelium-gateway",
    /// Owns a machine's work queues.
    Supervisor = "supervisor",
    /// Executes scripts.
    Runner = "runner",
    /// Runs sagas.
    Saga = "saga",
    /// Every service in one process, and the command line.
    Mycora = "mycora",
}

impl FromStr for ServiceName {
    type Err = SpiffeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|name| name.as_str() == text);
        found.copied().ok_or_else(|| SpiffeError::Service(quote(text)))
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Identity within a trust domain.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identity {
    /// A service of the suite, acting for itself.
    Service(ServiceName),
    /// An actor.
    Actor(ActorId),
    /// The bootstrap identity: registers the first actors and contexts.
    Admin,
}

impl Identity {
    /// The name of the files that hold its certificate and key: `scheduler`, `actor-7`, `admin`.
    #[must_use]
    pub fn file_stem(self) -> String {
        self.to_string().trim_start_matches("service/").replace('/', "-")
    }
}

impl fmt::Display for Identity {
    /// The path of its SPIFFE id, without the leading slash.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Service(name) => write!(f, "service/{name}"),
            Self::Actor(id) => write!(f, "actor/{id}"),
            Self::Admin => f.write_str("admin"),
        }
    }
}

impl FromStr for Identity {
    type Err = SpiffeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('/') {
            None if text == "admin" => Ok(Self::Admin),
            Some(("service", name)) => Ok(Self::Service(name.parse()?)),
            Some(("actor", id)) => {
                let parsed: ActorId = id.parse().map_err(|_| SpiffeError::Actor(quote(id)))?;
                // `007` and `+7` would be a second spelling of the same actor.
                if parsed.0 == 0 || parsed.to_string() != id {
                    return Err(SpiffeError::Actor(quote(id)));
                }
                Ok(Self::Actor(parsed))
            }
            _ => Err(SpiffeError::Path(quote(text))),
        }
    }
}

/// An identity together with the trust domain that vouches for it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpiffeId {
    /// Trust domain that vouches.
    pub trust_domain: TrustDomain,
    /// Identity that is vouched for.
    pub identity: Identity,
}

impl SpiffeId {
    /// Pairs the two.
    #[must_use]
    pub const fn new(trust_domain: TrustDomain, identity: Identity) -> Self {
        Self { trust_domain, identity }
    }
}

impl fmt::Display for SpiffeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "spiffe://{}/{}", self.trust_domain, self.identity)
    }
}

impl FromStr for SpiffeId {
    type Err = SpiffeError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let rest = text.strip_prefix("spiffe://").ok_or_else(|| SpiffeError::Scheme(quote(text)))?;
        let (trust_domain, path) = rest.split_once('/').ok_or_else(|| SpiffeError::Path(String::new()))?;
        Ok(Self { trust_domain: trust_domain.parse()?, identity: path.parse()? })
    }
}

/// Why a text is no identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpiffeError {
    /// The text does not begin as a SPIFFE id does.
    #[error("`{0}` is no SPIFFE id: it has to begin with spiffe://")]
    Scheme(String),
    /// The trust domain is empty, too long or has other characters.
    #[error("`{0}` is no trust domain: 1 to 255 characters of a-z 0-9 . - _")]
    TrustDomain(String),
    /// The path is of no known form.
    #[error("`{0}` names no identity: expected service/<name>, actor/<id> or admin")]
    Path(String),
    /// There is no such service.
    #[error("`{0}` is no service of this suite")]
    Service(String),
    /// The actor is no number above 0, or is not written plainly.
    #[error("`{0}` is no actor id: a number from 1 to 4294967295 without leading zeros")]
    Actor(String),
}

fn quote(text: &str) -> String {
    text.chars().take(QUOTED_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ids_have_one_spelling() {
        for text in
            ["spiffe://mycora/service/runner-registry", "spiffe://a.b-c_1/actor/7", "spiffe://m/admin"]
        {
            let id: SpiffeId = text.parse().expect("a good id");
            assert_eq!(id.to_string(), text);
        }
    }

    #[test]
    fn other_texts_are_refused() {
        let refused = [
            "",
            "http://mycora/admin",
            "SPIFFE://mycora/admin",
            "spiffe://",
            "spiffe:///admin",
            "spiffe://mycora",
            "spiffe://mycora/",
            "spiffe://mycora/admin/",
            "spiffe://mycora//admin",
            "spiffe://mycora/admin?x=1",
            "spiffe://mycora/admin#x",
            "spiffe://Mycora/admin",
            "spiffe://mycora:443/admin",
            "spiffe://user@mycora/admin",
            "spiffe://mycora/actor/0",
            "spiffe://mycora/actor/007",
            "spiffe://mycora/actor/+7",
            "spiffe://mycora/actor/4294967296",
            "spiffe://mycora/service/unknown",
            "spiffe://mycora/service/storage/x",
            "spiffe://mycora/service/../admin",
        ];
        for text in refused {
            assert!(text.parse::<SpiffeId>().is_err(), "{text} was accepted");
        }
    }

    #[test]
    fn files_are_named_after_the_identity() {
        assert_eq!(Identity::Service(ServiceName::RunnerRegistry).file_stem(), "runner-registry");
        assert_eq!(Identity::Actor(ActorId(7)).file_stem(), "actor-7");
        assert_eq!(Identity::Admin.file_stem(), "admin");
    }

    proptest! {
        #[test]
        fn parsing_never_panics_and_round_trips(text in "\\PC{0,60}|spiffe://[a-z.]{1,8}/(actor/[0-9]{1,10}|admin)") {
            if let Ok(id) = text.parse::<SpiffeId>() {
                prop_assert_eq!(id.to_string(), text);
            }
        }
    }
}
