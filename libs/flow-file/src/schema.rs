//! JSON Schema of flow files, for editors.

use model::limits::{FLOW_NODES_MAX, NAME_CHARS_MAX};
use serde_json::{Map, Value, json};

use crate::keys::{FLOW_KEYS, FlowFileKey, JOB_KEYS, OLDER_JOB_KEYS, STORED_JOB_KEYS, ValueKind};

/// Returns a JSON Schema (draft 7) of flow files, made of the keys that the reader accepts. It describes the structure alone: names
/// of jobs that depend on each other, cycles and expressions are checked by [`FlowFile::parse`](crate::FlowFile::parse).
#[must_use]
pub fn schema() -> Value {
    let mut schema = mapping(FLOW_KEYS.iter());
    schema.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
    schema.insert("title".to_owned(), json!("Mycora flow file"));
    schema.insert("required".to_owned(), json!(["name", "jobs"]));
    schema.insert("definitions".to_owned(), json!({ "job": job() }));
    Value::Object(schema)
}

/// A mapping with these keys and no others.
fn mapping<'a>(keys: impl Iterator<Item = &'a FlowFileKey>) -> Map<String, Value> {
    let properties: Map<String, Value> = keys.map(|key| (key.name.to_owned(), property(key))).collect();
    let mut mapping = Map::new();
    mapping.insert("type".to_owned(), json!("object"));
    mapping.insert("properties".to_owned(), Value::Object(properties));
    mapping.insert("additionalProperties".to_owned(), json!(false));
    mapping
}

fn property(key: &FlowFileKey) -> Value {
    let mut value = value(key.kind);
    if let Value::Object(fields) = &mut value {
        fields.insert("description".to_owned(), json!(key.about));
    }
    value
}

fn value(kind: ValueKind) -> Value {
    let text = || json!({ "type": ["string", "number", "boolean"] });
    let list = |items: Value, most: usize| match most {
        usize::MAX => json!({ "type": "array", "items": items }),
        most => json!({ "type": "array", "items": items, "maxItems": most }),
    };
    match kind {
        ValueKind::Text => text(),
        ValueKind::Name => json!({ "type": ["string", "integer"], "pattern": name_pattern() }),
        ValueKind::Word(words) => json!({ "enum": words }),
        ValueKind::Whole(least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        ValueKind::Time(most) => {
            json!({ "type": ["integer", "string"], "minimum": 0, "maximum": most, "pattern": "^[0-9]+[smhd]$" })
        }
        ValueKind::Number => json!({ "type": "number" }),
        ValueKind::Truth => json!({ "type": "boolean" }),
        ValueKind::Texts(most) => list(text(), most),
        ValueKind::TextsByName(most) => {
            json!({ "type": "object", "additionalProperties": text(), "maxProperties": most })
        }
        ValueKind::ExitCodes(most) => list(value(ValueKind::Whole(0, 255)), most),
        ValueKind::Mapping(keys) => Value::Object(mapping(keys.iter())),
        ValueKind::Jobs => json!({
            "type": "object",
            "minProperties": 1,
            "maxProperties": FLOW_NODES_MAX,
            "propertyNames": { "pattern": name_pattern() },
            "additionalProperties": { "$ref": "#/definitions/job" },
        }),
    }
}

fn name_pattern() -> String {
    format!("^[A-Za-z0-9_-]{{1,{NAME_CHARS_MAX}}}$")
}

/// A job: with a script of its own, or with the number of a stored one.
fn job() -> Value {
    let mut job = mapping(JOB_KEYS.iter().chain(OLDER_JOB_KEYS));
    let none_of = |keys: &[&str]| {
        let any: Vec<_> = keys.iter().map(|key| json!({ "required": [key] })).collect();
        json!({ "anyOf": any })
    };
    let alternatives = json!([
        { "required": ["script_type", "script"], "not": none_of(&["script_file", "created_job"]) },
        { "required": ["script_type", "script_file"], "not": none_of(&["script", "created_job"]) },
        { "required": ["created_job"], "not": none_of(&STORED_JOB_KEYS) },
    ]);
    job.insert("oneOf".to_owned(), alternatives);
    job.insert("not".to_owned(), json!({ "required": ["depends", "dependends"] }));
    Value::Object(job)
}
