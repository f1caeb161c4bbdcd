//! Parses payloads.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::{
    BATCH_LEN_MAX, ErrorData, INVALID_REQUEST, JsonRpcError, JsonRpcRequest, JsonRpcResult, METHOD_BYTES_MAX,
    PARSE_ERROR, PAYLOAD_BYTES_MAX, error_text,
};

/// Text ids are shorter than this.
const ID_BYTES_MAX: usize = 128;

/// Id that joins a response with its request.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum JsonRpcId {
    /// Number, as this implementation uses it.
    Number(u64),
    /// Text, as others may use it.
    Text(String),
}

/// A response that came in.
#[derive(Debug, Clone)]
pub struct JsonRpcResponse {
    /// Id of the answered request; absent when the other side could not read it.
    pub id: Option<JsonRpcId>,
    /// Result or error.
    pub answer: JsonRpcResult,
}

/// One member of a payload.
#[derive(Debug, Clone)]
pub enum JsonRpcMessage {
    /// A request or notification.
    Request(JsonRpcRequest),
    /// A response.
    Response(JsonRpcResponse),
}

/// A member that is neither request nor response. The error answer carries its id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidJsonRpcMessage {
    /// Id of the member, as far as it could be read.
    pub id: Option<JsonRpcId>,
    /// Problem with the member.
    pub problem: String,
}

/// Messages of one payload.
#[derive(Debug, Clone)]
pub enum JsonRpcPayload {
    /// One message.
    Single(Result<JsonRpcMessage, InvalidJsonRpcMessage>),
    /// Several, to be answered together. Never empty.
    Batch(Vec<Result<JsonRpcMessage, InvalidJsonRpcMessage>>),
}

/// Why a payload as a whole cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JsonRpcParseError {
    /// More bytes than [`PAYLOAD_BYTES_MAX`].
    #[error("a payload has at most {PAYLOAD_BYTES_MAX} bytes, this one has {0}")]
    TooLarge(usize),
    /// Not JSON, or a batch beyond its limit.
    #[error("the payload is not JSON-RPC: {0}")]
    NotJson(String),
    /// A batch without members.
    #[error("a batch has at least one member")]
    EmptyBatch,
}

impl From<JsonRpcParseError> for JsonRpcError {
    fn from(error: JsonRpcParseError) -> Self {
        let code = match error {
            JsonRpcParseError::NotJson(_) => PARSE_ERROR,
            JsonRpcParseError::TooLarge(_) | JsonRpcParseError::EmptyBatch => INVALID_REQUEST,
        };
        Self::of_protocol(code, error.to_string())
    }
}

/// Reads a payload.
///
/// # Errors
/// [`JsonRpcParseError`] when the payload has no members.
pub fn parse(payload: &[u8]) -> Result<JsonRpcPayload, JsonRpcParseError> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(JsonRpcParseError::TooLarge(payload.len()));
    }
    let not_json = |error: serde_json::Error| JsonRpcParseError::NotJson(error_text(&error));
    let first = payload.iter().find(|byte| !byte.is_ascii_whitespace());
    if first == Some(&b'[') {
        let RawJsonRpcBatch(members) = serde_json::from_slice(payload).map_err(not_json)?;
        if members.is_empty() {
            return Err(JsonRpcParseError::EmptyBatch);
        }
        return Ok(JsonRpcPayload::Batch(members.into_iter().map(member).collect()));
    }
    // Mostly it is a message, and read once.
    if first == Some(&b'{')
        && let Ok(parsed) = serde_json::from_slice(payload)
    {
        return Ok(JsonRpcPayload::Single(checked(parsed)));
    }
    let raw: &RawValue = serde_json::from_slice(payload).map_err(not_json)?;
    Ok(JsonRpcPayload::Single(member(raw)))
}

/// The raw members of a batch, no more than are allowed.
struct RawJsonRpcBatch<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for RawJsonRpcBatch<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<&'de RawValue>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a batch")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = seq.next_element()? {
                    if members.len() == BATCH_LEN_MAX {
                        return Err(A::Error::custom(format_args!(
                            "a batch has at most {BATCH_LEN_MAX} members"
                        )));
                    }
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_seq(Collect).map(Self)
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawJsonRpcMessage<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(default, borrow, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(default, borrow)]
    method: Option<Cow<'a, str>>,
    #[serde(default, borrow, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(default, borrow, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(default)]
    error: Option<RawJsonRpcError>,
}

/// `null` is a value here, not an absence.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

