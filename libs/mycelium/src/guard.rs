//! Signing and checking of the payloads of a conversation.

use bytes::Bytes;

use crate::json_rpc::JsonRpcError;

/// Signs outgoing payloads of one conversation and checks incoming ones.
pub trait Guard: Send + Sync + 'static {
    /// Seals an outgoing payload.
    ///
    /// # Errors
    /// Says why the payload cannot leave.
    fn seal(&self, payload: Bytes) -> Result<Bytes, String>;

    /// Seals calls that are of a context, for guards that do not treat all alike.
    ///
    /// # Errors
    /// Says why the payload cannot leave.
    fn seal_of(&self, payload: Bytes, _context: Option<u32>) -> Result<Bytes, String> {
        self.seal(payload)
    }

    /// Opens an incoming payload.
    ///
    /// # Errors
    /// A [`RejectedPayload`], which the guard has counted.
    fn open(&self, payload: &Bytes) -> Result<Bytes, RejectedPayload>;
}

/// An incoming payload that is rejected.
#[derive(Debug, Clone)]
pub struct RejectedPayload {
    /// Error for the sender, where it is answered at all.
    pub error: JsonRpcError,
    /// Opened payload, when its sender may get an answer: each of its requests is answered with the error.
    pub body: Option<Bytes>,
    /// The conversation is over: its sender must begin a new one.
    pub over: bool,
}

/// Guard that takes everything as it is, for transports that only their two ends can use.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unguarded;

impl Guard for Unguarded {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        Ok(payload)
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, RejectedPayload> {
        Ok(payload.clone())
    }
}
