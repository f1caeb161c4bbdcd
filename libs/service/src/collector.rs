//! The collector that traces are sent to, as flags name it or the variables of OpenTelemetry.

use std::path::PathBuf;

use crate::flags::{TelemetryFlags, collector_url};
use crate::telemetry::TelemetryError;

/// Variables of OpenTelemetry, those for traces alone first.
const ENDPOINTS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
const CERTIFICATES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
const PROTOCOLS: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"];
/// The only protocol that is spoken.
const PROTOCOL: &str = "grpc";

/// A collector of traces that speaks OTLP over gRPC.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct OtlpCollector {
    /// Where it listens.
    pub(crate) url: String,
    /// Certificates by which it is known over TLS; without them, what this machine trusts.
    pub(crate) ca: Option<PathBuf>,
}

impl OtlpCollector {
    /// Finds the collector of a service: that of its flags, otherwise that of the variables of OpenTelemetry.
    ///
    /// # Errors
    /// When these variables name something that is no collector.
    pub(crate) fn of_service(
        flags: &TelemetryFlags,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        match &flags.otlp_endpoint {
            Some(url) => Ok(Some(Self { url: url.clone(), ca: flags.otlp_ca.clone() })),
            None => Self::of_open_telemetry(variable),
        }
    }

    /// Finds the collector of a command, which has no flags for it: by the variables of those flags, otherwise by those of
    /// OpenTelemetry.
    ///
    /// # Errors
    /// When they name something that is no collector.
    pub(crate) fn of_command(
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, TelemetryError> {
        match variable("MYCORA_OTLP_ENDPOINT") {
            Some(url) => Self::checked(url, variable("MYCORA_OTLP_CA")).map(Some),
            None => Self::of_open_telemetry(variable),
        }
    }

    fn of_open_telemetry(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, TelemetryError> {
        let first = |names: [&str; 2]| names.into_iter().find_map(&variable);
        let is = |name: &str, value: &str| variable(name).is_some_and(|set| set.eq_ignore_ascii_case(value));
        if is("OTEL_SDK_DISABLED", "true") || is("OTEL_TRACES_EXPORTER", "none") {
            return Ok(None);
        }
        let Some(url) = first(ENDPOINTS) else { return Ok(None) };
        match first(PROTOCOLS) {
            Some(protocol) if protocol != PROTOCOL => {
                let message = format!("{} is `{protocol}`, and only `{PROTOCOL}` is spoken", PROTOCOLS[1]);
                Err(TelemetryError::Exporter { endpoint: url, message })
            }
            _ => Self::checked(url, first(CERTIFICATES)).map(Some),
        }
    }

    fn checked(url: String, ca: Option<String>) -> Result<Self, TelemetryError> {
        match collector_url(&url) {
            Ok(url) => Ok(Self { url, ca: ca.map(PathBuf::from) }),
            Err(message) => Err(TelemetryError::Exporter { endpoint: url, message }),
        }
    }
}

/// Returns a variable of the environment that has a value.
pub(crate) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_command(set: &[(&str, &str)]) -> Result<Option<OtlpCollector>, TelemetryError> {
        OtlpCollector::of_command(|name| {
            set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn url_of(set: &[(&str, &str)]) -> Option<String> {
        of_command(set).expect("a collector, or none").map(|collector| collector.url)
    }

    const GENERAL: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://general:4317");

    #[test]
    fn the_variables_of_open_telemetry_name_a_collector_where_ours_do_not() {
        assert_eq!(url_of(&[]), None);
        assert_eq!(url_of(&[GENERAL]).as_deref(), Some("http://general:4317"));
        let of_traces = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://traces:4317");
        assert_eq!(url_of(&[GENERAL, of_traces]).as_deref(), Some("http://traces:4317"));
        let ours = ("MYCORA_OTLP_ENDPOINT", "https://ours:4317");
        let found = of_command(&[GENERAL, ours, ("MYCORA_OTLP_CA", "ca.pem")]).expect("a collector");
        let expected = OtlpCollector { url: "https://ours:4317".to_owned(), ca: Some("ca.pem".into()) };
        assert_eq!(found, Some(expected));
        let certified = of_command(&[GENERAL, ("OTEL_EXPORTER_OTLP_CERTIFICATE", "otel.pem")]);
        assert_eq!(certified.expect("a collector").and_then(|found| found.ca), Some("otel.pem".into()));
        for off in [("OTEL_SDK_DISABLED", "true"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert_eq!(url_of(&[GENERAL, off]), None, "{off:?}");
        }
        assert!(url_of(&[GENERAL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]).is_some());
    }

    #[test]
    fn a_collector_that_cannot_be_spoken_to_is_an_error() {
        for (set, problem) in [
            (vec![GENERAL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")], "only `grpc` is spoken"),
            (vec![("OTEL_EXPORTER_OTLP_ENDPOINT", "http://h:4318/v1/traces")], "http://HOST:4317"),
            (vec![("MYCORA_OTLP_ENDPOINT", "nonsense")], "http://HOST:4317"),
        ] {
            let error = of_command(&set).expect_err(problem).to_string();
            assert!(error.contains(problem), "{error}");
        }
    }
}
