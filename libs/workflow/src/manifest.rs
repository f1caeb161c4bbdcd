//! Manifests: YAML files with sagas and providers of effects.
//!
//! A file has any number of documents. Every problem of a document is found at once, each with its line and column;
//! [`crate::catalog`] checks the documents against each other.

mod calls;
mod canonical;
mod fields;
pub(crate) mod graph;
mod provider;
mod saga;
mod steps;

use std::sync::Arc;

use model::{BlobHash, EffectName};
use yaml::{Problem, Problems, SourcePosition, YamlNode, YamlValue, did_you_mean};

use self::fields::ManifestReader;
use crate::definition::Saga;
use crate::provider::EffectProvider;

/// A file, in bytes.
pub const MANIFEST_BYTES_MAX: usize = 1024 * 1024;

/// Keys that manifests may have, by the heading of `specs/saga.md` under which they are described.
pub const KEYS: [(&str, &[&str]); 26] = [
    ("Saga", saga::SAGA_KEYS),
    ("Source", saga::SOURCE_KEYS),
    ("Start", saga::START_KEYS),
    ("Step", steps::STEP_KEYS),
    ("Branch", steps::BRANCH_KEYS),
    ("Command", steps::COMMAND_KEYS),
    ("What follows", steps::ARM_KEYS),
    ("Timer", steps::TIMER_KEYS),
    ("Migration", saga::MIGRATE_KEYS),
    ("Limits of a saga", saga::LIMIT_KEYS),
    ("Provider", provider::PROVIDER_KEYS),
    ("HTTP transport", provider::HTTP_KEYS),
    ("HTTP authorization", provider::HTTP_AUTH_KEYS),
    ("SMTP transport", provider::SMTP_KEYS),
    ("Flow transport", provider::FLOW_KEYS),
    ("Every effect", provider::EFFECT_KEYS),
    ("HTTP effect", calls::HTTP_CALL_KEYS),
    ("HTTP request", calls::REQUEST_KEYS),
    ("Query", calls::QUERY_KEYS),
    ("Mail effect", calls::MAIL_KEYS),
    ("Flow effect", calls::FLOW_CALL_KEYS),
    ("Timeouts", provider::TIMEOUT_KEYS),
    ("Retry", provider::RETRY_KEYS),
    ("Limits of an effect", provider::CALL_LIMIT_KEYS),
    ("Breaker", provider::BREAKER_KEYS),
    ("Upcast", saga::UPCAST_KEYS),
];

/// Name of a manifest file in messages.
const KIND: &str = "a manifest";
const KINDS: [&str; 2] = ["Saga", "EffectProvider"];

/// One document of a manifest.
#[derive(Debug, Clone)]
pub struct ManifestDocument {
    /// Where it begins.
    pub place: SourcePosition,
    /// Definition that the document holds.
    pub definition: ManifestDefinition,
    /// The document in its one form, which [`read`] takes as well.
    pub text: String,
    /// Hash of that form.
    pub hash: BlobHash,
    /// Effects that it orders, and where.
    pub orders: Vec<(EffectName, SourcePosition)>,
}

/// Definition that a document holds.
#[derive(Debug, Clone)]
pub enum ManifestDefinition {
    /// A saga.
    Saga(Arc<Saga>),
    /// A provider of effects.
    Provider(Arc<EffectProvider>),
}

/// Contents of a manifest, as far as they can be read.
#[derive(Debug, Default)]
pub struct ParsedManifest {
    /// Documents that are good by themselves.
    pub documents: Vec<ManifestDocument>,
    /// Outlines of the documents that are not good.
    pub others: Vec<DocumentOutline>,
    /// Every problem of those.
    pub problems: Vec<Problem>,
}

/// Outline of a document that has problems: enough to check the other documents without it.
#[derive(Debug, Clone, Default)]
pub struct DocumentOutline {
    /// Effects that it orders, and where.
    pub orders: Vec<(EffectName, SourcePosition)>,
    /// Effects that it provides; `None` where that is unknown.
    pub provides: Option<Vec<EffectName>>,
}

