//! JSON-RPC 2.0: requests, notifications, responses, batches.
//!
//! Everything that comes in is parsed strictly and within limits; parameters and results stay raw until
//! code that knows their type reads them.

mod parse;
mod peer;
mod write;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

pub use parse::{
    InvalidJsonRpcMessage, JsonRpcId, JsonRpcMessage, JsonRpcParseError, JsonRpcPayload, JsonRpcResponse,
    parse,
};
pub use peer::{
    CallBatchProgress, CallError, HANDLERS_MAX, IN_FLIGHT_MAX, JsonRpcHandler, JsonRpcPeer, OutgoingPayload,
    SentBatch,
};
pub(crate) use peer::{DirectSender, PayloadSendResult, WeakJsonRpcPeer};
pub use write::{request, response};

/// Content type of an envelope with a JSON-RPC payload.
pub const PAYLOAD_TYPE: &str = "application/vnd.mycora.rpc+json";
/// Maximum size of a payload: what a gRPC message can carry, less its frame.
pub const PAYLOAD_BYTES_MAX: usize = 4 * 1024 * 1024 - 4096;
/// A batch ends at this size, or at [`BATCH_LEN_MAX`]; the rest goes with the next.
pub const BATCH_BYTES_MAX: usize = 1024 * 1024;
/// Members of one batch, at most.
pub const BATCH_LEN_MAX: usize = 1000;
/// A method's name, at most.
pub const METHOD_BYTES_MAX: usize = 64;

/// The payload is no JSON.
pub const PARSE_ERROR: i32 = -32700;
/// The JSON is no request.
pub const INVALID_REQUEST: i32 = -32600;
/// No such method.
pub const METHOD_NOT_FOUND: i32 = -32601;
/// The method cannot read its parameters.
pub const INVALID_PARAMS: i32 = -32602;
/// A bug, or something below that is broken.
pub const INTERNAL_ERROR: i32 = -32603;
/// The method refuses; [`ErrorData::reason`] says why.
pub const REFUSED: i32 = -32000;

/// Why a method refuses, for programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// In `UPPER_SNAKE`.
    pub reason: String,
    /// Asking again cannot help.
    #[serde(default)]
    pub lasting: bool,
}

/// An error answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message} ({code})")]
pub struct JsonRpcError {
    /// Which kind.
    pub code: i32,
    /// Error message, for people.
    pub message: String,
    /// Reason, for programs.
    pub data: Option<ErrorData>,
}

impl JsonRpcError {
    /// An error that a method gives, with its reason.
    #[must_use]
    pub fn refused(reason: &str, lasting: bool, message: impl Into<String>) -> Self {
        let data = Some(ErrorData { reason: reason.to_owned(), lasting });
        Self { code: REFUSED, message: message.into(), data }
    }

    /// One of the protocol's own errors.
    #[must_use]
    pub fn of_protocol(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The reason for programs; empty when none was given.
    #[must_use]
    pub fn reason(&self) -> &str {
        self.data.as_ref().map_or("", |data| &data.reason)
    }

    /// Returns true when asking again cannot help. The protocol's own errors about the request are lasting.
    #[must_use]
    pub fn is_lasting(&self) -> bool {
        match &self.data {
            Some(data) => data.lasting,
            None => matches!(self.code, INVALID_REQUEST | METHOD_NOT_FOUND | INVALID_PARAMS),
        }
    }
}

/// Maximum length of a parse error, in characters: parsers repeat their input, however long it is, and an
/// error of that length could not even be sent.
const WHY_CHARS_MAX: usize = 300;

/// Why something cannot be read.
fn error_text(error: &serde_json::Error) -> String {
    error.to_string().chars().take(WHY_CHARS_MAX).collect()
}

/// Result of one request.
pub type JsonRpcResult = Result<Box<RawValue>, JsonRpcError>;

/// Turns a result into an answer.
pub fn answer(result: &impl Serialize) -> JsonRpcResult {
    serde_json::value::to_raw_value(result).map_err(|error| {
        JsonRpcError::of_protocol(INTERNAL_ERROR, format!("the result cannot be written: {error}"))
    })
}

/// A request or notification that came in.
#[derive(Debug, Clone)]
pub struct JsonRpcRequest {
    /// Chosen by the sender; absent for a notification, which is not answered.
    pub id: Option<JsonRpcId>,
    /// Name of the method.
    pub method: String,
    /// Parameters; `null` when absent.
    pub params: Box<RawValue>,
}

impl JsonRpcRequest {
    /// Reads the parameters.
    ///
    /// # Errors
    /// An answer that names what is wrong with them.
    pub fn read<T: DeserializeOwned>(&self) -> Result<T, JsonRpcError> {
        serde_json::from_str(self.params.get()).map_err(|error| {
            JsonRpcError::of_protocol(INVALID_PARAMS, format!("{}: {}", self.method, error_text(&error)))
        })
    }
}

/// A request to be sent.
#[derive(Debug, Clone)]
pub struct JsonRpcCall {
    method: &'static str,
    params: Box<RawValue>,
    context: Option<u32>,
}

impl JsonRpcCall {
    /// With parameters that still have to be written.
    ///
    /// # Errors
    /// When they cannot be written as JSON.
    pub fn new(method: &'static str, params: &impl Serialize) -> Result<Self, serde_json::Error> {
        Ok(Self::raw(method, serde_json::value::to_raw_value(params)?))
    }

    /// With parameters that are JSON already.
    #[must_use]
    pub const fn raw(method: &'static str, params: Box<RawValue>) -> Self {
        Self { method, params, context: None }
    }

    /// Assigns the call to a context, for the guard only. All calls of a batch are of one context.
    #[must_use]
    pub fn of_context(self, context: u32) -> Self {
        Self { context: Some(context), ..self }
    }
}
