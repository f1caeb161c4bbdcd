//! Readers for the fuzzer: frames as an engine that was taken over sends them, and scripts.

use rhai::{Array, Dynamic, Map};

use crate::output::ScriptStream;
use crate::wire::{self, EngineScriptEnd, FromEngineFrame, HEAD_BYTES, ServedFunction};

/// Runs a script as an engine does, in this process and without a runner, for at most that many steps.
///
/// # Errors
/// What the script threw, or what bound it met.
///
/// # Panics
/// When the engine does.
pub fn run_script(script: &str, operations_max: u64) -> Result<(), String> {
    crate::engine::run_alone(script, operations_max)
}

/// Reads a frame from its kind and its body.
///
/// # Errors
/// It is none that an engine sends.
///
/// # Panics
/// When a call is another one after it was sent again.
pub fn read_frame(kind: u8, body: &[u8]) -> Result<(), String> {
    let frame = FromEngineFrame::read(kind, body.to_vec()).map_err(|violation| violation.to_string())?;
    if let FromEngineFrame::Call(function, values) = frame {
        let sent = wire::call_frame(function, &values).map_err(|error| error.to_string())?;
        let again = FromEngineFrame::read(sent[HEAD_BYTES - 1], sent[HEAD_BYTES..].to_vec());
        let shown = |values: &[Dynamic]| format!("{values:?}");
        match again {
            Ok(FromEngineFrame::Call(same, others)) => {
                assert_eq!((function, shown(&values)), (same, shown(&others)), "two readings of one call");
            }
            other => panic!("a call became {other:?}"),
        }
    }
    Ok(())
}

/// Frames of each kind, without their lengths.
#[must_use]
pub fn frames() -> Vec<Vec<u8>> {
    let map = Map::from([("a".into(), Dynamic::from(1.5)), ("é".into(), 'x'.into())]);
    let list: Array = vec![7_i64.into(), "text".into(), true.into(), Dynamic::UNIT, map.into()];
    let call = |function, values: &[Dynamic]| wire::call_frame(function, values).unwrap_or_default();
    let frames = [
        wire::print_frame(ScriptStream::Out, b"printed"),
        wire::print_frame(ScriptStream::Err, b""),
        wire::end_frame(&EngineScriptEnd::Terminated),
        wire::end_frame(&EngineScriptEnd::Panicked("it broke".to_owned())),
        wire::end_frame(&EngineScriptEnd::Exited {
            code: 0,
            result: [("k".to_owned(), "v".to_owned())].into(),
        }),
        call(ServedFunction::Sleep, &[0.5.into()]),
        call(ServedFunction::Run, &["sh".into(), list.into(), Map::new().into()]),
        call(ServedFunction::HttpPost, &["http://a.test/".into(), Dynamic::from_blob(vec![1, 2, 3])]),
    ];
    frames.into_iter().map(|frame| frame.get(HEAD_BYTES - 1..).unwrap_or_default().to_vec()).collect()
}
