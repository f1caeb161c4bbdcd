//! References in a condition: results of nodes, and fields of its flow.

use std::collections::BTreeSet;

use expression::Variables;
use model::Name;

use super::ConditionError;
use crate::template::{FlowField, is_word};

pub(super) const RESULTS: &str = "results";
pub(super) const FLOW: &str = "flow";

/// Refuses `results.count-a`, which reads as a subtraction but never is one: a node is no number.
pub(super) fn dashes(text: &str) -> Result<(), ConditionError> {
    let mut quote = None;
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(_), _) if escaped => escaped = false,
            (Some(_), '\\') => escaped = true,
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '"' | '\'' | '`') => quote = Some(c),
            (None, 'r') => dash_at(text, at)?,
            (None, _) => {}
        }
    }
    Ok(())
}

fn dash_at(text: &str, at: usize) -> Result<(), ConditionError> {
    let begins = !text[..at].ends_with(|c: char| is_word(c) || c == '.');
    let Some(name) = text[at..].strip_prefix("results.").filter(|_| begins) else { return Ok(()) };
    let word = |text: &str| text.find(|c| !is_word(c)).unwrap_or(text.len());
    let (node, rest) = name.split_at(word(name));
    if !node.contains('-') {
        return Ok(());
    }
    let key = rest.strip_prefix('.').map_or("<key>", |key| &key[..word(key)]);
    Err(ConditionError::Dash {
        written: format!("results.{node}"),
        instead: format!("results[\"{node}\"].{key}"),
    })
}

/// The results that were referred to.
#[derive(Debug, Default)]
pub(super) struct ReferenceCollector(pub(super) BTreeSet<(Name, String)>);

impl Variables for ReferenceCollector {
    type Error = ConditionError;

    /// `results.<node>.<key>` or `flow.<field>`.
    fn refer(&mut self, variable: &str, names: &[&str]) -> Result<usize, ConditionError> {
        match (variable, names) {
            (RESULTS, [node, key, ..]) => {
                let Ok(name) = node.parse::<Name>() else {
                    return Err(ConditionError::Incomplete { written: format!("results[{node:?}]") });
                };
                self.0.insert((name, (*key).to_owned()));
                Ok(2)
            }
            (RESULTS, [node]) => Err(ConditionError::Incomplete { written: format!("results.{node}") }),
            (FLOW, [field, ..]) => {
                if !FlowField::ALL.iter().any(|known| known.as_str() == *field) {
                    return Err(ConditionError::UnknownField { field: (*field).to_owned() });
                }
                Ok(1)
            }
            (RESULTS | FLOW, []) => Err(ConditionError::Incomplete { written: variable.to_owned() }),
            (name, _) => Err(unknown(name)),
        }
    }
}

fn unknown(name: &str) -> ConditionError {
    let hint =
        if name.contains("::") { "" } else { "; a key with `-` is written `results.<node>[\"<key>\"]`" };
    ConditionError::UnknownVariable { name: name.to_owned(), hint }
}
