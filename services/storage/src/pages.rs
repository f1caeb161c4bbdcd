//! What there are pages of.

pub(crate) use rpc::Page;

/// What is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PageOf {
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
    /// Who did what.
    Audit,
    /// Jobs of a context or a flow.
    Jobs,
    /// Runners of a context.
    Runners,
}
