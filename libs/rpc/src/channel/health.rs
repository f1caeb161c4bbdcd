//! Follows the health that a server reports, from a client's side.

use backoff::ExponentialBackoff;
use tonic::Status;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::channel::{Channel, RECONNECT_MAX};

/// Follows whether a server serves (`grpc.health.v1`), for ever: `notify` is called with each change, and with the reason when it
/// does not serve. A server that cannot be reached does not serve. Dropping the future ends it.
pub async fn follow_health(channel: Channel, mut notify: impl FnMut(Result<(), String>) + Send) {
    let mut client = HealthClient::new(channel);
    let mut backoff = ExponentialBackoff::up_to(RECONNECT_MAX);
    loop {
        let watching = async {
            let mut updates = client.watch(HealthCheckRequest::default()).await?.into_inner();
            while let Some(update) = updates.message().await? {
                backoff.reset();
                let serves = update.status() == ServingStatus::Serving;
                notify(if serves { Ok(()) } else { Err("it does not serve".to_owned()) });
            }
            Ok::<_, Status>(())
        };
        let ended = watching.await;
        notify(Err(match ended {
            Ok(()) => "it is ending".to_owned(),
            Err(status) => status.message().to_owned(),
        }));
        backoff.pause().await;
    }
}
