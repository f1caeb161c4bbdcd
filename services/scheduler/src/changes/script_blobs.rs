//! Scripts that are too long for a job's record and for the messages that carry it. They are stored as blobs before a flow refers
//! to them.

use std::collections::BTreeMap;

use model::job::BlobRef;
use model::limits::SCRIPT_INLINE_BYTES_MAX;
use model::{ActorId, BlobHash, NodeSpec, ScriptSource};
use proto::internal::v1 as internal;
use tonic::Status;

use crate::changes::submit::PART_BYTES_MAX;
use crate::clients::FlowStoreClient;

/// Keeps the long scripts of nodes as blobs, each once, and has the nodes refer to them.
///
/// # Errors
/// What storage answers.
pub(crate) async fn keep(
    store: &mut FlowStoreClient,
    (actor, context_id): (ActorId, u32),
    nodes: &mut [NodeSpec],
) -> Result<(), Status> {
    for scripts in parts(take_long(nodes)) {
        let on_behalf_of = actor.0;
        store.keep_scripts(internal::KeepScriptsRequest { context_id, scripts, on_behalf_of }).await?;
    }
    Ok(())
}

/// Puts references in the places of long scripts, and gives those.
fn take_long(nodes: &mut [NodeSpec]) -> BTreeMap<BlobHash, String> {
    let mut long = BTreeMap::new();
    for node in nodes {
        let ScriptSource::Inline(text) = &mut node.job.script else { continue };
        if text.len() > SCRIPT_INLINE_BYTES_MAX {
            let text = std::mem::take(text);
            let blob = BlobRef { sha256: BlobHash::of(text.as_bytes()), size: text.len() as u64 };
            node.job.script = ScriptSource::Blob(blob);
            long.insert(blob.sha256, text);
        }
    }
    long
}

/// Splits scripts into calls of bounded size: the scripts of jobs that were created before may exceed a submission.
fn parts(scripts: BTreeMap<BlobHash, String>) -> Vec<Vec<String>> {
    let (mut parts, mut bytes) = (Vec::<Vec<String>>::new(), 0);
    for script in scripts.into_values() {
        bytes += script.len();
        match parts.last_mut().filter(|_| bytes <= PART_BYTES_MAX) {
            Some(part) => part.push(script),
            None => {
                bytes = script.len();
                parts.push(vec![script]);
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::limits::SCRIPT_BYTES_MAX;

    #[test]
    fn calls_are_bounded() {
        let script = |n: u8| (BlobHash::of(&[n]), "x".repeat(SCRIPT_BYTES_MAX));
        let sizes =
            |count: u8| parts((0..count).map(script).collect()).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((sizes(0), sizes(1), sizes(5)), (vec![], vec![1], vec![2, 2, 1]));
    }
}