#[derive(Deserialize)]
struct RawJsonRpcError {
    code: i32,
    message: String,
    #[serde(default)]
    data: Option<Box<RawValue>>,
}

fn member(raw: &RawValue) -> Result<JsonRpcMessage, InvalidJsonRpcMessage> {
    let text = raw.get();
    // A list would be taken for an object without names.
    if !text.starts_with('{') {
        return Err(InvalidJsonRpcMessage { id: None, problem: "a message is an object".to_owned() });
    }
    serde_json::from_str(text)
        .map_err(|error| InvalidJsonRpcMessage { id: None, problem: error_text(&error) })
        .and_then(checked)
}

fn checked(parsed: RawJsonRpcMessage<'_>) -> Result<JsonRpcMessage, InvalidJsonRpcMessage> {
    let RawJsonRpcMessage { jsonrpc, id, method, params, result, error } = parsed;
    let id = id.map(read_id).transpose().map_err(|problem| InvalidJsonRpcMessage { id: None, problem })?;
    let invalid =
        |problem: &str| InvalidJsonRpcMessage { id: id.clone().flatten(), problem: problem.to_owned() };
    if jsonrpc != "2.0" {
        return Err(invalid("`jsonrpc` is \"2.0\""));
    }
    match (method, params, result, error) {
        (Some(method), params, None, None) => {
            if method.is_empty() || method.len() > METHOD_BYTES_MAX {
                return Err(invalid("a method's name has 1 to 64 bytes"));
            }
            // A request with the id `null` could not be told apart from others, so it is refused.
            let id = match &id {
                None => None,
                Some(None) => return Err(invalid("a request's id is a number or a text")),
                Some(Some(id)) => Some(id.clone()),
            };
            let params = params.unwrap_or(RawValue::NULL);
            if !matches!(params.get().as_bytes().first(), Some(b'{' | b'[' | b'n')) {
                return Err(InvalidJsonRpcMessage {
                    id,
                    problem: "`params` is an object or an array".into(),
                });
            }
            Ok(JsonRpcMessage::Request(JsonRpcRequest {
                id,
                method: method.into_owned(),
                params: params.to_owned(),
            }))
        }
        (None, None, result, error) => {
            let Some(id) = id else { return Err(invalid("a response has an id")) };
            let answer = match (result, error) {
                (Some(result), None) => Ok(result.to_owned()),
                (None, Some(RawJsonRpcError { code, message, data })) => {
                    let data = data.and_then(|data| serde_json::from_str::<ErrorData>(data.get()).ok());
                    Err(JsonRpcError { code, message, data })
                }
                _ => {
                    return Err(InvalidJsonRpcMessage {
                        id,
                        problem: "a response has a result or an error".into(),
                    });
                }
            };
            Ok(JsonRpcMessage::Response(JsonRpcResponse { id, answer }))
        }
        _ => Err(invalid("a message is a request or a response")),
    }
}

