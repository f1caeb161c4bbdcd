//! The servers below an all-in-one: Redis, and NATS where sagas are run.

use std::sync::Arc;

use identity::IssuedFiles;

use super::directory::DataDir;
use super::saga::{Nats, NatsPlan};
use super::store::Store;
use super::{Notice, Options, UpError};

/// What runs below the services.
pub(super) struct Servers {
    pub(super) redis: Store,
    /// None where no sagas are run.
    pub(super) nats: Option<Nats>,
}

impl Servers {
    /// Starts those that are children; none is left when one does not start. NATS shows this certificate.
    ///
    /// # Errors
    /// What is in the way.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        options: &Options,
        nats: Option<NatsPlan>,
        shown: &IssuedFiles,
        notice: &Notice,
    ) -> Result<Self, UpError> {
        let redis = Store::start(dir, options, notice).await?;
        let Some(plan) = nats else { return Ok(Self { redis, nats: None }) };
        match Nats::start(dir, plan, shown, notice).await {
            Ok(nats) => Ok(Self { redis, nats: Some(nats) }),
            Err(error) => {
                redis.stop().await?;
                Err(error)
            }
        }
    }

    /// Returns when one of them has ended by itself and cannot be started again. Cancel safe.
    pub(super) async fn lost(&mut self) -> UpError {
        let nats = async {
            match &mut self.nats {
                Some(nats) => nats.lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.redis.lost() => error,
            error = nats => error,
        }
    }

    /// Lets those that are children write what they have and end.
    ///
    /// # Errors
    /// When one cannot be ended; the other is ended all the same.
    pub(super) async fn stop(self) -> Result<(), UpError> {
        let nats = match self.nats {
            Some(nats) => nats.stop().await,
            None => Ok(()),
        };
        self.redis.stop().await?;
        nats
    }
}
