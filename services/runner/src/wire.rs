//! Frames between the runner and an engine, over one stream socket.
//!
//! A frame is its length (4 bytes, little endian), its kind (1 byte) and a body. The runner trusts nothing that it reads:
//! it checks lengths, counts and depths before it allocates anything for them.
//!
//! ```text
//! runner ── Run ──► engine ── Print*, Call ──► runner ── Answer ──► engine … ── End ──► runner
//! ```

mod values;

use std::collections::BTreeMap;

use model::flow::ResultMap;
use rhai::Dynamic;
use serde::{Deserialize, Serialize};

pub(crate) use self::values::ValueEncodeError;
use self::values::{WireValueReader, write};
use crate::RHAI_STRING_BYTES_MAX;
use crate::output::ScriptStream;

/// The longest frame: two of the longest texts, and room for the rest.
pub(crate) const FRAME_BYTES_MAX: usize = 2 * RHAI_STRING_BYTES_MAX + 4 * 1024 * 1024;
/// The bytes of a frame before its body.
pub(crate) const HEAD_BYTES: usize = 5;
/// Maximum length of an error text from an engine.
const DETAIL_BYTES_MAX: usize = 1024;

const RUN: u8 = b'R';
const ANSWER: u8 = b'A';
const PRINT_OUT: u8 = b'O';
const PRINT_ERR: u8 = b'E';
const CALL: u8 = b'C';
const END: u8 = b'Z';

/// A frame that the other side may not send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct EngineProtocolError(pub(crate) &'static str);

/// A language of the engine: which functions a script finds beside the standard ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EngineLanguage {
    /// The engine itself.
    Rhai,
    /// Rhai, and the objects of the context.
    Osis,
    /// Rhai, and the system.
    Sal,
}

/// An order to run one script.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ScriptRunRequest {
    /// Language of the script.
    pub(crate) language: EngineLanguage,
    /// Text of the script.
    pub(crate) script: String,
    /// The job's variables, as the constant `env`.
    pub(crate) env: BTreeMap<String, String>,
    /// Further variables, that `env(name)` of `sal` finds.
    pub(crate) own_env: BTreeMap<String, String>,
    /// Results of jobs before it, as JSON.
    pub(crate) inputs: String,
    /// Bytes that the script may hold in memory.
    pub(crate) memory_bytes: u64,
}

/// How a script ended, as its engine reports it.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum EngineScriptEnd {
    /// By itself.
    Exited {
        /// 0 is success.
        code: i32,
        /// Result of the script.
        result: ResultMap,
    },
    /// By itself, with a result of more bytes than there may be.
    ResultTooLarge {
        /// How many, as JSON.
        bytes: u64,
    },
    /// The runner told the script to end.
    Terminated,
    /// The script held more memory than allowed.
    OutOfMemory,
    /// The engine could not run it.
    Failed(String),
    /// The engine panicked, and serves nothing more.
    Panicked(String),
}

/// A function that the runner serves, since it does more than compute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum ServedFunction {
    Sleep,
    ReadFile,
    WriteFile,
    OsisSet,
    OsisGet,
    OsisDelete,
    OsisIndex,
    OsisList,
    OsisFind,
    AppendFile,
    ListDir,
    Exists,
    FileSize,
    Remove,
    Copy,
    MakeDir,
    Run,
    HttpGet,
    HttpPost,
    Http,
}

impl ServedFunction {
    /// All of them, each at its number.
    const ALL: [(Self, &'static str, EngineLanguage); 20] = [
        (Self::Sleep, "sleep", EngineLanguage::Rhai),
        (Self::ReadFile, "read_file", EngineLanguage::Rhai),
        (Self::WriteFile, "write_file", EngineLanguage::Rhai),
        (Self::OsisSet, "osis_set", EngineLanguage::Osis),
        (Self::OsisGet, "osis_get", EngineLanguage::Osis),
        (Self::OsisDelete, "osis_delete", EngineLanguage::Osis),
        (Self::OsisIndex, "osis_index", EngineLanguage::Osis),
        (Self::OsisList, "osis_list", EngineLanguage::Osis),
        (Self::OsisFind, "osis_find", EngineLanguage::Osis),
        (Self::AppendFile, "append_file", EngineLanguage::Sal),
        (Self::ListDir, "list_dir", EngineLanguage::Sal),
        (Self::Exists, "exists", EngineLanguage::Sal),
        (Self::FileSize, "file_size", EngineLanguage::Sal),
        (Self::Remove, "remove", EngineLanguage::Sal),
        (Self::Copy, "copy", EngineLanguage::Sal),
        (Self::MakeDir, "make_dir", EngineLanguage::Sal),
        (Self::Run, "run", EngineLanguage::Sal),
        (Self::HttpGet, "http_get", EngineLanguage::Sal),
        (Self::HttpPost, "http_post", EngineLanguage::Sal),
        (Self::Http, "http", EngineLanguage::Sal),
    ];

    /// Returns the name by which scripts call the function.
    pub(crate) fn name(self) -> &'static str {
        Self::ALL[self as usize].1
    }

