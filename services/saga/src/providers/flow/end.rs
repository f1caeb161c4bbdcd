//! Answers of calls, derived from the ends of the flows that ran for them.

use std::collections::BTreeMap;

use model::{FlowId, FlowStatus};
use workflow::Json;
use workflow::input::INPUT_BYTES_MAX;
use workflow::ledger::ProviderAnswer;

/// Failed nodes that an answer has.
pub(super) const FAILED_NODES_MAX: usize = 32;
/// Text of a reason, in characters.
const DETAIL_CHARS_MAX: usize = 1024;
/// A result, in bytes of JSON: the room of a message beside its envelope.
const RESULT_BYTES_MAX: usize = INPUT_BYTES_MAX - 64 * 1024;

/// The parts of a flow that calls need.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EffectFlow {
    pub(super) id: FlowId,
    pub(super) name: String,
    pub(super) status: FlowStatus,
    /// Results of the nodes that nothing depends on, as `<node>.<key>`.
    pub(super) result: BTreeMap<String, String>,
    /// True if part of the result is missing.
    pub(super) is_cut: bool,
}

/// A node that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FailedNode {
    pub(super) name: String,
    /// Code for programs; empty where there is none.
    pub(super) reason: String,
    /// Text for people.
    pub(super) detail: String,
    pub(super) exit_code: Option<i32>,
}

/// Turns a flow that has ended into the answer to its call; `failed` are the nodes that made it fail. `None` while it runs.
pub(super) fn answer(flow: &EffectFlow, failed: &[FailedNode]) -> Option<ProviderAnswer> {
    match flow.status {
        FlowStatus::Created | FlowStatus::Started => None,
        FlowStatus::Finished => Some(success(flow)),
        FlowStatus::Error => Some(failure(flow.id, failed)),
        FlowStatus::Cancelled => Some(ProviderAnswer::Cancelled),
    }
}

/// Turns results into JSON: `label.code` is the field `code` of the object `label`.
fn success(flow: &EffectFlow) -> ProviderAnswer {
    let mut nodes = BTreeMap::<String, BTreeMap<String, Json>>::new();
    for (place, value) in &flow.result {
        // Names of nodes have no dots; keys may.
        let Some((node, key)) = place.split_once('.') else { continue };
        nodes.entry(node.to_owned()).or_default().insert(key.to_owned(), Json::text(value));
    }
    let result = Json::Map(nodes.into_iter().map(|(node, values)| (node, Json::Map(values))).collect());
    if flow.is_cut || result.to_string().len() > RESULT_BYTES_MAX {
        let why = format!("the flow {} finished, but its result is too large for a saga", flow.id);
        return ProviderAnswer::Unknown { why };
    }
    ProviderAnswer::Succeeded(result)
}

fn failure(flow: FlowId, failed: &[FailedNode]) -> ProviderAnswer {
    let code = "flow_failed";
    let named: Vec<_> = failed.iter().map(|node| format!("`{}` ({})", node.name, node.reason)).collect();
    let message = match named.as_slice() {
        [] => format!("the flow {flow} failed"),
        named => format!("the flow {flow} failed: {}", named.join(", ")),
    };
    let nodes = failed.iter().map(|node| {
        let detail: String = node.detail.chars().take(DETAIL_CHARS_MAX).collect();
        Json::object([
            ("name", Json::text(&node.name)),
            ("reason", Json::text(&node.reason)),
            ("detail", Json::Text(detail)),
            ("exit_code", node.exit_code.map_or(Json::Null, |code| Json::Int(code.into()))),
        ])
    });
    let payload = Json::object([
        ("code", Json::text(code)),
        ("message", Json::Text(message)),
        ("flow_id", Json::Int(flow.0.into())),
        ("nodes", Json::List(nodes.collect())),
    ]);
    ProviderAnswer::Failed { code: code.to_owned(), payload }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(status: FlowStatus, result: &[(&str, &str)]) -> EffectFlow {
        let result = result.iter().map(|(place, value)| ((*place).to_owned(), (*value).to_owned())).collect();
        EffectFlow { id: FlowId(7), name: "saga-x".to_owned(), status, result, is_cut: false }
    }

    #[test]
    fn results_are_objects_of_their_nodes() {
        let finished =
            flow(FlowStatus::Finished, &[("label.code", "A-1"), ("label.a.b", "2"), ("other.n", "3")]);
        let Some(ProviderAnswer::Succeeded(result)) = answer(&finished, &[]) else { panic!("it finished") };
        assert_eq!(result.to_string(), r#"{"label":{"a.b":"2","code":"A-1"},"other":{"n":"3"}}"#);
        let Some(ProviderAnswer::Succeeded(result)) = answer(&flow(FlowStatus::Finished, &[]), &[]) else {
            panic!("it finished")
        };
        assert_eq!(result.to_string(), "{}");
    }

    #[test]
    fn a_cut_or_too_large_flow_result_is_no_success() {
        let cut = EffectFlow { is_cut: true, ..flow(FlowStatus::Finished, &[("a.b", "c")]) };
        let large = "\u{1}".repeat(RESULT_BYTES_MAX / 4);
        let large = flow(FlowStatus::Finished, &[("a.b", &large)]);
        for flow in [cut, large] {
            assert!(matches!(answer(&flow, &[]), Some(ProviderAnswer::Unknown { .. })));
        }
    }

    #[test]
    fn a_failure_names_its_nodes() {
        let node = FailedNode {
            name: "print".to_owned(),
            reason: "EXIT_CODE".to_owned(),
            detail: "x".repeat(DETAIL_CHARS_MAX + 1),
            exit_code: Some(3),
        };
        let answered = answer(&flow(FlowStatus::Error, &[]), &[node]);
        let Some(ProviderAnswer::Failed { code, payload }) = answered else { panic!("it failed") };
        assert_eq!(code, "flow_failed");
        assert_eq!(payload.get("message"), Some(&Json::text("the flow 7 failed: `print` (EXIT_CODE)")));
        let Some(Json::List(nodes)) = payload.get("nodes") else { panic!("nodes") };
        assert_eq!(nodes[0].get("exit_code"), Some(&Json::Int(3)));
        assert_eq!(nodes[0].get("detail").and_then(Json::as_text).map(str::len), Some(DETAIL_CHARS_MAX));
    }

    #[test]
    fn what_runs_has_no_answer_yet() {
        for status in [FlowStatus::Created, FlowStatus::Started] {
            assert_eq!(answer(&flow(status, &[]), &[]), None);
        }
        assert_eq!(answer(&flow(FlowStatus::Cancelled, &[]), &[]), Some(ProviderAnswer::Cancelled));
    }
}