/// A number, a text, or null, which is no id.
fn read_id(raw: &RawValue) -> Result<Option<JsonRpcId>, String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Any {
        Number(u64),
        Text(String),
        Null,
    }
    match serde_json::from_str(raw.get()) {
        Ok(Any::Number(number)) => Ok(Some(JsonRpcId::Number(number))),
        Ok(Any::Text(text)) if text.len() <= ID_BYTES_MAX => Ok(Some(JsonRpcId::Text(text))),
        Ok(Any::Null) => Ok(None),
        Ok(Any::Text(_)) => Err(format!("an id has at most {ID_BYTES_MAX} bytes")),
        Err(_) => Err("an id is a whole number, a text or null".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json_rpc::{JsonRpcCall, write};
    use proptest::prelude::*;

    fn single(text: &str) -> Result<JsonRpcMessage, InvalidJsonRpcMessage> {
        match parse(text.as_bytes()) {
            Ok(JsonRpcPayload::Single(message)) => message,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_specification_s_examples() {
        let Ok(JsonRpcMessage::Request(request)) =
            single(r#"{"jsonrpc": "2.0", "method": "subtract", "params": [42, 23], "id": 1}"#)
        else {
            panic!("a request")
        };
        assert_eq!((request.id, request.params.get()), (Some(JsonRpcId::Number(1)), "[42, 23]"));
        let Ok(JsonRpcMessage::Request(note)) = single(r#"{"jsonrpc":"2.0","method":"update","params":[1]}"#)
        else {
            panic!("a notification")
        };
        assert_eq!(note.id, None);
        let Ok(JsonRpcMessage::Response(response)) =
            single(r#"{"jsonrpc":"2.0","error":{"code":-32601,"message":"Method not found"},"id":"1"}"#)
        else {
            panic!("a response")
        };
        assert_eq!(response.answer.expect_err("an error").code, -32601);
        let Ok(JsonRpcMessage::Response(response)) = single(r#"{"jsonrpc":"2.0","result":null,"id":null}"#)
        else {
            panic!("a response to nobody")
        };
        assert_eq!((response.id, response.answer.expect("null is a result").get()), (None, "null"));
    }

    #[test]
    fn what_is_no_message_is_refused_one_by_one() {
        for text in [
            "1",
            "{}",
            r#"{"jsonrpc":"1.0","method":"a","id":1}"#,
            r#"{"jsonrpc":"2.0","method":"","id":1}"#,
            r#"{"jsonrpc":"2.0","method":"a","id":1.5}"#,
            r#"{"jsonrpc":"2.0","method":"a","id":null}"#,
            r#"{"jsonrpc":"2.0","method":"a","params":1}"#,
            r#"{"jsonrpc":"2.0","method":"a","result":1}"#,
            r#"{"jsonrpc":"2.0","id":1}"#,
            r#"{"jsonrpc":"2.0","id":1,"result":1,"error":{"code":1,"message":""}}"#,
            r#"{"jsonrpc":"2.0","result":1}"#,
            r#"{"jsonrpc":"2.0","method":"a","more":1}"#,
        ] {
            assert!(single(text).is_err(), "{text}");
        }
        let Ok(JsonRpcPayload::Batch(members)) =
            parse(br#"[1, {"jsonrpc":"2.0","method":"a"}, ["2.0", 1, "a"]]"#)
        else {
            panic!("a batch")
        };
        assert!(members[0].is_err() && members[1].is_ok() && members[2].is_err());
        assert_eq!(parse(b" []").map(|_| ()), Err(JsonRpcParseError::EmptyBatch));
        assert!(matches!(parse(b"[1"), Err(JsonRpcParseError::NotJson(_))));
        let many = format!("[{}0]", "0,".repeat(BATCH_LEN_MAX));
        assert!(matches!(parse(many.as_bytes()), Err(JsonRpcParseError::NotJson(_))));
        assert_eq!(
            parse(&vec![b' '; PAYLOAD_BYTES_MAX + 1]).map(|_| ()),
            Err(JsonRpcParseError::TooLarge(PAYLOAD_BYTES_MAX + 1))
        );
    }

    #[test]
    fn a_refusal_is_short_for_any_input() {
        let long = "\u{202e}".repeat(100_000);
        let text = format!(r#"{{"jsonrpc":"2.0","error":"{long}"}}"#);
        let problem = single(&text).expect_err("no error").problem;
        assert!(problem.len() < 2000, "{} bytes", problem.len());
        let text = format!(r#"{{"jsonrpc":"2.0","method":"a","params":["{long}"]}}"#);
        let Ok(JsonRpcMessage::Request(request)) = single(&text) else { panic!("a request") };
        let message = request.read::<Vec<u32>>().expect_err("texts").message;
        assert!(message.len() < 2000, "{} bytes", message.len());
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes: Vec<u8>) {
            drop(parse(&bytes));
        }

        #[test]
        fn no_damage_panics(cut in 0_usize..400, byte: u8, text: String) {
            let calls: Vec<_> = (0..3).map(|n| JsonRpcCall::new("job.run", &(n, &text)).expect("JSON")).collect();
            let mut payload = write::requests(7, &calls).remove(0).to_vec();
            let at = cut % payload.len();
            payload[at] = byte;
            drop(parse(&payload));
            payload.truncate(at);
            drop(parse(&payload));
        }

        #[test]
        fn what_is_written_is_read(text: String, first in 0_u64..1000) {
            let calls = [JsonRpcCall::new("a", &[&text]).expect("JSON"), JsonRpcCall::new("b", &[1]).expect("JSON")];
            let payloads = write::requests(first, &calls);
            prop_assert_eq!(payloads.len(), 1);
            let Ok(JsonRpcPayload::Batch(members)) = parse(&payloads[0]) else { panic!("a batch") };
            let Ok(JsonRpcMessage::Request(request)) = &members[0] else { panic!("a request") };
            prop_assert_eq!(&request.id, &Some(JsonRpcId::Number(first)));
            prop_assert_eq!(request.read::<Vec<String>>().expect("as written"), vec![text]);
        }
    }
}
