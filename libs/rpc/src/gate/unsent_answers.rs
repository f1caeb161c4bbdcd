//! Large answers on their way to callers.
//!
//! A caller that reads slowly, or not at all, makes the server keep the answer. HTTP/2 is given an answer in small
//! pieces, as the caller reads them, and the rest is kept here, where it can be cut for the sake of others.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use tokio::time::Instant;

use crate::gate::budget::{BudgetOwner, BytesPermit};
use crate::lock::lock;

/// Bytes that HTTP/2 is given at once, as many as its frames have by themselves (RFC 9113, `SETTINGS_MAX_FRAME_SIZE`).
const PIECE_BYTES: usize = 16 * 1024;
/// An answer of which nothing was taken for so long gives way to others.
pub(crate) const UNREAD_MAX: Duration = Duration::from_secs(10);

/// All answers of a process of which something is still to be sent.
#[derive(Debug, Default)]
pub(crate) struct UnsentAnswers(Arc<Mutex<UnsentAnswerTable>>);

#[derive(Debug, Default)]
struct UnsentAnswerTable {
    by_number: HashMap<u64, UnsentAnswer>,
    last: u64,
}

/// Rest of one answer that is still to be sent.
#[derive(Debug)]
struct UnsentAnswer {
    owner: BudgetOwner,
    bytes: Bytes,
    held: BytesPermit,
    taken_at: Instant,
}

/// An answer that is kept until it is sent, cut or dropped.
#[derive(Debug)]
pub(crate) struct UnsentAnswerGuard {
    answers: Arc<Mutex<UnsentAnswerTable>>,
    number: u64,
}

/// The next piece of an answer.
#[derive(Debug)]
pub(crate) enum UnsentChunk {
    Next(Bytes),
    Last(Bytes),
    /// The rest has given way.
    Cut,
}

/// Bytes that HTTP/2 has, with the room that they take.
struct PermittedBytes {
    bytes: Vec<u8>,
    _held: Option<BytesPermit>,
}

impl AsRef<[u8]> for PermittedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl UnsentAnswers {
    /// Keeps an answer of this owner, and the room that it holds.
    pub(crate) fn keep(&self, owner: BudgetOwner, bytes: Bytes, held: BytesPermit) -> UnsentAnswerGuard {
        let mut answers = lock(&self.0);
        answers.last += 1;
        let number = answers.last;
        answers.by_number.insert(number, UnsentAnswer { owner, bytes, held, taken_at: Instant::now() });
        UnsentAnswerGuard { answers: Arc::clone(&self.0), number }
    }

    /// Cuts answers that are not being read until so many bytes are free, and gives how many that were: first those that have
    /// waited longest, of this owner; without one, of the owner with most first.
    pub(crate) fn cut(&self, whose: Option<BudgetOwner>, bytes: usize, now: Instant) -> u64 {
        let mut answers = lock(&self.0);
        let mut of_one = HashMap::<BudgetOwner, usize>::new();
        for answer in answers.by_number.values() {
            *of_one.entry(answer.owner).or_default() += answer.bytes.len();
        }
        let is_unread = |answer: &UnsentAnswer| now.saturating_duration_since(answer.taken_at) >= UNREAD_MAX;
        let mut unread: Vec<_> = answers
            .by_number
            .iter()
            .filter(|(_, answer)| is_unread(answer) && whose.is_none_or(|owner| owner == answer.owner))
            .map(|(number, answer)| (Reverse(of_one.get(&answer.owner)), answer.taken_at, *number))
            .collect();
        unread.sort_unstable();
        let (mut free, mut cut) = (0, Vec::new());
        for (_, _, number) in unread {
            if free >= bytes {
                break;
            }
            let answer = answers.by_number.remove(&number);
            free += answer.as_ref().map_or(0, |answer| answer.bytes.len());
            cut.extend(answer);
        }
        // They are dropped without the lock.
        drop(answers);
        cut.len() as u64
    }
}

impl UnsentAnswerGuard {
    /// Takes a piece off it. A copy: otherwise HTTP/2 would keep the whole answer with the first piece of it.
    pub(crate) fn piece(&self) -> UnsentChunk {
        let Some((bytes, held, is_last)) = self.split() else { return UnsentChunk::Cut };
        let piece = Bytes::from_owner(PermittedBytes { bytes: bytes.to_vec(), _held: held });
        if is_last { UnsentChunk::Last(piece) } else { UnsentChunk::Next(piece) }
    }

    /// The next bytes with their room, and whether they are the last.
    fn split(&self) -> Option<(Bytes, Option<BytesPermit>, bool)> {
        let mut answers = lock(&self.answers);
        let answer = answers.by_number.get_mut(&self.number)?;
        let bytes = answer.bytes.split_to(PIECE_BYTES.min(answer.bytes.len()));
        if answer.bytes.is_empty() {
            let held = answers.by_number.remove(&self.number).map(|answer| answer.held);
            return Some((bytes, held, true));
        }
        answer.taken_at = Instant::now();
        let held = answer.held.split(bytes.len());
        Some((bytes, held, false))
    }
}

impl Drop for UnsentAnswerGuard {
    fn drop(&mut self) {
        let answer = lock(&self.answers).by_number.remove(&self.number);
        drop(answer);
    }
}
