//! Providers of calls to the outside world: one file for each transport.
//!
//! A provider makes a call and returns its outcome. It decides nothing about retries: the ledger does.
//!
//! - [`flow`] runs flows of this suite;
//! - [`http`] makes requests by HTTP;
//! - [`smtp`] sends mail.

pub mod flow;
pub mod http;
pub mod smtp;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use model::{CommandId, TenantId};
use workflow::Json;
use workflow::ledger::ProviderAnswer;
use workflow::provider::Effect;

/// Flag of a call, raised before anything is sent that the upstream may act upon. Clones share one flag.
///
/// A call that is dropped before was not made and may be made again ([`ProviderAnswer::Passing`]); once the flag is up, the outcome is
/// unknown ([`ProviderAnswer::Unknown`]).
#[derive(Debug, Clone, Default)]
pub struct SentFlag(Arc<AtomicBool>);

impl SentFlag {
    /// Raises the flag. Providers do this before they send, never after.
    pub fn raise(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Returns `true` once the upstream may have acted upon the call.
    #[must_use]
    pub fn is_raised(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Notes that the whole call was handed to the operating system, which delivers it even if this process ends now.
    pub(crate) fn has_left(&self) {
        debug_assert!(self.is_raised(), "the flag is raised before anything is sent");
        service::crash_point("effect.sent");
    }
}

impl egress::SendObserver for SentFlag {
    fn on_sending(&mut self) {
        self.raise();
    }

    fn on_sent(&mut self) {
        Self::has_left(self);
    }
}

/// A call that a provider is asked to make.
#[derive(Debug, Clone)]
pub struct ProviderCall {
    /// Tenant that the call belongs to.
    pub tenant: TenantId,
    /// The command, which is the idempotency key of the call.
    pub command: CommandId,
    /// The effect.
    pub effect: Arc<Effect>,
    /// Input of the effect.
    pub input: Arc<Json>,
    /// W3C trace context, to be passed on.
    pub traceparent: Option<String>,
    /// Token for an answer that comes later; `None` where the effect has no such answers.
    pub callback_token: Option<String>,
    /// Flag that shows whether anything was sent. New for each attempt.
    pub sent: SentFlag,
}

/// Provider that makes calls to the outside world.
#[async_trait]
pub trait CallProvider: Send + Sync {
    /// Makes a call. The caller drops the future after `start_to_close`; [`ProviderCall::sent`] then shows whether the call may have
    /// happened.
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer;

    /// Asks whether a call has happened: `None` where the upstream cannot be asked now, [`ProviderAnswer::Passing`] where it has not.
    async fn ask(&self, call: &ProviderCall) -> Option<ProviderAnswer>;

    /// Takes over a call that waits for work under this external name, begun by another process or an earlier owner of the lane. The end
    /// is reported as if the work had been begun here, even if it has ended since.
    async fn adopt(&self, _: &ProviderCall, _: &str) {}

    /// Stops the work that runs for a call under this external name. Its end is reported the usual way.
    async fn stop(&self, call: &ProviderCall, external: &str);
}
