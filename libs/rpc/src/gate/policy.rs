//! Which identity may call which method. Everything else is denied.

use std::collections::{BTreeMap, HashMap, HashSet};

use identity::{Identity, ServiceName};

/// Rows of patterns and whom they admit, as a service writes them down:
/// `("/mycora.v1.FlowService/*", &[Allow::AnyActor, Allow::Admin])`.
pub type PolicyTable<'a> = &'a [(&'a str, &'a [Allow])];

/// Callers that a method admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Allow {
    /// One service, by its name.
    Service(ServiceName),
    /// Every service.
    AnyService,
    /// Every actor; what it may do there is decided by its role.
    AnyActor,
    /// The bootstrap identity.
    Admin,
    /// Everybody with an identity.
    Authenticated,
    /// Everybody who can connect. For health and reflection.
    Anyone,
}

impl Allow {
    fn admits(self, identity: Option<Identity>) -> bool {
        match (self, identity) {
            (Self::Anyone, _) => true,
            (_, None) => false,
            (Self::Authenticated, Some(_)) => true,
            (Self::Service(allowed), Some(Identity::Service(name))) => allowed == name,
            (Self::AnyService, Some(Identity::Service(_)))
            | (Self::AnyActor, Some(Identity::Actor(_)))
            | (Self::Admin, Some(Identity::Admin)) => true,
            (Self::Service(_) | Self::AnyService | Self::AnyActor | Self::Admin, Some(_)) => false,
        }
    }
}

/// Decision of a policy about one call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MethodPolicyDecision {
    /// Go on.
    Allowed,
    /// The caller is not known, and the method needs an identity.
    IdentityRequired,
    /// The caller's identity may not call the method.
    Denied,
}

/// A table of method patterns and identities. Default deny.
#[derive(Debug, Clone)]
pub struct MethodPolicy {
    /// `/package.Service/Method` → whom it admits; goes before `services`.
    methods: HashMap<String, Vec<Allow>>,
    /// `package.Service` → whom its other methods admit.
    services: BTreeMap<String, Vec<Allow>>,
    /// `/package.Service/Method` of those that take a token only once.
    administrative: HashSet<String>,
}

impl MethodPolicy {
    /// Builds it from tables of patterns, each `/package.Service/Method` or `/package.Service/*`.
    /// An exact pattern goes before one with a star.
    ///
    /// # Errors
    /// When there is no row, a row admits no identity, a pattern is of another form or occurs twice.
    pub fn new(tables: &[PolicyTable<'_>]) -> Result<Self, PolicyError> {
        let mut policy =
            Self { methods: HashMap::new(), services: BTreeMap::new(), administrative: HashSet::new() };
        for (pattern, allowed) in tables.iter().copied().flatten() {
            policy.add(pattern, allowed)?;
        }
        if policy.methods.is_empty() && policy.services.is_empty() {
            return Err(PolicyError::Empty);
        }
        Ok(policy)
    }

    /// Names methods, each `/package.Service/Method`, that take an actor's token only once: those that change permissions.
    /// The mount checks whether there are such methods.
    ///
    /// # Errors
    /// When a name is of another form, or its service has no row.
    pub fn with_administrative(mut self, methods: &[&str]) -> Result<Self, PolicyError> {
        for method in methods {
            let known = split(method).is_some_and(|(service, name)| name != "*" && self.covers(service));
            if !known {
                return Err(PolicyError::Pattern { pattern: (*method).to_owned() });
            }
            self.administrative.insert((*method).to_owned());
        }
        Ok(self)
    }

    /// Returns true for a method for which a token counts only once.
    pub(crate) fn is_administrative(&self, path: &str) -> bool {
        self.administrative.contains(path)
    }

    /// Every method that is named by itself: a name that no method has protects nothing.
    pub(crate) fn named(&self) -> impl Iterator<Item = &str> {
        self.methods.keys().chain(&self.administrative).map(String::as_str)
    }

    /// Returns true for a method that anyone may call.
    pub(crate) fn is_open(&self, path: &str) -> bool {
        self.decide(path, None) == MethodPolicyDecision::Allowed
    }

    pub(crate) fn add(&mut self, pattern: &str, allowed: &[Allow]) -> Result<(), PolicyError> {
        let malformed = || PolicyError::Pattern { pattern: pattern.to_owned() };
        if allowed.is_empty() {
            return Err(PolicyError::AdmitsNobody { pattern: pattern.to_owned() });
        }
        let (service, method) = split(pattern).ok_or_else(malformed)?;
        if service.contains('*') || (method != "*" && method.contains('*')) {
            return Err(malformed());
        }
        let former = if method == "*" {
            self.services.insert(service.to_owned(), allowed.to_vec())
        } else {
            self.methods.insert(pattern.to_owned(), allowed.to_vec())
        };
        former.map_or(Ok(()), |_| Err(PolicyError::Twice { pattern: pattern.to_owned() }))
    }

    /// Returns true when the service has a row.
    pub(crate) fn covers(&self, service: &str) -> bool {
        self.services.contains_key(service)
            || self.methods.keys().any(|path| split(path).is_some_and(|(name, _)| name == service))
    }

    pub(crate) fn decide(&self, path: &str, identity: Option<Identity>) -> MethodPolicyDecision {
        let by_service = || split(path).and_then(|(service, _)| self.services.get(service));
        let allowed = self.methods.get(path).or_else(by_service);
        match (allowed, identity) {
            (Some(rows), _) if rows.iter().any(|allow| allow.admits(identity)) => {
                MethodPolicyDecision::Allowed
            }
            (_, None) => MethodPolicyDecision::IdentityRequired,
            (_, Some(_)) => MethodPolicyDecision::Denied,
        }
    }
}

/// `/package.Service/Method` → the two names.
fn split(path: &str) -> Option<(&str, &str)> {
    let (service, method) = path.strip_prefix('/')?.split_once('/')?;
    let good = !service.is_empty() && !method.is_empty() && !method.contains('/');
    good.then_some((service, method))
}

/// Why a table is no policy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// An empty policy would deny every call, which is never intended.
    #[error("the method policy is empty: nothing could be called")]
    Empty,
    /// A row without identities.
    #[error("the method policy names no identity for `{pattern}`: name one, or leave the row out")]
    AdmitsNobody {
        /// The row.
        pattern: String,
    },
    /// A row of another form.
    #[error("`{pattern}` is no method pattern: write /package.Service/Method or /package.Service/*")]
    Pattern {
        /// The row.
        pattern: String,
    },
    /// Two rows for the same.
    #[error("the method policy has `{pattern}` twice")]
    Twice {
        /// The row.
        pattern: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::ActorId;

    const SCHEDULER: Option<Identity> = Some(Identity::Service(ServiceName::Scheduler));
    const ROUTER: Option<Identity> = Some(Identity::Service(ServiceName::Router));
    const ACTOR: Option<Identity> = Some(Identity::Actor(ActorId(7)));
    const ADMIN: Option<Identity> = Some(Identity::Admin);

    const TABLE: PolicyTable<'static> = &[
        ("/a.Store/*", &[Allow::Service(ServiceName::Scheduler)]),
        ("/a.Store/Read", &[Allow::AnyActor, Allow::Admin]),
        ("/a.Open/*", &[Allow::Anyone]),
        ("/a.Known/*", &[Allow::Authenticated]),
    ];

