//! Addresses that lead to the same node of the bus: its key, and its overlay address. Records that name either are records of that
//! node.

use std::collections::HashMap;

use mycelium::PublicKey;

/// The nodes that are known behind addresses.
#[derive(Debug, Default)]
pub struct NodeAddresses {
    by_key: HashMap<PublicKey, Vec<String>>,
    by_address: HashMap<String, PublicKey>,
}

impl NodeAddresses {
    /// Notes which node an address leads to, in place of any other. Returns false when that was known.
    pub fn note(&mut self, key: PublicKey, address: &str) -> bool {
        if self.by_address.get(address) == Some(&key) {
            return false;
        }
        self.forget(address);
        self.by_address.insert(address.to_owned(), key);
        self.by_key.entry(key).or_default().push(address.to_owned());
        true
    }

    /// Forgets an address.
    pub fn forget(&mut self, address: &str) {
        let Some(key) = self.by_address.remove(address) else { return };
        if let Some(spellings) = self.by_key.get_mut(&key) {
            spellings.retain(|known| known != address);
            if spellings.is_empty() {
                self.by_key.remove(&key);
            }
        }
    }

    /// The address that leads to a node, the one that was noted first.
    #[must_use]
    pub fn address_of(&self, key: PublicKey) -> Option<&String> {
        self.by_key.get(&key)?.first()
    }

    /// The node that an address leads to, once that is known.
    #[must_use]
    pub fn key_of(&self, address: &str) -> Option<PublicKey> {
        self.by_address.get(address).copied()
    }

    /// Returns every noted address of the node at this one; that one alone while nothing more is known of it.
    #[must_use]
    pub fn spellings(&self, address: &str) -> Vec<String> {
        let known = self.key_of(address).and_then(|key| self.by_key.get(&key));
        known.cloned().unwrap_or_else(|| vec![address.to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_several_addresses_and_an_address_one_node() {
        let (one, other) = (PublicKey::random(), PublicKey::random());
        let mut nodes = NodeAddresses::default();
        assert_eq!(nodes.spellings("ip"), ["ip"]);
        assert!(nodes.note(one, "key") && nodes.note(one, "ip") && !nodes.note(one, "ip"));
        assert_eq!(nodes.spellings("ip"), ["key", "ip"]);
        assert!(nodes.note(other, "ip"), "it moves");
        assert_eq!((nodes.spellings("key"), nodes.spellings("ip")), (vec!["key".into()], vec!["ip".into()]));
        assert_eq!((nodes.key_of("ip"), nodes.address_of(one)), (Some(other), Some(&"key".to_owned())));
        nodes.forget("ip");
        assert_eq!((nodes.key_of("ip"), nodes.address_of(other)), (None, None));
    }
}
