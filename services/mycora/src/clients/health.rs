//! Asking servers how they are: no identity is needed for that.

use std::time::Duration;

use model::Timestamp;
use proto::v1::{
    context_service_server, flow_service_server, gateway_service_server, message_service_server,
    runner_service_server, saga_service_server, supervisor_service_server,
};
use rpc::Channel;
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::failure::ApiCallError;
use crate::profile::ApiService;

/// Time limit of a probe; a server that is up answers at once.
const PATIENCE: Duration = Duration::from_secs(5);
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// How a service is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HealthProbeStatus {
    /// The service works.
    Serving,
    /// The service is there, and does not work.
    NotServing,
    /// The address offers no such service.
    Absent,
}

/// Reply of a server to a health probe of one service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HealthProbeReply {
    /// How it is.
    pub condition: HealthProbeStatus,
    /// The server's clock, in whole seconds, if it told it.
    pub date: Option<Timestamp>,
}

/// Asks for the service that `host` is known for.
///
/// # Errors
/// When no server answers.
pub async fn probe(channel: Channel, host: ApiService) -> Result<HealthProbeReply, ApiCallError> {
    let service = service_of(host).to_owned();
    let mut request = Request::new(HealthCheckRequest { service });
    request.set_timeout(PATIENCE);
    let (condition, date) = match HealthClient::new(channel).check(request).await {
        Ok(answer) => {
            let serving = answer.get_ref().status() == ServingStatus::Serving;
            let condition = if serving { HealthProbeStatus::Serving } else { HealthProbeStatus::NotServing };
            (condition, date_of(answer.metadata()))
        }
        Err(status) if status.code() == Code::NotFound => {
            (HealthProbeStatus::Absent, date_of(status.metadata()))
        }
        Err(status) => return Err(status.into()),
    };
    Ok(HealthProbeReply { condition, date })
}

const fn service_of(host: ApiService) -> &'static str {
    match host {
        ApiService::Scheduler => flow_service_server::SERVICE_NAME,
        ApiService::Storage => context_service_server::SERVICE_NAME,
        ApiService::RunnerRegistry => runner_service_server::SERVICE_NAME,
        ApiService::Router => message_service_server::SERVICE_NAME,
        ApiService::MyceliumGateway => gateway_service_server::SERVICE_NAME,
        ApiService::Supervisor => supervisor_service_server::SERVICE_NAME,
        ApiService::Saga => saga_service_server::SERVICE_NAME,
    }
}

fn date_of(metadata: &tonic::metadata::MetadataMap) -> Option<Timestamp> {
    date(metadata.get("date")?.to_str().ok()?)
}

/// Reads `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
fn date(text: &str) -> Option<Timestamp> {
    let (_, rest) = text.split_once(", ")?;
    let mut parts = rest.split(' ');
    let (day, month, year, time) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let month = MONTHS.iter().position(|name| *name == month)? + 1;
    Timestamp::from_rfc3339(&format!("{year}-{month:02}-{day}T{time}Z"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_http() {
        let read = |text: &str| date(text).map(|time| time.rfc3339());
        assert_eq!(read("Sun, 06 Nov 1994 08:49:37 GMT").as_deref(), Some("1994-11-06T08:49:37Z"));
        for wrong in ["", "now", "Sun, 06 Nix 1994 08:49:37 GMT", "Sun, 6 Nov 1994"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
