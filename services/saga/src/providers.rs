//! The ways to the outside world: one file for each transport.
//!
//! A provider makes a call and says what came of it. It decides nothing about retries: the ledger does.
//!
//! - [`flow`] has flows of this suite run;
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

/// Flag of a call: raised before anything of it leaves that the upstream may act upon. Clones share one flag.
///
/// A call that is dropped before was not made and may be made again ([`ProviderAnswer::Passing`]); once the flag is up, nobody knows
/// ([`ProviderAnswer::Unknown`]).
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

    /// Notes that all of the call is with the system, which delivers it even if this process ends now.
    pub(crate) fn has_left(&self) {
        debug_assert!(self.is_raised(), "what has left may have been acted upon");
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
    /// The command, which is the key under which it counts once.
    pub command: CommandId,
    /// The effect.
    pub effect: Arc<Effect>,
    /// Input of the effect.
    pub input: Arc<Json>,
    /// W3C trace context, to be passed on.
    pub traceparent: Option<String>,
    /// The token by which its answer can be given later, where the effect has such answers.
    pub callback_token: Option<String>,
    /// Flag that says whether anything was sent. New for each attempt.
    pub sent: SentFlag,
}

/// A way to the outside world.
#[async_trait]
pub trait CallProvider: Send + Sync {
    /// Makes a call. Whoever asks drops it after `start_to_close`; [`ProviderCall::sent`] says then whether it may have happened.
    async fn call(&self, call: &ProviderCall) -> ProviderAnswer;

    /// Asks whether a call has happened: nothing where the upstream cannot be asked now, [`ProviderAnswer::Passing`] where it has not.
    async fn ask(&self, call: &ProviderCall) -> Option<ProviderAnswer>;

    /// Takes over a call that waits for what runs under this name, and was begun by another process or by an earlier owner of its
    /// lane: its end is told as if it had been begun here, also when it has ended since.
    async fn adopt(&self, _: &ProviderCall, _: &str) {}

    /// Stops what runs for a call under this name. Its end comes by the way by which it would have come.
    async fn stop(&self, call: &ProviderCall, external: &str);
}
