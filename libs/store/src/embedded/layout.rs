//! How rows lie in the map.
//!
//! A row is `{sg:<lane>}:<key>`, as in a shared store. A row that expires has a second key, made of `u`, its time of expiry
//! in eight bytes and its own key, so that expired rows are found in order.

use crate::{LaneKey, RowKey, StoreError};

/// Prefix of these second keys.
const ENDS: u8 = b'u';

/// A row's key.
pub(super) fn physical(lane: &LaneKey, key: &RowKey) -> Vec<u8> {
    let tag = if lane.as_str().is_empty() { "{sg".to_owned() } else { format!("{{sg:{lane}") };
    format!("{tag}}}:{key}").into_bytes()
}

/// The key of a lane's fence.
pub(super) fn fence_key(lane: &LaneKey) -> Vec<u8> {
    physical(lane, &RowKey::new("fence"))
}

/// Undoes [`physical`], but for the lane.
pub(super) fn decode_key(physical: &[u8]) -> Result<RowKey, StoreError> {
    let text = std::str::from_utf8(physical).ok().and_then(|text| text.split_once("}:"));
    let key = text.map(|(_, key)| RowKey::new(key));
    key.ok_or_else(|| StoreError::Damaged { why: "a key has no lane".to_owned() })
}

/// The key by which the end of a row is found.
pub(super) fn end(until: u64, physical: &[u8]) -> Vec<u8> {
    let mut key = vec![ENDS];
    key.extend(until.to_be_bytes());
    key.extend(physical);
    key
}

/// Takes such a key apart; nothing for a key of another kind.
pub(super) fn decode_end(key: &[u8]) -> Option<(u64, &[u8])> {
    let (until, physical) = key.strip_prefix(&[ENDS])?.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*until), physical))
}

/// Lower bound of the second keys.
pub(super) const FIRST_END: [u8; 1] = [ENDS];
