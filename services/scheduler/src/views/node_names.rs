//! Names of the nodes that others depend on. Records refer to nodes by their jobs' numbers, people by name.

use std::collections::{BTreeSet, HashMap};

use model::{FlowNode, JobId, Name};
use proto::convert;
use proto::convert::node::JobKeyPrefix;
use proto::v1;
use tonic::Status;

use crate::views::reader::FlowReader;

/// How many dependencies one answer names: with names of 128 bytes they stay far below the size of a message. A node with
/// more, or after others that used up the number, is sent with job numbers alone.
const NAMED_MAX: usize = 10_000;

/// Names of nodes of one flow, as far as they were seen or looked up.
#[derive(Debug, Default)]
pub(crate) struct NodeNames(HashMap<JobId, Name>);

impl NodeNames {
    /// Takes up the names of these nodes.
    pub(crate) fn remember(&mut self, nodes: &[FlowNode]) {
        self.0.extend(nodes.iter().map(|node| (node.job_id, node.name.clone())));
    }

    /// Nodes for one answer, with the names of those before them. Names that were not seen yet are read from the store.
    ///
    /// # Errors
    /// As storage's.
    pub(crate) async fn resolve_to_wire(
        &mut self,
        reader: &mut FlowReader,
        nodes: &[FlowNode],
        home: JobKeyPrefix,
    ) -> Result<Vec<v1::FlowNode>, Status> {
        self.remember(nodes);
        let depends = with_room(nodes).filter(|(_, fits)| *fits).flat_map(|(node, _)| &node.depends);
        let unseen: BTreeSet<JobId> = depends.copied().filter(|job| !self.0.contains_key(job)).collect();
        if !unseen.is_empty() {
            self.remember(&reader.nodes_of(&Vec::from_iter(unseen)).await?);
        }
        Ok(self.to_wire(nodes, home))
    }

    /// Nodes for one answer, with the names that were seen.
    pub(crate) fn to_wire(&self, nodes: &[FlowNode], home: JobKeyPrefix) -> Vec<v1::FlowNode> {
        let name = |job: &JobId| self.0.get(job).map(ToString::to_string).unwrap_or_default();
        let wire = |(node, fits): (&FlowNode, bool)| {
            let names = if fits { node.depends.iter().map(name).collect() } else { Vec::new() };
            convert::node::to_wire(node, home, names)
        };
        with_room(nodes).map(wire).collect()
    }
}

/// Nodes of one answer, each with whether its dependencies are named there.
fn with_room(nodes: &[FlowNode]) -> impl Iterator<Item = (&FlowNode, bool)> {
    let mut left = NAMED_MAX;
    nodes.iter().map(move |node| {
        let rest = left.checked_sub(node.depends.len());
        left = rest.unwrap_or(left);
        (node, rest.is_some())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{ContextUid, FlowUid, JobSpec, NodeSpec, ScriptType};

    fn node(id: u32, depends: impl Iterator<Item = u32>) -> FlowNode {
        let job = JobSpec::inline(ScriptType::Shell, "true");
        let spec = NodeSpec::new(format!("n{id}").parse().expect("a name"), job);
        FlowNode::new(JobId(id), &spec, depends.map(JobId).collect())
    }

    #[test]
    fn an_answer_names_dependencies_in_their_order_as_far_as_there_is_room() {
        let max = u32::try_from(NAMED_MAX).expect("a small number");
        let nodes =
            [node(1, 0..0), node(2, 0..0), node(3, [2, 1].into_iter()), node(4, 0..max), node(5, 1..3)];
        let mut names = NodeNames::default();
        names.remember(&nodes);
        let home = JobKeyPrefix { context: ContextUid(Uid::from_bits(1)), flow: FlowUid(Uid::from_bits(2)) };
        let wire = names.to_wire(&nodes, home);
        assert_eq!(wire[2].depends_names, ["n2", "n1"]);
        assert_eq!((wire[3].depends.len(), wire[3].depends_names.len()), (NAMED_MAX, 0));
        assert_eq!(wire[4].depends_names, ["n1", "n2"]);
    }
}
