//! Conversion of a message to the input of an instance: whether a saga wants an event, in which version, and for which
//! correlation.

use model::{CorrelationId, Timestamp};

use crate::Json;
use crate::definition::{Saga, UnknownVersionPolicy};
use crate::formula::VariableScope;
use crate::input::{DomainEvent, InstanceInput, InstanceInputKind, Verb};
use crate::instance::cut;
use crate::message::EventMessage;

/// Decision of a saga about an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EventDisposition {
    /// The event means nothing to the saga.
    Ignored(&'static str),
    /// The event is for the instance of this correlation.
    Input(CorrelationId, Box<InstanceInput>),
    /// The event cannot be given to any instance: a dead letter, of its correlation where that is known.
    DeadLetter {
        /// The correlation.
        correlation: Option<CorrelationId>,
        /// The kind of the reason.
        code: &'static str,
        /// The reason.
        why: String,
    },
}

impl Saga {
    /// Decides how to handle an event that was stored at `time`.
    #[must_use]
    pub fn receive(&self, message: EventMessage, time: Timestamp) -> EventDisposition {
        let EventMessage { mut event, schema_version } = message;
        if !self.listens_to(&event.kind) {
            return EventDisposition::Ignored("unheard");
        }
        let aggregate = event.body.get("aggregate_type").and_then(Json::as_text).unwrap_or_default();
        let Some(source) = self.sources.iter().find(|source| source.aggregate == aggregate) else {
            return EventDisposition::Ignored("another aggregate");
        };
        let on_version =
            if source.versions.contains(&schema_version) { None } else { Some(source.on_version) };
        if on_version == Some(UnknownVersionPolicy::Ignore) {
            return EventDisposition::Ignored("version");
        }
        if on_version.is_none()
            && let Err(why) = upcast(&mut event, source, schema_version)
        {
            return EventDisposition::DeadLetter { correlation: None, code: "UPCAST", why };
        }
        let correlation = match self.correlation(&event) {
            Ok(correlation) => correlation,
            Err(why) => return EventDisposition::DeadLetter { correlation: None, code: "CORRELATION", why },
        };
        let versions = &source.versions;
        let why = format!(
            "version {schema_version} of the schema of `{}` is not among {} to {}",
            event.kind,
            versions.start(),
            versions.end()
        );
        let what = match on_version {
            None => InstanceInputKind::Event(event),
            Some(UnknownVersionPolicy::Compensate) => {
                let request = format!("version {}", hex::encode(event.id.digest()));
                InstanceInputKind::Verb { request, verb: Verb::Cancel { reason: why } }
            }
            Some(UnknownVersionPolicy::DeadLetter | UnknownVersionPolicy::Ignore) => {
                return EventDisposition::DeadLetter { correlation: Some(correlation), code: "VERSION", why };
            }
        };
        EventDisposition::Input(correlation, Box::new(InstanceInput { time, what }))
    }

    /// The correlation of an event.
    fn correlation(&self, event: &DomainEvent) -> Result<CorrelationId, String> {
        let scope = VariableScope::new().with("event", &event.body);
        let text = match self.correlate.value(&scope).map_err(|error| error.to_string())? {
            Json::Text(text) => text,
            Json::Int(number) => number.to_string(),
            other => return Err(format!("the correlation is a text, not {}", other.kind())),
        };
        text.parse::<CorrelationId>().map_err(|error| cut(&error.to_string()))
    }
}