/// Reads a manifest; `name` is what messages call the file.
///
/// # Errors
/// Everything that is wrong with it.
pub fn read(name: &str, text: &str) -> Result<Vec<ManifestDocument>, Problems> {
    let ParsedManifest { documents, others: _, problems } = read_lenient(text);
    if problems.is_empty() { Ok(documents) } else { Err(Problems::new(name, problems)) }
}

/// Reads as much of a manifest as can be read.
#[must_use]
pub fn read_lenient(text: &str) -> ParsedManifest {
    let refused = |problem: Problem| ParsedManifest {
        others: vec![DocumentOutline::default()],
        problems: vec![problem],
        ..ParsedManifest::default()
    };
    if text.len() > MANIFEST_BYTES_MAX {
        let message =
            format!("a manifest has at most {MANIFEST_BYTES_MAX} bytes, this one has {}", text.len());
        return refused(Problem { place: None, message });
    }
    let trees = match yaml::parse_all(text, KIND) {
        Ok(trees) => trees,
        Err(problem) => return refused(problem),
    };
    if trees.is_empty() {
        let message = "the manifest is empty; it begins with `kind: Saga` or `kind: EffectProvider`";
        return refused(Problem::at(SourcePosition::START, message));
    }
    let mut reading = ParsedManifest::default();
    for tree in &trees {
        match document(tree, &mut reading.problems) {
            Ok(document) => reading.documents.push(document),
            Err(outline) => reading.others.push(outline),
        }
    }
    reading
}

fn document(tree: &YamlNode, problems: &mut Vec<Problem>) -> Result<ManifestDocument, DocumentOutline> {
    let kind = match kind(tree) {
        Ok(kind) => kind,
        Err(problem) => {
            problems.push(problem);
            return Err(DocumentOutline::default());
        }
    };
    let text = canonical::text(tree);
    let hash = BlobHash::of(text.as_bytes());
    let mut reader = ManifestReader::default();
    let definition = match kind {
        "Saga" => reader.saga(tree, hash).map(|saga| ManifestDefinition::Saga(Arc::new(saga))),
        _ => reader.provider(tree).map(|provider| ManifestDefinition::Provider(Arc::new(provider))),
    };
    let (found, orders) = reader.finish();
    let is_good = found.is_empty();
    problems.extend(found);
    match definition.filter(|_| is_good) {
        Some(definition) => Ok(ManifestDocument { place: tree.place, definition, text, hash, orders }),
        None if kind == "Saga" => Err(DocumentOutline { orders, provides: Some(Vec::new()) }),
        None => Err(DocumentOutline { orders, provides: provided(tree) }),
    }
}

/// Names of the effects of a provider, even if it has other problems.
fn provided(tree: &YamlNode) -> Option<Vec<EffectName>> {
    let YamlValue::Map(entries) = &tree.value else { return None };
    let effects = entries.iter().find(|entry| entry.key == "effects")?;
    let YamlValue::Map(effects) = &effects.value.value else { return None };
    Some(effects.iter().filter_map(|effect| effect.key.parse().ok()).collect())
}

/// Reads the kind of a document.
fn kind(tree: &YamlNode) -> Result<&str, Problem> {
    let YamlValue::Map(entries) = &tree.value else {
        let message = format!("a document of a manifest is a mapping, not {}", tree.value.kind());
        return Err(Problem::at(tree.place, message));
    };
    let Some(entry) = entries.iter().find(|entry| entry.key == "kind") else {
        let message = "the document does not say what it is; write `kind: Saga` or `kind: EffectProvider`";
        return Err(Problem::at(tree.place, message));
    };
    let written = entry.value.value.as_text().unwrap_or_default();
    KINDS.into_iter().find(|kind| *kind == written).ok_or_else(|| {
        let hint = did_you_mean(written, &KINDS);
        let message = format!("there is no kind `{written}`; there are {}{hint}", KINDS.join(" and "));
        Problem::at(entry.value.place, message)
    })
}

#[cfg(test)]
mod tests;
