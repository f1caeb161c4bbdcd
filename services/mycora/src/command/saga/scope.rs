//! Arguments that commands about sagas share: the tenant, the instance, and the request id that makes a change repeatable.

use std::str::FromStr;

use clap::Args;
use model::{CorrelationId, SagaName, TenantId};
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::clients::Clients;
use crate::command::{CliSession, values};
use crate::failure::CliError;
use crate::output::OutputFormat;

/// Data of an event, or a result, in bytes.
const DATA_BYTES_MAX: usize = 1_000_000;

/// Session of a command about sagas, and the tenant who owns them.
pub(super) struct SagaCommandScope<'a> {
    pub(super) session: &'a CliSession,
    /// The tenant; empty where the server has none.
    pub(super) tenant_id: String,
}

impl<'a> SagaCommandScope<'a> {
    /// Finds the tenant: from the flag, from the profile, else the number of the context where the server has tenants.
    pub(super) async fn find(session: &'a CliSession, typed: Option<String>) -> Result<Self, CliError> {
        let in_profile = session.profile().tenant.clone();
        let tenant_id = match typed.or(in_profile) {
            Some(named) => named,
            None => match session.context() {
                Ok(context) if session.clients.names_tenant(&context.to_string()).await? => {
                    context.to_string()
                }
                Ok(_) | Err(_) => String::new(),
            },
        };
        Ok(Self { session, tenant_id })
    }

    pub(super) const fn clients(&self) -> &Clients {
        &self.session.clients
    }

    pub(super) const fn format(&self) -> OutputFormat {
        self.session.global.output
    }
}

/// Reads a tenant; an empty text stands for none.
pub(super) fn tenant(text: &str) -> Result<String, String> {
    if text.is_empty() { Ok(String::new()) } else { name::<TenantId>(text) }
}

/// Reads the name of a saga.
pub(super) fn saga(text: &str) -> Result<String, String> {
    name::<SagaName>(text)
}

/// Reads a correlation.
pub(super) fn correlation(text: &str) -> Result<String, String> {
    name::<CorrelationId>(text)
}

/// Reads a name of a kind; gives its text.
pub(super) fn name<N: FromStr<Err: ToString>>(text: &str) -> Result<String, String> {
    N::from_str(text).map(|_| text.to_owned()).map_err(|error| error.to_string())
}

/// Names one instance.
#[derive(Debug, Clone, Args)]
pub struct SagaInstanceArg {
    /// Name of the saga
    #[arg(value_parser = saga)]
    pub saga: String,
    /// Correlation of the instance: the text that all its events have in common
    #[arg(value_parser = correlation)]
    pub correlation: String,
}

/// Names a saga, or one instance of it, or neither.
#[derive(Debug, Clone, Args)]
pub struct SagaInstanceFilter {
    /// Only of this saga
    #[arg(value_parser = saga)]
    pub saga: Option<String>,
    /// Only of the instance of this correlation
    #[arg(value_parser = correlation)]
    pub correlation: Option<String>,
}

/// Makes a change repeatable.
#[derive(Debug, Clone, Args)]
pub struct SagaRequestIdFlag {
    /// Makes the call repeatable: for 24 hours the same id with the same arguments has one effect. Answers include the id
    #[arg(long, value_name = "UUID", value_parser = values::uuid)]
    pub request_id: Option<Uuid>,
}

impl SagaRequestIdFlag {
    /// The id that was typed, or a new one.
    pub(super) fn id(&self) -> String {
        self.request_id.unwrap_or_else(Uuid::new_v4).to_string()
    }
}

/// Data in JSON, as they were typed or stand in a file.
#[derive(Debug, Clone, Args)]
pub struct SagaDataFlags {
    /// The data, as JSON [default: null]
    #[arg(long, value_name = "JSON", conflicts_with = "data_file")]
    pub data: Option<String>,
    /// The file with the data; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub data_file: Option<String>,
}

impl SagaDataFlags {
    /// The data; empty where there are none.
    pub(super) fn read(&self) -> Result<String, CliError> {
        json("--data", self.data.as_deref(), self.data_file.as_deref())
    }
}

/// A result in JSON, as it was typed or stands in a file.
#[derive(Debug, Clone, Args)]
pub struct SagaResultFlags {
    /// The result that its saga sees, as JSON [default: null]
    #[arg(long, value_name = "JSON", conflicts_with = "result_file")]
    pub result: Option<String>,
    /// The file with that result; `-` for standard input
    #[arg(long, value_name = "FILE")]
    pub result_file: Option<String>,
}

impl SagaResultFlags {
    /// The result; empty where there is none.
    pub(super) fn read(&self) -> Result<String, CliError> {
        json("--result", self.result.as_deref(), self.result_file.as_deref())
    }
}

/// Reads JSON that was typed or stands in a file; empty where there is neither.
fn json(flag: &str, typed: Option<&str>, file: Option<&str>) -> Result<String, CliError> {
    let (name, text) = match (typed, file) {
        (Some(text), _) => (flag, text.to_owned()),
        (None, Some(path)) => (path, values::text_of(path, DATA_BYTES_MAX, "JSON for a saga")?),
        (None, None) => return Ok(String::new()),
    };
    match serde_json::from_str::<IgnoredAny>(&text) {
        Ok(_) => Ok(text),
        Err(error) => Err(CliError::Invalid(format!("{name}: is no JSON: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_are_json() {
        assert_eq!(json("--data", None, None), Ok(String::new()));
        let written = r#"{"amount": 12345678901234567890.10}"#;
        assert_eq!(json("--data", Some(written), None).as_deref(), Ok(written), "as it was written");
        let refused = json("--data", Some("{\"a\": }"), None).expect_err("no JSON");
        assert_eq!(refused.exit_code(), 2);
        assert!(
            refused.to_string().starts_with("--data: is no JSON: ") && refused.to_string().contains("line 1")
        );
    }

    #[test]
    fn names_are_checked_before_a_request_is_sent() {
        assert_eq!(tenant(""), Ok(String::new()));
        assert_eq!(tenant("acme"), Ok("acme".to_owned()));
        assert!(tenant("a.b").is_err_and(|advice| advice.contains("the tenant is made of")));
        assert!(saga("a_b").is_err() && saga("").is_err());
        assert!(correlation("").is_err() && correlation(&"x".repeat(257)).is_err());
        assert_eq!(correlation("größe 1"), Ok("größe 1".to_owned()));
    }
}
