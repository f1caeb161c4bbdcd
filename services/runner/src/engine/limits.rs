//! When the script of this process has to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rhai::{Dynamic, EvalAltResult, Position};

use super::functions::EvalResult;
use super::memory;
use crate::RHAI_OPERATIONS_MAX;

/// The runner has told this process to end its script. Never lowered: the runner gives it no other one afterwards.
static OVER: AtomicBool = AtomicBool::new(false);

/// Takes the signal that asks processes to end for that order.
pub(super) fn hear_signals() {
    extern "C" fn note(_: libc::c_int) {
        OVER.store(true, Ordering::Relaxed);
    }
    let note: extern "C" fn(libc::c_int) = note;
    // SAFETY: the handler stores to an atomic, which is allowed at any moment. Reads and writes that it interrupts are
    // begun again by their callers.
    unsafe { libc::signal(libc::SIGTERM, note as *const () as libc::sighandler_t) };
}

/// The limits of one script. Clones are the same.
#[derive(Clone)]
pub(super) struct EngineLimits(Arc<EngineLimitsInner>);

struct EngineLimitsInner {
    memory_bytes: u64,
    /// Steps of functions that do more than one.
    spent: AtomicU64,
}

impl EngineLimits {
    /// Creates the limits of a script that may hold this many bytes.
    pub(super) fn new(memory_bytes: u64) -> Self {
        Self(Arc::new(EngineLimitsInner { memory_bytes, spent: AtomicU64::new(0) }))
    }

    /// Returns true if the runner told the script to end.
    pub(super) fn is_over(&self) -> bool {
        OVER.load(Ordering::Relaxed)
    }

    /// Notes that the runner told the script to end.
    pub(super) fn note_over(&self) {
        OVER.store(true, Ordering::Relaxed);
    }

    /// Returns true if the script has to end now, for any reason.
    pub(super) fn exceeded(&self) -> bool {
        self.is_over() || memory::held() > self.0.memory_bytes
    }

    /// Ends the script if it has to end now. For functions that take their time.
    ///
    /// # Errors
    /// What scripts cannot catch.
    pub(super) fn look(&self) -> EvalResult<()> {
        if self.exceeded() {
            return Err(EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE).into());
        }
        Ok(())
    }

    /// Counts steps of a function that does more than one.
    ///
    /// # Errors
    /// As [`Self::look`], and when these are too many.
    pub(super) fn spend(&self, steps: u64) -> EvalResult<()> {
        self.look()?;
        if self.0.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) > RHAI_OPERATIONS_MAX {
            return Err(EvalAltResult::ErrorTooManyOperations(Position::NONE).into());
        }
        Ok(())
    }
}