    #[test]
    fn every_row_admits_whom_it_names_and_no_other() {
        use MethodPolicyDecision::{Allowed, Denied, IdentityRequired};
        let policy = MethodPolicy::new(&[TABLE]).expect("a good table");
        let cases = [
            // path, scheduler, router, actor, admin, nobody
            ("/a.Store/Write", Allowed, Denied, Denied, Denied, IdentityRequired),
            ("/a.Store/Read", Denied, Denied, Allowed, Allowed, IdentityRequired),
            ("/a.Open/X", Allowed, Allowed, Allowed, Allowed, Allowed),
            ("/a.Known/X", Allowed, Allowed, Allowed, Allowed, IdentityRequired),
            ("/a.Other/X", Denied, Denied, Denied, Denied, IdentityRequired),
            ("/a.Store/Read/x", Denied, Denied, Denied, Denied, IdentityRequired),
            ("", Denied, Denied, Denied, Denied, IdentityRequired),
        ];
        for (path, scheduler, router, actor, admin, nobody) in cases {
            let want = [scheduler, router, actor, admin, nobody];
            let got = [SCHEDULER, ROUTER, ACTOR, ADMIN, None].map(|who| policy.decide(path, who));
            assert_eq!(got, want, "{path}");
        }
    }

    #[test]
    fn mistakes_are_refused() {
        let new = |table: PolicyTable<'_>| MethodPolicy::new(&[table]).map(|_| ()).expect_err("a mistake");
        assert_eq!(new(&[]), PolicyError::Empty);
        assert_eq!(new(&[("/a.B/*", &[])]), PolicyError::AdmitsNobody { pattern: "/a.B/*".into() });
        for pattern in ["a.B/*", "/a.B", "/*", "/*/*", "/a.*/X", "/a.B/X*", "/a.B/X/Y", "//X", ""] {
            assert_eq!(new(&[(pattern, &[Allow::Anyone])]), PolicyError::Pattern { pattern: pattern.into() });
        }
        let twice: PolicyTable<'_> = &[("/a.B/*", &[Allow::Anyone]), ("/a.B/*", &[Allow::Admin])];
        assert_eq!(new(twice), PolicyError::Twice { pattern: "/a.B/*".into() });
    }
}
