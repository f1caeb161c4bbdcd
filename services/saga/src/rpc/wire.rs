//! Conversion of rows to messages.

pub(crate) mod dead_letter;
pub(crate) mod effect;
pub(crate) mod input;
mod manifest;
pub(crate) mod saga;

use model::TenantId;
use proto::convert::time;
use workflow::Json;

pub use self::manifest::{definition, problems};

/// A tenant as answers name it; empty where there are none.
pub(crate) fn tenant(tenant: &TenantId) -> String {
    tenant.as_str().to_owned()
}

/// Converts a count; larger ones become the largest `u32`.
pub(crate) fn count(of: impl TryInto<u32>) -> u32 {
    of.try_into().unwrap_or(u32::MAX)
}

/// A value as text; empty for none.
pub(crate) fn json(value: Option<&Json>) -> String {
    value.map(ToString::to_string).unwrap_or_default()
}

/// A moment.
#[expect(clippy::unnecessary_wraps, reason = "fields of messages are optional")]
pub(crate) fn moment(at: model::Timestamp) -> Option<prost_types::Timestamp> {
    Some(time::to_wire(at))
}
