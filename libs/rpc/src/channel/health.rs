//! What a server says of itself, followed from afar.

use std::time::Duration;

use tonic::Status;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::channel::{Channel, RECONNECT_MAX};

/// The pause before a lost watch is begun again; doubles up to [`RECONNECT_MAX`].
const RETRY_MIN: Duration = Duration::from_millis(50);

/// Follows whether a server serves (`grpc.health.v1`), for ever: `tell` hears of each change, and why it does not.
/// A server that cannot be heard does not serve. Dropping the future ends it.
pub async fn follow_health(channel: Channel, mut tell: impl FnMut(Result<(), String>) + Send) {
    let mut client = HealthClient::new(channel);
    let mut pause = RETRY_MIN;
    loop {
        let watching = async {
            let mut words = client.watch(HealthCheckRequest::default()).await?.into_inner();
            while let Some(word) = words.message().await? {
                pause = RETRY_MIN;
                let serves = word.status() == ServingStatus::Serving;
                tell(if serves { Ok(()) } else { Err("it does not serve".to_owned()) });
            }
            Ok::<_, Status>(())
        };
        let ended = watching.await;
        tell(Err(match ended {
            Ok(()) => "it is ending".to_owned(),
            Err(status) => status.message().to_owned(),
        }));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(RECONNECT_MAX);
    }
}