    /// Returns true if scripts of `language` have the function.
    pub(crate) fn is_of(self, language: EngineLanguage) -> bool {
        let own = Self::ALL[self as usize].2;
        own == EngineLanguage::Rhai || own == language
    }

    fn read(number: u8) -> Result<Self, EngineProtocolError> {
        Self::ALL
            .get(usize::from(number))
            .map(|known| known.0)
            .ok_or(EngineProtocolError("a call of no function"))
    }
}

/// Reply to a call.
#[derive(Debug)]
pub(crate) enum FunctionReply {
    /// A value.
    Value(Dynamic),
    /// A text that the script may catch.
    Thrown(String),
    /// The script has to end.
    Ends,
    /// The script has taken more steps than it may.
    TooManySteps,
    /// A value larger than a script may have.
    TooLarge,
}

/// A frame that an engine reads.
#[derive(Debug)]
pub(crate) enum ToEngineFrame {
    Run(Box<ScriptRunRequest>),
    Answer(FunctionReply),
}

/// A frame that the runner reads.
#[derive(Debug)]
pub(crate) enum FromEngineFrame {
    Print(ScriptStream, Vec<u8>),
    Call(ServedFunction, Vec<Dynamic>),
    End(EngineScriptEnd),
}

/// The length of a body and its kind.
///
/// # Errors
/// When it is longer than a frame may be.
pub(crate) fn head(bytes: [u8; HEAD_BYTES]) -> Result<(usize, u8), EngineProtocolError> {
    let [a, b, c, d, kind] = bytes;
    let length = usize::try_from(u32::from_le_bytes([a, b, c, d])).unwrap_or(usize::MAX);
    if length > FRAME_BYTES_MAX {
        Err(EngineProtocolError("a frame is too long"))
    } else {
        Ok((length, kind))
    }
}

/// A frame whose body `fill` writes; nothing when that is longer than a frame may be.
fn frame<E>(kind: u8, fill: impl FnOnce(&mut Vec<u8>) -> Result<(), E>) -> Result<Option<Vec<u8>>, E> {
    let mut bytes = vec![0, 0, 0, 0, kind];
    fill(&mut bytes)?;
    let length = bytes.len() - HEAD_BYTES;
    let Some(length) = u32::try_from(length).ok().filter(|_| length <= FRAME_BYTES_MAX) else {
        return Ok(None);
    };
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    Ok(Some(bytes))
}

fn json_frame(kind: u8, value: &impl Serialize) -> Option<Vec<u8>> {
    frame(kind, |bytes| serde_json::to_writer(bytes, value)).ok().flatten()
}

/// The frame of an order to run a script; nothing when it is longer than a frame may be.
pub(crate) fn run_frame(run: &ScriptRunRequest) -> Option<Vec<u8>> {
    json_frame(RUN, run)
}

/// The frame of an answer.
pub(crate) fn answer_frame(answer: &FunctionReply) -> Vec<u8> {
    let fill = |bytes: &mut Vec<u8>| match answer {
        FunctionReply::Value(value) => {
            bytes.push(0);
            write(value, bytes)
        }
        FunctionReply::Thrown(text) => {
            bytes.push(1);
            bytes.extend_from_slice(text.as_bytes());
            Ok(())
        }
        FunctionReply::Ends => {
            bytes.push(2);
            Ok(())
        }
        FunctionReply::TooManySteps => {
            bytes.push(3);
            Ok(())
        }
        FunctionReply::TooLarge => {
            bytes.push(4);
            Ok(())
        }
    };
    match frame(ANSWER, fill) {
        Ok(Some(bytes)) => bytes,
        // One byte fits, and has no values in it.
        Ok(None) | Err(ValueEncodeError::TooMany) => vec![1, 0, 0, 0, ANSWER, 4],
        Err(error) => answer_frame(&FunctionReply::Thrown(error.to_string())),
    }
}

