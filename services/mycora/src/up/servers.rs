//! The servers below an all-in-one: Redis, and NATS where sagas are run.

use std::sync::Arc;

use identity::IssuedFiles;

use super::directory::DataDir;
use super::redis_backend::RedisBackend;
use super::saga::{NatsBackend, NatsPlan};
use super::{UpError, UpOptions, UpReporter};

/// Servers that run below the services.
pub(super) struct BackingServers {
    pub(super) redis: RedisBackend,
    /// None where no sagas are run.
    pub(super) nats: Option<NatsBackend>,
}

impl BackingServers {
    /// Starts those that are children; none is left when one does not start. NATS shows this certificate.
    ///
    /// # Errors
    /// What is in the way.
    pub(super) async fn start(
        dir: &Arc<DataDir>,
        options: &UpOptions,
        nats: Option<NatsPlan>,
        shown: &IssuedFiles,
        notice: &UpReporter,
    ) -> Result<Self, UpError> {
        let redis = RedisBackend::start(dir, options, notice).await?;
        let Some(plan) = nats else { return Ok(Self { redis, nats: None }) };
        match NatsBackend::start(dir, plan, shown, notice).await {
            Ok(nats) => Ok(Self { redis, nats: Some(nats) }),
            Err(error) => {
                redis.stop().await?;
                Err(error)
            }
        }
    }

    /// Returns when one of them has ended by itself and cannot be started again. Cancel safe.
    pub(super) async fn wait_until_lost(&mut self) -> UpError {
        let nats = async {
            match &mut self.nats {
                Some(nats) => nats.wait_until_lost().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            error = self.redis.wait_until_lost() => error,
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
