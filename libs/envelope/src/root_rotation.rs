//! How a coordinator came from one root to the next ones.

use std::collections::BTreeSet;

use identity::VerifyingKey;

use crate::{Envelope, Refusal, RootChange};

/// Changes that may follow each other.
pub const CHANGES_MAX: usize = 32;

/// Changes of root that follow each other: who listened to any root of it listens to the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RootChain {
    /// Oldest first; never empty.
    roots: Vec<VerifyingKey>,
    last: VerifyingKey,
}

impl RootChain {
    /// Reads changes, oldest first. Each is signed by both of its roots, and begins with the root that the one before it
    /// ends with.
    ///
    /// # Errors
    /// What [`RootChange::read`] says; [`Refusal::Malformed`] when there are none or too many, or they do not follow each
    /// other.
    pub fn read<'a>(changes: impl IntoIterator<Item = &'a Envelope>) -> Result<Self, Refusal> {
        let malformed = |why: String| Err(Refusal::Malformed(format!("changes of root: {why}")));
        let mut roots: Vec<VerifyingKey> = Vec::new();
        let mut last: Option<VerifyingKey> = None;
        for envelope in changes {
            if roots.len() >= CHANGES_MAX {
                return malformed(format!("there are more than {CHANGES_MAX}"));
            }
            let RootChange { old, new } = RootChange::read(envelope)?;
            if last.is_some_and(|last| last != old) {
                return malformed(format!("that of {old} does not follow the one before it"));
            }
            roots.push(old);
            last = Some(new);
        }
        let Some(last) = last else { return malformed("there are none".to_owned()) };
        let distinct: BTreeSet<_> = roots.iter().chain([&last]).map(|root| *root.as_bytes()).collect();
        if distinct.len() <= roots.len() {
            return malformed("a root comes twice".to_owned());
        }
        Ok(Self { roots, last })
    }

    /// The roots that were succeeded, oldest first.
    #[must_use]
    pub fn retired_roots(&self) -> &[VerifyingKey] {
        &self.roots
    }

    /// The root from now on.
    #[must_use]
    pub const fn current_root(&self) -> VerifyingKey {
        self.last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use identity::SigningKey;

    #[test]
    fn changes_follow_each_other() {
        let [a, b, c] = [(); 3].map(|()| SigningKey::generate());
        let (first, second) = (RootChange::announce(&a, &b), RootChange::announce(&b, &c));
        let read = RootChain::read([&first, &second]).expect("they do");
        assert_eq!(
            (read.retired_roots(), read.current_root()),
            (&[a.verifying_key(), b.verifying_key()][..], c.verifying_key())
        );
        let back = RootChange::announce(&c, &a);
        for wrong in [vec![], vec![&second, &first], vec![&first, &first], vec![&first, &second, &back]] {
            assert!(matches!(RootChain::read(wrong), Err(Refusal::Malformed(_))));
        }
        let forged = Envelope { payload: second.payload, ..first.clone() };
        assert_eq!(RootChain::read([&first, &forged]), Err(Refusal::BadSignature));
    }
}
