//! Runner records of supervisors: where they are, for which contexts they work, and which conversation they ask for.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use model::{ContextId, Name, RunnerId, ScriptType};

/// Names a record.
pub type RecordKey = (ContextId, RunnerId);

/// Requirements of a record on the conversation with its supervisor.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConnectionRequirements {
    /// Key that the supervisor signs with; empty: any.
    pub signing_key: String,
    /// The supervisor is spoken to in plain JSON-RPC.
    pub plain: bool,
    /// Name of the secret that goes with plain requests; empty: none.
    pub secret: String,
    /// Script types that the supervisor executes, as the record says; empty: all.
    pub script_types: Vec<ScriptType>,
    /// The group that its jobs are for.
    pub group: Option<Name>,
}

impl ConnectionRequirements {
    /// Returns true when the record accepts this signing key. The transport identifies supervisors without one.
    fn fit(&self, key: Option<&str>) -> bool {
        self.plain || self.signing_key.is_empty() || key == Some(self.signing_key.as_str())
    }
}

/// The records, by the addresses that they name.
#[derive(Debug, Default)]
pub struct RunnerRecords {
    /// The records, with the address that each names.
    records: BTreeMap<RecordKey, String>,
    /// Records that the snapshot of the present view names, until it is complete.
    named: Option<BTreeSet<RecordKey>>,
    by_address: HashMap<String, AddressRecords>,
}

/// Records of one address.
#[derive(Debug, Default)]
struct AddressRecords {
    records: BTreeMap<RecordKey, ConnectionRequirements>,
    /// Requirements of the record that was removed last: a conversation goes on without records.
    last: ConnectionRequirements,
}

/// Lookups by the addresses of one supervisor: all spellings.
impl RunnerRecords {
    /// Begins a view: records that its snapshot does not name are gone.
    pub fn begin_view(&mut self) {
        self.named = Some(BTreeSet::new());
    }

    /// Takes over a record.
    pub fn put(&mut self, key: RecordKey, address: &str, demands: ConnectionRequirements) {
        self.remove(key);
        if let Some(named) = &mut self.named {
            named.insert(key);
        }
        self.records.insert(key, address.to_owned());
        let place = self.by_address.entry(address.to_owned()).or_default();
        place.records.insert(key, demands);
    }

    /// Ends the snapshot, and removes records that it did not name.
    pub fn end_snapshot(&mut self) {
        let Some(named) = self.named.take() else { return };
        let gone: Vec<_> = self.records.keys().filter(|key| !named.contains(key)).copied().collect();
        gone.into_iter().for_each(|key| self.remove(key));
    }

    /// Forgets a record.
    pub fn remove(&mut self, key: RecordKey) {
        let Some(address) = self.records.remove(&key) else { return };
        let Some(place) = self.by_address.get_mut(&address) else { return };
        if let Some(demands) = place.records.remove(&key) {
            place.last = demands;
        }
    }

    /// Finds a record of a context that names the address and accepts this signing key.
    #[must_use]
    pub fn find(&self, at: &[String], context: ContextId, key: Option<&str>) -> Option<RunnerId> {
        self.of_context(at, context).find(|(_, demands)| demands.fit(key)).map(|(runner, _)| runner)
    }

    /// Returns true when a record of a context names just this address.
    #[must_use]
    pub fn names(&self, address: &str, context: ContextId) -> bool {
        self.of_context(&[address.to_owned()], context).next().is_some()
    }

    /// Returns the key that the records demand, when none of them accepts this one.
    #[must_use]
    pub fn other_key(&self, at: &[String], key: &str) -> Option<String> {
        let demands = self.demands(at);
        match demands.iter().any(|demands| demands.fit(Some(key))) {
            true => None,
            false => demands.first().map(|demands| demands.signing_key.clone()),
        }
    }

    /// Returns the other key that a context's records demand. No record demands none: it may have been removed.
    #[must_use]
    pub fn other_key_for(&self, at: &[String], context: ContextId, key: Option<&str>) -> Option<String> {
        let mut demanded = None;
        for (_, demands) in self.of_context(at, context) {
            if demands.fit(key) {
                return None;
            }
            demanded = Some(demands.signing_key.clone());
        }
        demanded
    }

    /// Returns true when the supervisor is spoken to in plain JSON-RPC: when every record says so. A record that asks for
    /// signatures is not overridden by another.
    #[must_use]
    pub fn is_plain(&self, at: &[String]) -> bool {
        let demands = self.demands(at);
        !demands.is_empty() && demands.iter().all(|demands| demands.plain)
    }

    /// Returns the names of secrets for plain requests, and the contexts that name them; an empty one of a record that
    /// names none. A request of a context carries only secrets of its own records: no tenant's secret serves another.
    #[must_use]
    pub fn secrets(&self, at: &[String], context: Option<ContextId>) -> Vec<(ContextId, String)> {
        let records = self.places(at).flat_map(|place| &place.records);
        let named = records.filter(|((of, _), _)| context.is_none_or(|context| context == *of));
        named.map(|((of, _), demands)| (*of, demands.secret.clone())).collect()
    }

    /// Returns the script types that the supervisor executes according to the records, and in which group.
    #[must_use]
    pub fn offered(&self, at: &[String]) -> BTreeSet<(ScriptType, Option<Name>)> {
        let mut offered = BTreeSet::new();
        for demands in self.demands(at) {
            let types =
                if demands.script_types.is_empty() { &ScriptType::ALL[..] } else { &demands.script_types };
            offered.extend(types.iter().map(|script_type| (*script_type, demands.group.clone())));
        }
        offered
    }

