//! Which nodes come before which, for many pairs at once.

use std::collections::HashMap;

use crate::graph::{Graph, NodeIndex};

/// Ancestors that are followed in one pass over the graph.
const BATCH: usize = 512;
const WORDS: usize = BATCH / 64;
type AncestorMask = [u64; WORDS];

/// A pair to decide: does `ancestor` come before `node`?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AncestorQuery {
    pub(crate) node: NodeIndex,
    pub(crate) ancestor: NodeIndex,
}

/// The positions of those `queries` whose answer is no, ascending.
///
/// Direct dependencies are answered from the edges. For the others, sets of up to 512 ancestors travel along the edges
/// together, only between the first ancestor and the last node in question, so references over a few steps stay cheap even
/// in the largest graph.
pub(crate) fn unreachable(graph: &Graph, queries: &[AncestorQuery]) -> Vec<usize> {
    let mut refused = Vec::new();
    let mut far = Vec::new();
    let mut seen_by = vec![None; graph.len()];
    let mut seen_for = None;
    for (position, query) in queries.iter().enumerate() {
        if seen_for != Some(query.node) {
            seen_for = Some(query.node);
            for dependency in graph.dependencies(query.node) {
                seen_by[dependency.index()] = seen_for;
            }
        }
        if seen_by[query.ancestor.index()] == seen_for {
            continue;
        }
        if graph.rank(query.ancestor) >= graph.rank(query.node) {
            refused.push(position);
        } else {
            far.push(position);
        }
    }
    far.sort_unstable_by_key(|&position| graph.rank(queries[position].ancestor));
    let mut masks = if far.is_empty() { Vec::new() } else { vec![[0; WORDS]; graph.len()] };
    let mut rest = far.as_slice();
    while !rest.is_empty() {
        let (batch, bits) = take_batch(graph, queries, rest);
        rest = &rest[batch.len()..];
        spread(graph, queries, batch, &bits, &mut masks);
        refused.extend(batch.iter().copied().filter(|&position| {
            let query = queries[position];
            let bit = bits[&query.ancestor];
            masks[graph.rank(query.node)][bit / 64] & (1 << (bit % 64)) == 0
        }));
    }
    refused.sort_unstable();
    refused
}

/// The longest front part of `positions` that names at most [`BATCH`] ancestors,
/// and the bit of each.
fn take_batch<'a>(
    graph: &Graph,
    queries: &[AncestorQuery],
    positions: &'a [usize],
) -> (&'a [usize], HashMap<NodeIndex, usize>) {
    let mut bits = HashMap::with_capacity(BATCH.min(graph.len()));
    for (count, &position) in positions.iter().enumerate() {
        let ancestor = queries[position].ancestor;
        if bits.len() == BATCH && !bits.contains_key(&ancestor) {
            return (&positions[..count], bits);
        }
        let next = bits.len();
        bits.entry(ancestor).or_insert(next);
    }
    (positions, bits)
}

/// Fills `masks`, by rank, between the batch's first ancestor and last asking node.
fn spread(
    graph: &Graph,
    queries: &[AncestorQuery],
    batch: &[usize],
    bits: &HashMap<NodeIndex, usize>,
    masks: &mut [AncestorMask],
) {
    let first = batch.first().map_or(0, |&position| graph.rank(queries[position].ancestor));
    let last = batch.iter().map(|&position| graph.rank(queries[position].node)).max().unwrap_or(first);
    for rank in first..=last {
        let node = graph.order()[rank];
        let mut mask: AncestorMask = [0; WORDS];
        for dependency in graph.dependencies(node) {
            let from = graph.rank(dependency);
            if from >= first {
                for (word, of_dependency) in mask.iter_mut().zip(&masks[from]) {
                    *word |= of_dependency;
                }
            }
        }
        if let Some(&bit) = bits.get(&node) {
            mask[bit / 64] |= 1 << (bit % 64);
        }
        masks[rank] = mask;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::GraphNode;
    use model::Name;
    use proptest::prelude::*;

    fn graph(edges: &[Vec<usize>]) -> Graph {
        let names: Vec<Name> = (0..edges.len()).map(|i| format!("n{i}").parse().expect("a name")).collect();
        let depends: Vec<Vec<Name>> =
            edges.iter().map(|deps| deps.iter().map(|&d| names[d].clone()).collect()).collect();
        let nodes: Vec<_> =
            names.iter().zip(&depends).map(|(name, depends)| GraphNode { name, depends }).collect();
        Graph::build(&nodes).expect("earlier nodes only")
    }

    fn comes_before(edges: &[Vec<usize>], ancestor: usize, node: usize) -> bool {
        edges[node].iter().any(|&d| d == ancestor || comes_before(edges, ancestor, d))
    }

    proptest! {
        #[test]
        fn answers_are_those_of_a_plain_search(
            picks in proptest::collection::vec(proptest::collection::btree_set(0_usize..12, 0..3), 1..12)
        ) {
            let edges: Vec<Vec<usize>> = picks
                .iter()
                .enumerate()
                .map(|(i, deps)| deps.iter().copied().filter(|&d| d < i).collect())
                .collect();
            let graph = graph(&edges);
            let queries: Vec<AncestorQuery> = (0..edges.len())
                .flat_map(|node| (0..edges.len()).map(move |ancestor| AncestorQuery {
                    node: NodeIndex::new(node),
                    ancestor: NodeIndex::new(ancestor),
                }))
                .collect();
            let expected: Vec<usize> = queries
                .iter()
                .enumerate()
                .filter(|(_, q)| !comes_before(&edges, q.ancestor.index(), q.node.index()))
                .map(|(i, _)| i)
                .collect();
            prop_assert_eq!(unreachable(&graph, &queries), expected);
        }
    }

    #[test]
    fn more_ancestors_than_fit_one_pass() {
        let count = 3 * BATCH;
        let edges: Vec<Vec<usize>> = (0..count).map(|i| if i == 0 { vec![] } else { vec![i - 1] }).collect();
        let graph = graph(&edges);
        let last = NodeIndex::new(count - 1);
        let queries: Vec<AncestorQuery> =
            (0..count).map(|i| AncestorQuery { node: last, ancestor: NodeIndex::new(i) }).collect();
        assert_eq!(unreachable(&graph, &queries), [count - 1]);
    }
}
