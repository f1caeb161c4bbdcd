//! Headers of every call: a token in place of a certificate, and the trace.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use model::Timestamp;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::service::Interceptor;
use tonic::{GrpcMethod, Request, Status};

use crate::clients::trace::add_trace;
use crate::failure::CliError;
use crate::profile::Profile;
use crate::token::{HOLDS_MAX, TokenSigner};

/// How methods that only look are called: a token serves many of them. Others may be of those that take each token
/// once.
const LOOKS: [&str; 6] = ["Get", "List", "Watch", "Stream", "Explain", "WhoAmI"];
/// A token with less time left is not shown any more.
const LEFT_MIN: Duration = Duration::from_secs(60);

/// Puts the trace into every call, and a token where there is a key that signs some.
#[derive(Debug, Clone, Default)]
pub(super) struct BearerInterceptor(Option<Arc<BearerTokenSource>>);

impl BearerInterceptor {
    /// Builds the interceptor that the profile asks for; it adds no tokens when the profile shows none.
    ///
    /// # Errors
    /// When its key cannot be used.
    pub(super) fn of(profile: &Profile) -> Result<Self, CliError> {
        let signer = profile.shows_tokens().then(|| profile.token_signer()).transpose()?;
        Ok(Self(signer.map(|signer| Arc::new(BearerTokenSource { signer, kept: Mutex::default() }))))
    }
}

impl Interceptor for BearerInterceptor {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(tokens) = &self.0 {
            let method = request.extensions().get::<GrpcMethod<'_>>().map_or("", GrpcMethod::method);
            let value = tokens.value_for(method, Timestamp::now());
            request.metadata_mut().insert("authorization", value);
        }
        add_trace(request.metadata_mut());
        Ok(request)
    }
}

/// Where tokens come from.
#[derive(Debug)]
struct BearerTokenSource {
    signer: TokenSigner,
    /// The one for calls that only look, and its end.
    kept: Mutex<Option<(MetadataValue<Ascii>, Timestamp)>>,
}

impl BearerTokenSource {
    /// Returns the header value for a call to `method`.
    fn value_for(&self, method: &str, now: Timestamp) -> MetadataValue<Ascii> {
        if !LOOKS.iter().any(|look| method.starts_with(look)) {
            return self.fresh(now);
        }
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match &*kept {
            Some((value, end)) if end.since(now) > LEFT_MIN => value.clone(),
            _ => {
                let value = self.fresh(now);
                *kept = Some((value.clone(), now + HOLDS_MAX));
                value
            }
        }
    }

    fn fresh(&self, now: Timestamp) -> MetadataValue<Ascii> {
        let text = format!("Bearer {}", self.signer.sign(now, HOLDS_MAX));
        let mut value = MetadataValue::try_from(text).expect("a token is of visible ASCII");
        // Not for the tables that HTTP/2 keeps of headers, nor for anybody's log.
        value.set_sensitive(true);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::{SigningKey, TrustDomain};
    use model::ActorId;

    #[test]
    fn what_changes_something_has_a_token_of_its_own() {
        let signer = TokenSigner::new(SigningKey::generate(), ActorId(7), TrustDomain::default());
        let tokens = BearerTokenSource { signer, kept: Mutex::default() };
        let now = Timestamp::from_millis(1_800_000_000_000);
        let first = tokens.value_for("GetFlow", now);
        assert_eq!(tokens.value_for("ListFlows", now + Duration::from_secs(239)), first);
        assert_ne!(tokens.value_for("WatchFlow", now + Duration::from_secs(240)), first, "renewed in time");
        let change = tokens.value_for("UpdateActor", now);
        assert_ne!(change, tokens.value_for("UpdateActor", now));
        assert_ne!(tokens.value_for("", now), change, "an unknown method may be any");
    }
}
