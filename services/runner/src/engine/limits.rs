//! Limits after which the script of this process has to end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rhai::{Dynamic, EvalAltResult, Position};

use super::functions::EvalResult;
use super::memory;
use crate::RHAI_OPERATIONS_MAX;

/// Set when the runner has told this process to end its script. Never reset: the runner sends no other script afterwards.
static OVER: AtomicBool = AtomicBool::new(false);

/// Installs the handler of SIGTERM, by which the runner ends a script.
pub(super) fn install_signal_handler() {
    extern "C" fn note(_: libc::c_int) {
        OVER.store(true, Ordering::Relaxed);
    }
    let note: extern "C" fn(libc::c_int) = note;
    // SAFETY: the handler only stores to an atomic, which is async-signal-safe. Callers restart reads and writes that it
    // interrupts.
    unsafe { libc::signal(libc::SIGTERM, note as *const () as libc::sighandler_t) };
}

/// The limits of one script. Clones share them.
#[derive(Clone)]
pub(super) struct EngineLimits(Arc<EngineLimitsInner>);

struct EngineLimitsInner {
    memory_bytes: u64,
    /// Steps spent by functions that count as more than one.
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

    /// Ends the script if it has to end now. For long-running functions.
    ///
    /// # Errors
    /// An error that scripts cannot catch.
    pub(super) fn look(&self) -> EvalResult<()> {
        if self.exceeded() {
            return Err(EvalAltResult::ErrorTerminated(Dynamic::UNIT, Position::NONE).into());
        }
        Ok(())
    }

    /// Counts steps of a function that counts as more than one.
    ///
    /// # Errors
    /// Those of [`Self::look`], and an error when the script has too many steps.
    pub(super) fn spend(&self, steps: u64) -> EvalResult<()> {
        self.look()?;
        if self.0.spent.fetch_add(steps, Ordering::Relaxed).saturating_add(steps) > RHAI_OPERATIONS_MAX {
            return Err(EvalAltResult::ErrorTooManyOperations(Position::NONE).into());
        }
        Ok(())
    }
}
