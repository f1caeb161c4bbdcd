//! What is done to payloads on their way out of a conversation and into it.

use bytes::Bytes;

use crate::json_rpc::RpcError;

/// Signs what leaves one conversation and checks what comes into it.
pub trait Guard: Send + Sync + 'static {
    /// Makes a payload ready to leave.
    ///
    /// # Errors
    /// Says why it cannot leave.
    fn seal(&self, payload: Bytes) -> Result<Bytes, String>;

    /// The same for calls that are of a context, for whoever does not treat all alike.
    ///
    /// # Errors
    /// Says why it cannot leave.
    fn seal_of(&self, payload: Bytes, _context: Option<u32>) -> Result<Bytes, String> {
        self.seal(payload)
    }

    /// Opens what came in.
    ///
    /// # Errors
    /// A [`Refused`], which whoever guards has counted.
    fn open(&self, payload: &Bytes) -> Result<Bytes, Refused>;
}

/// Something that came in and is not taken.
#[derive(Debug, Clone)]
pub struct Refused {
    /// What its sender is told, where it is answered at all.
    pub error: RpcError,
    /// What was in it, when its sender may be told: each of its requests is answered with the error.
    pub body: Option<Bytes>,
    /// The conversation is over: whoever says more begins a new one.
    pub over: bool,
}

/// Takes everything as it is, for ways on which nobody can say anything but its two ends.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unguarded;

impl Guard for Unguarded {
    fn seal(&self, payload: Bytes) -> Result<Bytes, String> {
        Ok(payload)
    }

    fn open(&self, payload: &Bytes) -> Result<Bytes, Refused> {
        Ok(payload.clone())
    }
}