    /// Returns the requirements on the supervisor: those of the records, or of the records removed last if none is left.
    fn demands<'a>(&'a self, at: &'a [String]) -> Vec<&'a ConnectionRequirements> {
        let stand: Vec<_> = self.places(at).flat_map(|place| place.records.values()).collect();
        if stand.is_empty() { self.places(at).map(|place| &place.last).collect() } else { stand }
    }

    fn places<'a>(&'a self, at: &'a [String]) -> impl Iterator<Item = &'a AddressRecords> {
        at.iter().filter_map(|address| self.by_address.get(address))
    }

    fn of_context<'a>(
        &'a self,
        at: &'a [String],
        context: ContextId,
    ) -> impl Iterator<Item = (RunnerId, &'a ConnectionRequirements)> {
        let of_context = (context, RunnerId(0))..=(context, RunnerId(u32::MAX));
        let records = self.places(at).flat_map(move |place| place.records.range(of_context.clone()));
        records.map(|((_, runner), demands)| (*runner, demands))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "mycelium:a";

    fn at(address: &str) -> [String; 1] {
        [address.to_owned()]
    }

    fn demands(signing_key: &str, plain: bool, secret: &str) -> ConnectionRequirements {
        ConnectionRequirements {
            signing_key: signing_key.to_owned(),
            plain,
            secret: secret.to_owned(),
            ..ConnectionRequirements::default()
        }
    }

    fn records(of: &[(u32, ConnectionRequirements)]) -> RunnerRecords {
        let mut records = RunnerRecords::default();
        for (context, demands) in of {
            records.put((ContextId(*context), RunnerId(1)), A, demands.clone());
        }
        records
    }

    #[test]
    fn a_pinned_key_is_the_only_one_for_its_context() {
        let mut records = records(&[(1, demands("k", false, "")), (2, demands("", false, ""))]);
        let works = |records: &RunnerRecords, context, key| {
            records.find(&at(A), ContextId(context), Some(key)).is_some()
        };
        assert!(works(&records, 1, "k") && works(&records, 2, "k"));
        assert!(
            !works(&records, 1, "other") && works(&records, 2, "other"),
            "another tenant's pin is its own"
        );
        assert_eq!(records.other_key(&at(A), "other"), None, "somebody may speak with it");
        assert_eq!(records.other_key_for(&at(A), ContextId(1), Some("other")), Some("k".to_owned()));
        assert_eq!(records.other_key_for(&at(A), ContextId(1), None), Some("k".to_owned()), "not heard yet");
        assert_eq!(records.other_key_for(&at(A), ContextId(3), Some("other")), None, "no record");
        records.remove((ContextId(2), RunnerId(1)));
        assert_eq!(records.other_key(&at(A), "other"), Some("k".to_owned()), "nobody may");
        records.remove((ContextId(1), RunnerId(1)));
        assert_eq!(records.other_key(&at(A), "k"), None);
        assert_eq!(
            records.other_key(&at(A), "other"),
            Some("k".to_owned()),
            "the record that went last stands"
        );
        assert_eq!(records.other_key(&at("mycelium:b"), "any"), None);
    }

    #[test]
    fn a_signed_conversation_stays_signed() {
        let plain = demands("", true, "s");
        let mut records = records(&[(1, plain.clone()), (2, plain.clone())]);
        assert!(records.is_plain(&at(A)) && !records.is_plain(&at("mycelium:b")));
        let named = |records: &RunnerRecords, context: Option<u32>| {
            let named = records.secrets(&at(A), context.map(ContextId));
            named.into_iter().map(|(ContextId(of), _)| of).collect::<Vec<_>>()
        };
        assert_eq!(records.secrets(&at(A), Some(ContextId(1))), [(ContextId(1), "s".to_owned())]);
        assert_eq!((named(&records, None), named(&records, Some(2))), (vec![1, 2], vec![2]));
        assert_eq!(named(&records, Some(3)), [0; 0], "nobody has another's");
        records.put((ContextId(3), RunnerId(1)), A, demands("k", false, ""));
        assert!(!records.is_plain(&at(A)));
        records.begin_view();
        records.put((ContextId(2), RunnerId(1)), A, plain);
        records.end_snapshot();
        assert_eq!(named(&records, None), [2]);
        records.remove((ContextId(2), RunnerId(1)));
        assert!(records.is_plain(&at(A)), "a conversation goes on as it was");
    }

    #[test]
    fn two_spellings_of_one_node_have_one_set_of_records() {
        const B: &str = "mycelium:[400::1]";
        let mut records = records(&[(1, demands("", false, ""))]);
        records.put((ContextId(2), RunnerId(4)), B, demands("", true, "s"));
        let both = [B.to_owned(), A.to_owned()];
        assert!(records.is_plain(&at(B)) && !records.is_plain(&both), "nobody is talked out of signatures");
        assert_eq!(records.find(&both, ContextId(1), Some("k")), Some(RunnerId(1)));
        assert_eq!(records.find(&both, ContextId(2), Some("k")), Some(RunnerId(4)));
        assert!(records.names(B, ContextId(2)) && !records.names(A, ContextId(2)));
        records.put((ContextId(1), RunnerId(1)), A, demands("k", false, ""));
        assert_eq!(records.other_key_for(&both, ContextId(1), Some("other")), Some("k".to_owned()));
        records.remove((ContextId(1), RunnerId(1)));
        assert!(records.is_plain(&both), "what is gone asks for nothing while another stands");
    }
}
