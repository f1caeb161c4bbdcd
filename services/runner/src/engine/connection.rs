//! The engine's end of the socket to the runner.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rhai::Dynamic;
use rustix::io::Errno;

use crate::output::ScriptStream;
use crate::wire::{
    self, EngineScriptEnd, FunctionReply, HEAD_BYTES, ScriptRunRequest, ServedFunction, ToEngineFrame,
    ValueEncodeError,
};

/// Number of bytes that are read at once: enough for a small request.
const READ_BYTES: usize = 16 * 1024;
/// Number of bytes that are read at once of a long frame.
const LONG_READ_BYTES: usize = 1024 * 1024;
/// How much printed text is gathered before it is sent.
const PRINTED_BYTES_MAX: usize = 32 * 1024;
/// How long printed text is gathered while the script goes on.
const PRINTED_TIME_MAX: Duration = Duration::from_millis(100);
/// Steps of a script between two checks whether printed text is due to be sent. A step may be a long search in a text.
pub(super) const STEPS_BETWEEN_LOOKS: u64 = 16;

/// Connection that a script and its functions share. Clones share it; one thread uses all of them.
#[derive(Clone)]
pub(super) struct EngineConnection(Arc<Mutex<EngineConnectionState>>);

/// The socket, and its buffers.
pub(super) struct EngineConnectionState {
    /// Absent where a script is run without a runner.
    is_connected: bool,
    /// Bytes that were read and not used.
    read: Vec<u8>,
    /// Printed text that was not sent yet, its stream, and since when it waits.
    printed: Vec<u8>,
    stream: ScriptStream,
    since: Instant,
}

/// Why a call returned no value.
#[derive(Debug)]
pub(super) enum EngineCallError {
    /// An argument cannot be sent.
    NotSent(ValueEncodeError),
    /// The runner is gone.
    Gone,
}

impl EngineConnectionState {
    /// Connects to the runner over the standard output of this process, which is a socket.
    pub(super) fn to_runner() -> Self {
        Self {
            is_connected: true,
            read: Vec::new(),
            printed: Vec::new(),
            stream: ScriptStream::Out,
            since: Instant::now(),
        }
    }

    /// Creates a connection without a socket: printed text is dropped, and every call throws a text that the script may catch.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn disconnected() -> Self {
        Self { is_connected: false, ..Self::to_runner() }
    }

    /// Reads the next frame; returns nothing when the runner has closed its end between two frames.
    fn receive(&mut self) -> io::Result<Option<ToEngineFrame>> {
        let Some(head) = self.fill(HEAD_BYTES)? else { return Ok(None) };
        let head: [u8; HEAD_BYTES] = head.try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        let (length, kind) = wire::head(head).map_err(io::Error::other)?;
        self.fill(HEAD_BYTES + length)?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let frame = ToEngineFrame::read(kind, &self.read[HEAD_BYTES..HEAD_BYTES + length]);
        if self.read.capacity() > 4 * READ_BYTES {
            self.read = self.read.split_off(HEAD_BYTES + length);
        } else {
            self.read.drain(..HEAD_BYTES + length);
        }
        frame.map(Some).map_err(io::Error::other)
    }

    /// Returns that many unused bytes, and reads more if necessary.
    fn fill(&mut self, length: usize) -> io::Result<Option<&[u8]>> {
        while self.read.len() < length {
            let before = self.read.len();
            self.read.resize(before + (length - before).clamp(READ_BYTES, LONG_READ_BYTES), 0);
            let taken = loop {
                match rustix::io::read(rustix::stdio::stdout(), &mut self.read[before..]) {
                    Err(Errno::INTR) => {}
                    taken => break taken,
                }
            };
            self.read.truncate(before + *taken.as_ref().unwrap_or(&0));
            match taken? {
                0 if before == 0 => return Ok(None),
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
        Ok(Some(&self.read[..length]))
    }

    /// Sends bytes after the text that was printed before.
    fn send(&mut self, frame: &[u8]) -> io::Result<()> {
        if !self.is_connected {
            self.printed.clear();
            return Ok(());
        }
        let joined;
        let mut rest = if self.printed.is_empty() {
            frame
        } else {
            joined = [&wire::print_frame(self.stream, &self.printed), frame].concat();
            self.printed.clear();
            &joined
        };
        self.since = Instant::now();
        while !rest.is_empty() {
            match rustix::io::write(rustix::stdio::stdout(), rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn print(&mut self, stream: ScriptStream, text: &str) {
        if self.stream != stream && !self.printed.is_empty() {
            self.flush();
        }
        self.stream = stream;
        for piece in text.as_bytes().chunks(PRINTED_BYTES_MAX) {
            if self.printed.len() + piece.len() > PRINTED_BYTES_MAX {
                self.flush();
            }
            if self.printed.is_empty() {
                self.since = Instant::now();
            }
            self.printed.extend_from_slice(piece);
        }
    }

    fn flush(&mut self) {
        // A runner that is gone ends this process.
        let _ = self.send(&[]);
    }
}

impl EngineConnection {
    pub(super) fn new(line: EngineConnectionState) -> Self {
        Self(Arc::new(Mutex::new(line)))
    }

    fn lock(&self) -> MutexGuard<'_, EngineConnectionState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next script to run; nothing when there is none any more.
    pub(super) fn order(&self) -> io::Result<Option<Box<ScriptRunRequest>>> {
        match self.lock().receive()? {
            Some(ToEngineFrame::Run(run)) => Ok(Some(run)),
            Some(ToEngineFrame::Answer(_)) => Err(io::ErrorKind::InvalidData.into()),
            None => Ok(None),
        }
    }

    /// Has the runner serve a function.
    pub(super) fn call(
        &self,
        function: ServedFunction,
        args: &[Dynamic],
    ) -> Result<FunctionReply, EngineCallError> {
        let frame = wire::call_frame(function, args).map_err(EngineCallError::NotSent)?;
        let mut line = self.lock();
        if !line.is_connected {
            return Ok(FunctionReply::Thrown("nobody serves it".to_owned()));
        }
        line.send(&frame).map_err(|_| EngineCallError::Gone)?;
        match line.receive() {
            Ok(Some(ToEngineFrame::Answer(answer))) => Ok(answer),
            _ => Err(EngineCallError::Gone),
        }
    }

    /// Gathers text to be sent, soon.
    pub(super) fn print(&self, stream: ScriptStream, text: &str) {
        self.lock().print(stream, text);
    }

    /// Sends printed text that has waited long enough.
    pub(super) fn flush_if_due(&self) {
        let mut line = self.lock();
        if !line.printed.is_empty() && line.since.elapsed() >= PRINTED_TIME_MAX {
            line.flush();
        }
    }

    /// Sends printed text and the end of the script in one go.
    pub(super) fn end(&self, ended: &EngineScriptEnd) -> io::Result<()> {
        self.lock().send(&wire::end_frame(ended))
    }
}
