//! Sources that are read again from a place before the one that they were read to.
//!
//! Inputs that were applied are recognised and change nothing, so only missed ones take effect. Verbs are never read again: their
//! requests are known for a day only, and an old request may not be wanted any more.

use broker::ReceiptHandle;
use model::CorrelationId;
use store::RowOperation;
use tokio::sync::mpsc;
use workflow::LaneRowKey;
use workflow::instance::encode;
use workflow::key::StoreTable;
use workflow::subject::ConsumerSource;

use super::intake::SourceRewind;
use super::{HeldRow, SagaLaneOwner};
use crate::lane::LaneExit;
use crate::lane::answers::{self, LaneRequestAnswer, LaneRequestOutcome, commit_answer};
use crate::lane::checkpoint::Checkpoint;
use crate::lane::rows::{LaneStore, row};
use crate::lane::source::SourceReaderCommand;

/// Request to set sources back, which waits until none of their inputs is worked on.
pub(super) struct PendingRewind {
    setting: SourceRewind,
    from: (usize, u64),
    receipt: ReceiptHandle,
}

impl SagaLaneOwner {
    /// Queues a request to set sources back.
    pub(super) fn begin_set_back(
        &mut self,
        setting: SourceRewind,
        number: usize,
        message: &broker::StreamDelivery,
    ) {
        let (from, receipt) = ((number, message.sequence), message.receipt.clone());
        self.setting_back.push_back(PendingRewind { setting, from, receipt });
        if self.setting_back.len() == 1 {
            self.lose_targets();
        }
    }

    /// Sources that the next waiting request sets back.
    fn targets(&self) -> Vec<usize> {
        let Some(next) = self.setting_back.front() else { return Vec::new() };
        let is_named = |source: &ConsumerSource| {
            let name = source.to_string();
            next.setting.sources.iter().any(|named| named.source == name)
        };
        let sources = self.sources.iter().enumerate();
        let named = sources.filter(|(_, state)| {
            !matches!(state.source, ConsumerSource::Verbs(_)) && is_named(&state.source)
        });
        named.map(|(number, _)| number).collect()
    }

    pub(super) fn is_target(&self, number: usize) -> bool {
        self.targets().contains(&number)
    }

    fn lose_targets(&mut self) {
        for number in self.targets() {
            if let Some(state) = self.sources.get_mut(number) {
                state.lost();
            }
            self.forget(number);
            self.command_reader(number, SourceReaderCommand::Drop);
        }
    }

    /// Sets sources back, unless one of their inputs is still worked on: its commit would note a position behind the new start.
    pub(super) async fn set_back(&mut self) -> Result<(), LaneExit> {
        let targets = self.targets();
        let is_ready = |number: &usize| self.is_lost[*number] && self.working_of[*number] == 0;
        if self.setting_back.is_empty() || !targets.iter().all(is_ready) {
            return Ok(());
        }
        let Some(PendingRewind { setting, from: (number, sequence), receipt }) =
            self.setting_back.pop_front()
        else {
            return Ok(());
        };
        let rows = std::sync::Arc::clone(&self.shared.rows);
        let mut ops = set_back(&rows, &setting).await?;
        ops.extend(self.sources.get_mut(number).and_then(|state| state.note_with(sequence)));
        let committed = commit_answer(
            &rows,
            &setting.request,
            setting.time.as_millis(),
            LaneRequestAnswer::new(&setting.request_hash, LaneRequestOutcome::Done),
            Vec::new(),
            ops,
        )
        .await?;
        for number in targets {
            if let Some(state) = self.sources.get_mut(number) {
                state.seen_until = 0;
            }
        }
        self.settle(number, sequence, true);
        receipt.ack();
        if let Some(to) = &setting.reply_to {
            answers::answer(rows.around(), to, &committed).await;
        }
        for number in 0..self.sources.len() {
            self.open_again(number);
        }
        self.lose_targets();
        Ok(())
    }
}

/// The checkpoint changes that set sources back.
pub(crate) async fn set_back(
    rows: &LaneStore,
    setting: &SourceRewind,
) -> Result<Vec<RowOperation>, LaneExit> {
    let mut ops = Vec::new();
    for named in &setting.sources {
        let key = LaneRowKey::checkpoint(&named.source);
        let Some(kept) = rows.get(&key).await? else { continue };
        let kept: Checkpoint = rows.decode(&kept)?;
        if let Some(before) = kept.set_back(named.to) {
            ops.push(RowOperation::Put(row(&key), encode(&before).into()));
        }
    }
    Ok(ops)
}

/// Finds the correlations with held inputs. Where nothing holds them back any more, the next one has to be applied; the former owner
/// may have gone before it did.
pub(super) async fn find_held(
    rows: std::sync::Arc<LaneStore>,
    to: mpsc::Sender<CorrelationId>,
) -> Result<(), LaneExit> {
    let mut range = StoreTable::Parked.range();
    while let Some(found) = rows.first(&range).await? {
        let held: HeldRow = rows.decode(&found)?;
        range.start = LaneRowKey::parked_of(&held.correlation).end;
        if to.send(held.correlation).await.is_err() {
            break;
        }
    }
    Ok(())
}
