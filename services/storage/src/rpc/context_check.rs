//! Streams of checks of contexts.

use futures_util::StreamExt as _;
use model::{ContextId, Timestamp};
use proto::v1;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::{StorageResponseStream, StorageRpc};
use crate::checking::{CheckFinding, CheckReport, CheckTotals, FindingCode};

/// Answers of a check that wait for the caller.
const REPORTS_AHEAD: usize = 16;

impl StorageRpc {
    /// Begins the check of a context, or of what belongs to none.
    pub(super) async fn begin_check(
        &self,
        request: v1::CheckContextRequest,
    ) -> Result<StorageResponseStream<v1::CheckContextResponse>, Status> {
        let v1::CheckContextRequest { context_id, repair } = request;
        let (store, now) = (self.hub.store(), Timestamp::now());
        let (reports, sent) = mpsc::channel::<CheckReport>(REPORTS_AHEAD);
        let (failures, failed) = mpsc::channel(1);
        if context_id == 0 {
            let check = store.begin_global_check(repair, reports, now).await?;
            tokio::spawn(async move { end_check(check.run().await, context_id, failures).await });
        } else {
            let check = store.begin_check(ContextId(context_id), repair, reports, now).await?;
            tokio::spawn(async move { end_check(check.run().await, context_id, failures).await });
        }
        let answers = ReceiverStream::new(sent).map(|report| Ok(report_to_wire(report)));
        Ok(self.until_stop(answers.chain(ReceiverStream::new(failed))))
    }
}

/// Sends why a check broke off, behind the answers.
async fn end_check(
    ended: crate::error::Result<()>,
    context: u32,
    failures: mpsc::Sender<Result<v1::CheckContextResponse, Status>>,
) {
    if let Err(error) = ended {
        tracing::warn!(context, %error, "a check broke off");
        // Without a reader nobody asks why.
        let _ = failures.send(Err(Status::from(error))).await;
    }
}

fn report_to_wire(report: CheckReport) -> v1::CheckContextResponse {
    let CheckReport { keys, findings, totals } = report;
    let findings = findings.into_iter().map(finding_to_wire).collect();
    let totals = totals.map(|CheckTotals { findings, repairable, repaired, uncounted }| {
        v1::ContextCheckTotals { findings, repairable, repaired, uncounted }
    });
    v1::CheckContextResponse { keys, findings, totals }
}

fn finding_to_wire(finding: CheckFinding) -> v1::ContextFinding {
    let CheckFinding { code, key, problem, repair, is_repaired } = finding;
    let can_be_repaired = !repair.is_empty();
    v1::ContextFinding { code: code_to_wire(code).into(), key, problem, can_be_repaired, is_repaired, repair }
}

fn code_to_wire(code: FindingCode) -> v1::ContextFindingCode {
    let name = format!("CONTEXT_FINDING_CODE_{}", code.name());
    v1::ContextFindingCode::from_str_name(&name).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_has_one_on_the_wire() {
        for code in FindingCode::ALL {
            assert_ne!(code_to_wire(*code), v1::ContextFindingCode::Unspecified, "{code:?}");
        }
    }
}
