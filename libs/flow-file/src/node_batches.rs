//! Flows that are too large for one call, in parts that fit.

use prost::Message;
use proto::v1;

use model::limits::ADD_NODES_MAX;

/// A part has at most so many bytes, unless a single node has more.
pub const PART_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The nodes in their order, in parts of at most [`ADD_NODES_MAX`] nodes and [`PART_BYTES_MAX`] bytes. Each
/// with the place of its first node.
pub fn node_batches(nodes: &[v1::NodeSpec]) -> impl Iterator<Item = (usize, &[v1::NodeSpec])> {
    let mut first = 0;
    std::iter::from_fn(move || {
        let rest = nodes.get(first..).filter(|rest| !rest.is_empty())?;
        let mut bytes = 0;
        let fitting = rest.iter().take(ADD_NODES_MAX).take_while(|node| {
            bytes += node.encoded_len();
            bytes <= PART_BYTES_MAX
        });
        // A node that is larger by itself travels alone.
        let part = &rest[..fitting.count().max(1)];
        let place = first;
        first += part.len();
        Some((place, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize, when: usize) -> Vec<v1::NodeSpec> {
        vec![v1::NodeSpec { when: "x".repeat(when), ..Default::default() }; count]
    }

    #[test]
    fn parts_end_at_their_count_and_at_their_size() {
        let lengths = |nodes: &[v1::NodeSpec]| {
            node_batches(nodes).map(|(at, part)| (at, part.len())).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&nodes(2001, 3)), [(0, 1000), (1000, 1000), (2000, 1)]);
        assert_eq!(lengths(&nodes(5, 1024 * 1024 - 10)), [(0, 2), (2, 2), (4, 1)]);
        assert_eq!(lengths(&nodes(2, 3 * 1024 * 1024)), [(0, 1), (1, 1)]);
        assert_eq!(lengths(&[]), []);
    }
}