/// Makes the latest version of an event that a source understands.
fn upcast(
    event: &mut DomainEvent,
    source: &crate::definition::EventSource,
    version: u32,
) -> Result<(), String> {
    for (_, set) in source.upcast.range(version..*source.versions.end()) {
        let values: Result<Vec<_>, _> = {
            let scope = VariableScope::new().with("event", &event.body);
            set.iter().map(|field| Ok((field.field.clone(), field.value.value(&scope)?))).collect()
        };
        let values = values.map_err(|error: crate::formula::FormulaValueError| error.to_string())?;
        if let Json::Map(body) = &mut event.body {
            match body.get_mut("data") {
                Some(Json::Map(data)) => data.extend(values),
                other => {
                    let found = other.map_or("nothing", |data| data.kind());
                    return Err(format!("the data of the event are an object, not {found}"));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::InputId;
    use crate::manifest::{ManifestDefinition, read};

    const TEXT: &str = r#"
kind: Saga
name: pay
version: 1
state: { n: int }
sources:
  - { aggregate: Order, versions: 2..3, upcast: { 2: { set: { currency: "${{ event.data.cur ?? \"EUR\" }}" } } }, on_version: MODE }
correlate: event.metadata.correlation_id ?? event.data.id
start: { on: Placed, goto: wait }
steps: { wait: { on: { Paid: { end: completed } } } }
"#;

    fn receive(mode: &str, kind: &str, aggregate: &str, version: u32, data: &str) -> EventDisposition {
        let documents =
            read("t", &TEXT.replace("MODE", mode)).unwrap_or_else(|problems| panic!("{problems}"));
        let ManifestDefinition::Saga(saga) = &documents[0].definition else { panic!("no saga") };
        let body = format!(
            r#"{{"event_id":"e","type":"{kind}","aggregate_type":"{aggregate}","data":{data},"schema_version":{version}}}"#
        );
        let at = crate::message::MessagePosition { incarnation: 1, sequence: 1 };
        let tenant = "acme".parse().expect("a tenant");
        let message = crate::message::read_event(body.as_bytes(), &tenant, ("Order", "1"), at).expect("good");
        saga.receive(message, Timestamp::from_millis(5))
    }

    fn data_of(received: EventDisposition) -> String {
        match received {
            EventDisposition::Input(_, input) => match input.what {
                InstanceInputKind::Event(event) => {
                    event.body.get("data").map(Json::to_string).unwrap_or_default()
                }
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_event_comes_in_the_latest_version_and_with_its_correlation() {
        let data = data_of(receive("ignore", "Paid", "Order", 2, r#"{"id":"c-1"}"#));
        assert_eq!(data, r#"{"currency":"EUR","id":"c-1"}"#);
        assert_eq!(data_of(receive("ignore", "Paid", "Order", 3, r#"{"id":7}"#)), r#"{"id":7}"#);
        let received = receive("ignore", "Paid", "Order", 3, r#"{"id":7}"#);
        assert!(
            matches!(&received, EventDisposition::Input(correlation, _) if correlation.as_str() == "7"),
            "{received:?}"
        );
    }

    #[test]
    fn what_is_not_wanted_or_cannot_be_placed_is_no_input() {
        assert_eq!(receive("ignore", "Other", "Order", 2, "{}"), EventDisposition::Ignored("unheard"));
        assert_eq!(
            receive("ignore", "Paid", "Payment", 2, "{}"),
            EventDisposition::Ignored("another aggregate")
        );
        assert_eq!(receive("ignore", "Paid", "Order", 9, "{}"), EventDisposition::Ignored("version"));
        for (version, data, expected) in [
            (9, r#"{"id":"c"}"#, "VERSION"),
            (2, "7", "UPCAST"),
            (3, "{}", "CORRELATION"),
            (3, r#"{"id":""}"#, "CORRELATION"),
            (3, r#"{"id":[]}"#, "CORRELATION"),
        ] {
            let received = receive("dead_letter", "Paid", "Order", version, data);
            assert!(
                matches!(&received, EventDisposition::DeadLetter { code, .. } if *code == expected),
                "{received:?}"
            );
        }
        let EventDisposition::Input(_, input) = receive("compensate", "Paid", "Order", 9, r#"{"id":"c"}"#)
        else {
            panic!("no input")
        };
        assert!(matches!(input.what, InstanceInputKind::Verb { verb: Verb::Cancel { .. }, .. }), "{input:?}");
        assert!(matches!(input.id(), InputId::Verb(_)));
    }
}
