//! Collections that are listed in pages.

pub(crate) use rpc::PageRequest;

/// Collection that is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PagedCollection {
    /// Flows of a context.
    Flows,
    /// Nodes of a flow.
    Nodes,
    /// Messages of a context or a flow.
    Messages,
    /// Messages that will not arrive.
    DeadLetters,
    /// Actors.
    Actors,
    /// Contexts.
    Contexts,
    /// Audit entries.
    Audit,
    /// Jobs of a context or a flow.
    Jobs,
    /// Runners of a context.
    Runners,
}
