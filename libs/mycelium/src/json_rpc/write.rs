//! From messages to bytes.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use super::parse::JsonRpcId;
use super::{BATCH_BYTES_MAX, BATCH_LEN_MAX, ErrorData, JsonRpcCall, JsonRpcResult};

#[derive(Serialize)]
struct RequestOut<'a> {
    jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<u64>,
    method: &'static str,
    params: &'a RawValue,
}

#[derive(Serialize)]
struct ResponseOut<'a> {
    jsonrpc: &'static str,
    id: Option<IdOut<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<ErrorOut<'a>>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum IdOut<'a> {
    Number(u64),
    Text(&'a str),
}

#[derive(Serialize)]
struct ErrorOut<'a> {
    code: i32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a ErrorData>,
}

/// A batch of requests with ids from `first` on, in as many payloads as its size asks for. One request
/// alone is no batch.
pub(super) fn requests(first: u64, calls: &[JsonRpcCall]) -> Vec<Bytes> {
    let members = calls.iter().zip(first..).map(|(call, id)| {
        encode(&RequestOut { jsonrpc: "2.0", id: Some(id), method: call.method, params: &call.params })
    });
    if calls.len() == 1 { members.map(Bytes::from).collect() } else { batches(members) }
}

/// One request.
#[must_use]
pub fn request(id: u64, call: &JsonRpcCall) -> Bytes {
    encode(&RequestOut { jsonrpc: "2.0", id: Some(id), method: call.method, params: &call.params }).into()
}

/// A request that wants no answer.
pub(super) fn notification(call: &JsonRpcCall) -> Bytes {
    encode(&RequestOut { jsonrpc: "2.0", id: None, method: call.method, params: &call.params }).into()
}

/// One answer.
#[must_use]
pub fn response(id: Option<&JsonRpcId>, answer: &JsonRpcResult) -> Bytes {
    encode_response(id, answer).into()
}

/// Answers to a batch, in as many payloads as their size asks for.
pub(super) fn responses(answers: &[(Option<JsonRpcId>, JsonRpcResult)]) -> Vec<Bytes> {
    batches(answers.iter().map(|(id, answer)| encode_response(id.as_ref(), answer)))
}

fn encode_response(id: Option<&JsonRpcId>, answer: &JsonRpcResult) -> Vec<u8> {
    let id = id.map(|id| match id {
        JsonRpcId::Number(number) => IdOut::Number(*number),
        JsonRpcId::Text(text) => IdOut::Text(text),
    });
    let (result, error) = match answer {
        Ok(result) => (Some(&**result), None),
        Err(error) => {
            (None, Some(ErrorOut { code: error.code, message: &error.message, data: error.data.as_ref() }))
        }
    };
    encode(&ResponseOut { jsonrpc: "2.0", id, result, error })
}

fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("texts, numbers and raw JSON can always be written")
}

fn batches(members: impl Iterator<Item = Vec<u8>>) -> Vec<Bytes> {
    let mut payloads = Vec::new();
    let mut open: Vec<u8> = Vec::new();
    let mut count = 0;
    for member in members {
        if count == BATCH_LEN_MAX || (count > 0 && open.len() + member.len() + 2 > BATCH_BYTES_MAX) {
            open.push(b']');
            payloads.push(std::mem::take(&mut open).into());
            count = 0;
        }
        open.push(if count == 0 { b'[' } else { b',' });
        open.extend_from_slice(&member);
        count += 1;
    }
    if count > 0 {
        open.push(b']');
        payloads.push(open.into());
    }
    payloads
}
