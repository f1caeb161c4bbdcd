//! Addresses that actors give, which the coordinator would have to dial.

use model::{Address, Violations};

use super::StorageRpc;

impl StorageRpc {
    /// Notes an address that the coordinator does not dial.
    pub(super) fn check_address(&self, field: &str, address: Option<&Address>, violations: &mut Violations) {
        if let Some(address) = address {
            violations.take(field, self.addresses.check(address));
        }
    }

    /// Notes which of an actor's addresses the coordinator does not dial.
    pub(super) fn check_addresses<'a>(
        &self,
        addresses: impl IntoIterator<Item = &'a Address>,
        violations: &mut Violations,
    ) {
        for (i, address) in addresses.into_iter().enumerate() {
            self.check_address(&format!("address[{i}]"), Some(address), violations);
        }
    }
}
