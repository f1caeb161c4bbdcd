//! One script in an engine, from its order to its end.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use model::{Reason, ReasonCode};
use sandbox::{InitCommand, SandboxedJob};

use super::engines::{EngineFailure, EngineProcess, EngineSocket};
use super::functions::{FunctionArgs, JobFunctions};
use super::{ScriptLimits, memory_bytes};
use crate::TERMINATE_GRACE;
use crate::results::{check_size, too_large};
use crate::runtime::{ScriptEnd, ScriptJob};
use crate::wire::{
    self, EngineLanguage, EngineScriptEnd, FromEngineFrame, FunctionReply, ScriptRunRequest, ServedFunction,
};
use crate::workspace::runtime_error;

/// Has an engine run a script. Gives how that ended, and the engine when it can serve another one.
pub(super) async fn run(
    mut engine: EngineProcess,
    order: &ScriptRunRequest,
    job: &ScriptJob,
    serving: &Arc<JobFunctions>,
) -> (ScriptEnd, Option<EngineProcess>) {
    let Some(frame) = wire::run_frame(order) else {
        return (
            ScriptEnd::Broken(runtime_error("the script and its inputs are too long for the engine")),
            None,
        );
    };
    let limits = &serving.limits;
    let end_requested = AtomicBool::new(false);
    let (receiver, child) = engine.parts();
    let conversing = converse(receiver, &frame, order.language, job, serving);
    let ended = tokio::select! {
        biased;
        ended = conversing => ended,
        () = end_in_time(child, limits, &end_requested) => Err(io::ErrorKind::Other.into()),
    };
    let is_end_requested = end_requested.load(Ordering::Relaxed);
    let end = match ended {
        Ok(EngineScriptEnd::Exited { code, result }) => {
            let end = ScriptEnd::Exited { code, result: check_size(&result).map(|()| result) };
            // A signal that comes late would end the next script.
            return (end, (!is_end_requested).then_some(engine));
        }
        Ok(ended) => reported_end(ended, job, limits),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => {
            tracing::warn!(key = %job.execution.job_key, %error, "an engine does not keep to its protocol");
            ScriptEnd::Broken(runtime_error(&format!("the engine does not keep to its protocol: {error}")))
        }
        Err(_) => match (ended_early(job, limits), engine.fate().await) {
            (Some(end), _) if is_end_requested => end,
            (_, EngineFailure::OutOfMemory) => ScriptEnd::Broken(out_of_memory(job)),
            (_, fate) => ScriptEnd::Broken(runtime_error(&fate.to_string())),
        },
    };
    engine.end();
    (end, None)
}

/// Returns the end of a job whose engine reports an end that is not the script's own.
fn reported_end(ended: EngineScriptEnd, job: &ScriptJob, limits: &ScriptLimits) -> ScriptEnd {
    ScriptEnd::Broken(match ended {
        EngineScriptEnd::Terminated => {
            let early = || ScriptEnd::Broken(runtime_error("the engine was told by somebody else to end"));
            return ended_early(job, limits).unwrap_or_else(early);
        }
        EngineScriptEnd::ResultTooLarge { bytes } => too_large(bytes),
        EngineScriptEnd::OutOfMemory => out_of_memory(job),
        EngineScriptEnd::Failed(why) => runtime_error(&why),
        EngineScriptEnd::Panicked(message) => runtime_error(&format!("the engine panicked: {message}")),
        EngineScriptEnd::Exited { .. } => runtime_error("the engine ended in an unknown way"),
    })
}

/// How a script ended that had to.
fn ended_early(job: &ScriptJob, limits: &ScriptLimits) -> Option<ScriptEnd> {
    if job.interrupt.cause().is_some() {
        Some(ScriptEnd::Interrupted)
    } else {
        limits.is_out_of_time().then_some(ScriptEnd::TimedOut)
    }
}

fn out_of_memory(job: &ScriptJob) -> Reason {
    let detail = format!("the script may use {} bytes", memory_bytes(job));
    Reason::new(ReasonCode::OutOfMemory, detail)
}

/// Tells the script to end when it is due, and kills it when it does not. Never returns.
async fn end_in_time(child: &SandboxedJob, limits: &ScriptLimits, end_requested: &AtomicBool) {
    tokio::select! {
        () = limits.interrupt().raised() => {}
        () = limits.out_of_time() => {}
    }
    end_requested.store(true, Ordering::Relaxed);
    // One that is gone needs no order.
    let _ = child.send_command(InitCommand::Terminate).await;
    tokio::time::sleep(TERMINATE_GRACE).await;
    let _ = child.send_command(InitCommand::Kill).await;
    std::future::pending().await
}

/// Gives an engine an order, and does what its script asks for until it ends.
async fn converse(
    receiver: &mut EngineSocket,
    order: &[u8],
    language: EngineLanguage,
    job: &ScriptJob,
    serving: &Arc<JobFunctions>,
) -> io::Result<EngineScriptEnd> {
    receiver.send(order).await?;
    loop {
        match receiver.receive().await? {
            FromEngineFrame::End(ended) => return Ok(ended),
            FromEngineFrame::Print(stream, bytes) => job.printer.print(stream, bytes).await,
            FromEngineFrame::Call(function, values) => {
                let answered = match function {
                    _ if !function.is_of(language) => None,
                    ServedFunction::Sleep => sleep(FunctionArgs::new(values), &serving.limits).await,
                    _ => {
                        let serving = Arc::clone(serving);
                        let serve = move || {
                            serving.answer(function, values).map(|answer| wire::answer_frame(&answer))
                        };
                        tokio::task::spawn_blocking(serve).await.map_err(io::Error::other)?
                    }
                };
                let malformed =
                    || io::Error::new(io::ErrorKind::InvalidData, "a call of what it cannot call");
                receiver.send(&answered.ok_or_else(malformed)?).await?;
            }
        }
    }
}

/// Sleeps, at most as long as the script may run.
async fn sleep(mut args: FunctionArgs, limits: &ScriptLimits) -> Option<Vec<u8>> {
    let time = args.time().ok()?;
    tokio::select! {
        biased;
        () = limits.interrupt().raised() => {}
        () = limits.out_of_time() => {}
        () = tokio::time::sleep(time) => {}
    }
    let answer =
        if limits.look().is_err() { FunctionReply::Ends } else { FunctionReply::Value(rhai::Dynamic::UNIT) };
    Some(wire::answer_frame(&answer))
}
