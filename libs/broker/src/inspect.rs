//! Listing of the consumers of a server, to diagnose them.

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{BrokerError, CursorSpec, SettingDifference};

/// Settings of a consumer that describe its start, and its description for people: they change each time the consumer is
/// created.
const OF_THE_TIME: [&str; 4] = ["deliver_policy", "opt_start_seq", "opt_start_time", "description"];

/// A consumer as the server lists it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ConsumerListing {
    /// Name of the consumer.
    pub name: String,
    /// Settings of the consumer, as the server writes them.
    config: Map<String, Value>,
    /// Number of messages that it has not delivered yet.
    #[serde(rename = "num_pending")]
    pub pending: u64,
    /// Number of deliveries without an acknowledgement.
    #[serde(rename = "num_ack_pending")]
    pub unacknowledged: u64,
}

impl ConsumerListing {
    /// The filter of one that has one.
    #[must_use]
    pub fn filter(&self) -> Option<&str> {
        self.config.get("filter_subject").and_then(Value::as_str).filter(|filter| !filter.is_empty())
    }

    /// Compares its settings with those of the cursor that is wanted, except where that starts.
    ///
    /// # Errors
    /// [`BrokerError::Refused`] when there can be no such cursor.
    pub fn differences(&self, wanted: &CursorSpec) -> Result<Vec<SettingDifference>, BrokerError> {
        let (mut requested, mut found) = (wanted.configuration()?, self.config.clone());
        for name in OF_THE_TIME {
            requested.remove(name);
            found.remove(name);
        }
        Ok(wanted.compare(&requested, &found))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::CursorStart;

    fn found(change: impl FnOnce(&mut Map<String, Value>)) -> ConsumerListing {
        let spec = CursorSpec::new("EVENTS", "c", "a.*", CursorStart::After(7));
        let mut config = spec.configuration().expect("a good one");
        config.insert("max_waiting".to_owned(), json!(512));
        config.insert("description".to_owned(), json!("epoch 3"));
        change(&mut config);
        ConsumerListing { name: "c".to_owned(), config, pending: 0, unacknowledged: 0 }
    }

    #[test]
    fn what_differs_is_named_and_the_beginning_does_not_count() {
        let wanted = CursorSpec::new("EVENTS", "c", "a.*", CursorStart::After(0));
        assert_eq!(found(|_| {}).differences(&wanted), Ok(vec![]));
        assert_eq!(found(|_| {}).filter(), Some("a.*"));
        let several = found(|config| {
            config.remove("filter_subject");
            config.insert("filter_subjects".to_owned(), json!(["a.*", "b.*"]));
            config.insert("max_deliver".to_owned(), json!(5));
        });
        assert_eq!(several.filter(), None);
        let named: Vec<_> =
            several.differences(&wanted).expect("compared").into_iter().map(|found| found.field).collect();
        assert_eq!(named, ["filter_subject", "filter_subjects", "max_deliver"]);
    }
}