/// The frame of printed text, which is shorter than a frame may be.
pub(crate) fn print_frame(stream: ScriptStream, text: &[u8]) -> Vec<u8> {
    let kind = if stream == ScriptStream::Out { PRINT_OUT } else { PRINT_ERR };
    let fill = |bytes: &mut Vec<u8>| {
        bytes.extend_from_slice(&text[..text.len().min(FRAME_BYTES_MAX)]);
        Ok::<_, std::convert::Infallible>(())
    };
    match frame(kind, fill) {
        Ok(bytes) => bytes.unwrap_or_default(),
        Err(never) => match never {},
    }
}

/// The frame of a call.
///
/// # Errors
/// When a value cannot be sent.
pub(crate) fn call_frame(function: ServedFunction, args: &[Dynamic]) -> Result<Vec<u8>, ValueEncodeError> {
    let fill = |bytes: &mut Vec<u8>| {
        bytes.push(function as u8);
        args.iter().try_for_each(|arg| write(arg, bytes))
    };
    frame(CALL, fill)?.ok_or(ValueEncodeError::TooMany)
}

/// The frame of an end.
pub(crate) fn end_frame(ended: &EngineScriptEnd) -> Vec<u8> {
    let fallback =
        || json_frame(END, &EngineScriptEnd::Failed("its end cannot be written as a frame".to_owned()));
    json_frame(END, ended).or_else(fallback).unwrap_or_default()
}

impl ToEngineFrame {
    /// Reads a frame.
    ///
    /// # Errors
    /// When it is none that an engine is sent.
    pub(crate) fn read(kind: u8, body: &[u8]) -> Result<Self, EngineProtocolError> {
        match kind {
            RUN => serde_json::from_slice(body)
                .map(Self::Run)
                .map_err(|_| EngineProtocolError("an order is malformed")),
            ANSWER => {
                let (kind, rest) = body.split_first().ok_or(EngineProtocolError("an answer is empty"))?;
                Ok(Self::Answer(match kind {
                    0 => FunctionReply::Value(WireValueReader::new(rest).only()?),
                    1 => FunctionReply::Thrown(String::from_utf8_lossy(rest).into_owned()),
                    2 => FunctionReply::Ends,
                    3 => FunctionReply::TooManySteps,
                    4 => FunctionReply::TooLarge,
                    _ => return Err(EngineProtocolError("an answer of no kind")),
                }))
            }
            _ => Err(EngineProtocolError("a frame of no kind")),
        }
    }
}

impl FromEngineFrame {
    /// Reads a frame.
    ///
    /// # Errors
    /// When it is none that an engine sends.
    pub(crate) fn read(kind: u8, body: Vec<u8>) -> Result<Self, EngineProtocolError> {
        match kind {
            PRINT_OUT => Ok(Self::Print(ScriptStream::Out, body)),
            PRINT_ERR => Ok(Self::Print(ScriptStream::Err, body)),
            CALL => {
                let (number, rest) = body.split_first().ok_or(EngineProtocolError("a call is empty"))?;
                Ok(Self::Call(ServedFunction::read(*number)?, WireValueReader::new(rest).all()?))
            }
            END => {
                let ended =
                    serde_json::from_slice(&body).map_err(|_| EngineProtocolError("an end is malformed"))?;
                Ok(Self::End(bounded(ended)))
            }
            _ => Err(EngineProtocolError("a frame of no kind")),
        }
    }
}

/// Shortens the text of an end to the limit.
fn bounded(mut ended: EngineScriptEnd) -> EngineScriptEnd {
    if let EngineScriptEnd::Failed(text) | EngineScriptEnd::Panicked(text) = &mut ended {
        let at = (0..=text.len().min(DETAIL_BYTES_MAX)).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(at.unwrap_or(0));
    }
    ended
}

#[cfg(test)]
mod tests;
