//! `${{ … }}` in environment values: parsed once, rendered where the job runs.
//!
//! A reference is `results.<node>.<key>` or `flow.<field>`. Names may contain
//! `-` here; `results["count-a"]["a key"]` is understood as well.

use std::borrow::Cow;
use std::fmt;

use model::flow::EnvVars;
use model::limits::{ENV_RENDERED_BYTES_MAX, ENV_VALUE_RENDERED_BYTES_MAX};
use model::{Execution, Name, Reason, ReasonCode};

const OPEN: &str = "${{";
const CLOSE: &str = "}}";

/// A field of the flow that a value may refer to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FlowField {
    /// Number of the flow.
    Id,
    /// Uid of the flow, which is never used again.
    Uid,
    /// Name of the flow.
    Name,
    /// The number of its context.
    ContextId,
    /// Actor that owns the flow.
    CallerId,
}

impl FlowField {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Id, Self::Uid, Self::Name, Self::ContextId, Self::CallerId];

    /// Returns the field as it is written behind `flow.`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Id => "id",
            Self::Uid => "uid",
            Self::Name => "name",
            Self::ContextId => "context_id",
            Self::CallerId => "caller_id",
        }
    }
}

/// Reference in a value.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum TemplateReference {
    /// A key of a node's result.
    Result {
        /// The node.
        node: Name,
        /// The key.
        key: String,
    },
    /// A field of the flow.
    Flow(FlowField),
}

/// Characters of a key that are shown: a reference that cannot be filled in is part of the reason stored with its node.
const KEY_SHOWN_CHARS_MAX: usize = 128;

impl fmt::Display for TemplateReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Result { node, key } => {
                let shown =
                    key.char_indices().nth(KEY_SHOWN_CHARS_MAX).map_or(key.as_str(), |(at, _)| &key[..at]);
                let rest = if shown.len() < key.len() { "…" } else { "" };
                if key.chars().all(is_word) {
                    write!(f, "results.{node}.{shown}{rest}")
                } else {
                    write!(f, "results.{node}[{shown:?}{rest}]")
                }
            }
            Self::Flow(field) => write!(f, "flow.{}", field.as_str()),
        }
    }
}

/// Why a text is no [`EnvTemplate`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// `${{` without `}}`.
    #[error("`${{{{` at byte {at} has no `}}}}`")]
    Unclosed {
        /// Where it stands.
        at: usize,
    },
    /// The text between the braces is not a reference.
    #[error(
        "`{text}` is not a reference; write `results.<node>.<key>` or `flow.<field>`, field being id, uid, \
         name, context_id or caller_id"
    )]
    NotAReference {
        /// The text between the braces, shortened.
        text: String,
    },
}

/// A value with references in it, parsed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvTemplate(Vec<TemplateSegment>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateSegment {
    Text(String),
    Reference(TemplateReference),
}

impl EnvTemplate {
    /// Parses a value. A value without `${{` is plain text, whatever else it contains.
    ///
    /// # Errors
    /// A reference is malformed.
    pub fn parse(value: &str) -> Result<Self, TemplateError> {
        let mut segments = Vec::new();
        let mut at = 0;
        while let Some(found) = value[at..].find(OPEN) {
            let open = at + found;
            let inner = open + OPEN.len();
            let length = value[inner..].find(CLOSE).ok_or(TemplateError::Unclosed { at: open })?;
            if open > at {
                segments.push(TemplateSegment::Text(value[at..open].to_owned()));
            }
            let text = value[inner..inner + length].trim();
            let reference = parse_reference(text)
                .ok_or_else(|| TemplateError::NotAReference { text: text.chars().take(80).collect() })?;
            segments.push(TemplateSegment::Reference(reference));
            at = inner + length + CLOSE.len();
        }
        if at < value.len() {
            segments.push(TemplateSegment::Text(value[at..].to_owned()));
        }
        Ok(Self(segments))
    }

    /// Iterates over the references, in their order.
    pub fn references(&self) -> impl Iterator<Item = &TemplateReference> {
        self.0.iter().filter_map(|segment| match segment {
            TemplateSegment::Text(_) => None,
            TemplateSegment::Reference(reference) => Some(reference),
        })
    }

    /// Inserts the values that `lookup` finds. Beyond `bytes_max` bytes it stops and returns `None`.
    ///
    /// # Errors
    /// What `lookup` gives for a reference without a value.
    pub fn render<'a, E>(
        &self,
        bytes_max: usize,
        mut lookup: impl FnMut(&TemplateReference) -> Result<Cow<'a, str>, E>,
    ) -> Result<Option<String>, E> {
        let mut value = String::new();
        for segment in &self.0 {
            let part = match segment {
                TemplateSegment::Text(text) => Cow::Borrowed(text.as_str()),
                TemplateSegment::Reference(reference) => lookup(reference)?,
            };
            if value.len() + part.len() > bytes_max {
                return Ok(None);
            }
            value.push_str(&part);
        }
        Ok(Some(value))
    }
}

pub(crate) const fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || c == '-'
}

fn parse_reference(text: &str) -> Option<TemplateReference> {
    if let Some(field) = text.strip_prefix("flow.") {
        return FlowField::ALL.into_iter().find(|known| known.as_str() == field).map(TemplateReference::Flow);
    }
    let (node, rest) = parse_part(text.strip_prefix("results")?)?;
    let (key, rest) = parse_part(rest)?;
    (rest.is_empty()).then_some(())?;
    Some(TemplateReference::Result { node: node.parse().ok()?, key: key.to_owned() })
}

/// `.word` or `["any text without quotation marks"]`, and what follows.
fn parse_part(text: &str) -> Option<(&str, &str)> {
    let (part, rest) = if let Some(quoted) = text.strip_prefix("[\"") {
        quoted.split_once("\"]")?
    } else {
        let word = text.strip_prefix('.')?;
        word.split_at(word.find(|c| !is_word(c)).unwrap_or(word.len()))
    };
    (!part.is_empty()).then_some((part, rest))
}

/// Why an environment cannot be rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RenderError {
    /// A value is malformed.
    #[error("variable {variable} is malformed")]
    Malformed {
        /// Name of the variable.
        variable: String,
        /// The error in its value.
        source: TemplateError,
    },
    /// A node that completed did not give the key.
    #[error("variable {variable} refers to {reference}, which was not given")]
    MissingResult {
        /// Name of the variable.
        variable: String,
        /// The reference without a value.
        reference: TemplateReference,
    },
    /// A value is beyond its limit.
    #[error("variable {variable} has more than {ENV_VALUE_RENDERED_BYTES_MAX} bytes when rendered")]
    ValueTooLarge {
        /// Name of the variable.
        variable: String,
    },
    /// The values together are beyond their limit.
    #[error("the environment has more than {ENV_RENDERED_BYTES_MAX} bytes when rendered")]
    TooLarge,
}

impl RenderError {
    /// Converts the error to the reason of the node that fails for it.
    #[must_use]
    pub fn reason(&self) -> Reason {
        match self {
            Self::Malformed { source, .. } => {
                Reason::new(ReasonCode::RuntimeError, format!("{self}: {source}"))
            }
            Self::MissingResult { .. } => Reason::new(ReasonCode::MissingResult, self.to_string()),
            Self::ValueTooLarge { .. } | Self::TooLarge => {
                Reason::new(ReasonCode::EnvTooLarge, self.to_string())
            }
        }
    }
}

/// Renders an attempt's environment from what it carries.
///
/// A node in `inputs` completed, and a key that it did not give is an error. A node that is missing there ended otherwise,
/// and all its keys are empty.
///
/// # Errors
/// A key is missing or a limit passed.
pub fn render(execution: &Execution) -> Result<EnvVars, RenderError> {
    let mut total = 0;
    let mut rendered = EnvVars::new();
    for (variable, value) in &execution.env_vars {
        let value = if value.contains(OPEN) {
            render_value(execution, variable, value)?
        } else if value.len() > ENV_VALUE_RENDERED_BYTES_MAX {
            return Err(RenderError::ValueTooLarge { variable: variable.clone() });
        } else {
            value.clone()
        };
        total += variable.len() + value.len();
        if total > ENV_RENDERED_BYTES_MAX {
            return Err(RenderError::TooLarge);
        }
        rendered.insert(variable.clone(), value);
    }
    Ok(rendered)
}

fn render_value(execution: &Execution, variable: &str, value: &str) -> Result<String, RenderError> {
    let template = EnvTemplate::parse(value)
        .map_err(|source| RenderError::Malformed { variable: variable.to_owned(), source })?;
    let rendered = template.render(ENV_VALUE_RENDERED_BYTES_MAX, |reference| match reference {
        TemplateReference::Flow(field) => Ok(Cow::Owned(flow_field(execution, *field))),
        TemplateReference::Result { node, key } => match execution.inputs.get(node) {
            None => Ok(Cow::Borrowed("")),
            Some(result) => result.get(key).map(|text| Cow::Borrowed(text.as_str())).ok_or_else(|| {
                RenderError::MissingResult { variable: variable.to_owned(), reference: reference.clone() }
            }),
        },
    })?;
    rendered.ok_or_else(|| RenderError::ValueTooLarge { variable: variable.to_owned() })
}

fn flow_field(execution: &Execution, field: FlowField) -> String {
    match field {
        FlowField::Id => execution.flow_id.to_string(),
        FlowField::Uid => execution.job_key.flow.to_string(),
        FlowField::Name => execution.flow_name.to_string(),
        FlowField::ContextId => execution.context_id.to_string(),
        FlowField::CallerId => execution.caller_id.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::Uid;
    use model::{
        ActorId, Attempt, ContextId, ContextUid, FlowId, FlowUid, JobId, JobKey, ScriptSource, ScriptType,
    };
    use proptest::prelude::*;

    fn references(text: &str) -> Vec<String> {
        EnvTemplate::parse(text).expect("well-formed").references().map(ToString::to_string).collect()
    }

    #[test]
    fn references_are_found() {
        assert_eq!(references("plain } }} $ {{ x }}"), [""; 0]);
        assert_eq!(references("${{ results.count-a.total }}"), ["results.count-a.total"]);
        assert_eq!(references("${{results[\"count-a\"].total}}"), ["results.count-a.total"]);
        assert_eq!(references("${{ results.a[\"two words\"] }}"), ["results.a[\"two words\"]"]);
        assert_eq!(references("a${{flow.id}}b${{ flow.name }}"), ["flow.id", "flow.name"]);
    }

    #[test]
    fn what_is_no_reference_is_refused() {
        assert_eq!(EnvTemplate::parse("ab${{ flow.id }"), Err(TemplateError::Unclosed { at: 2 }));
        for bad in [
            "",
            "results",
            "results.a",
            "results.a.",
            "results..k",
            "results.a.b.c",
            "results.a b.c",
            "flow",
            "flow.status",
            "other.a.b",
            "results[a].b",
            "results[\"a\"",
            "results[\"a b\"].c",
            "resultsa.b",
        ] {
            let text = format!("${{{{ {bad} }}}}");
            assert_eq!(
                EnvTemplate::parse(&text),
                Err(TemplateError::NotAReference { text: bad.to_owned() }),
                "{bad}"
            );
        }
    }

    fn execution(env: &[(&str, &str)]) -> Execution {
        let a: Name = "count-a".parse().expect("a name");
        let key = JobKey {
            context: ContextUid(Uid::from_bits(1)),
            flow: FlowUid(Uid::from_bits(2)),
            job: JobId(7),
            attempt: Attempt(1),
        };
        Execution {
            context_id: ContextId(3),
            flow_id: FlowId(4),
            caller_id: ActorId(5),
            env_vars: env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect(),
            inputs: [(a, [("total".to_owned(), "x".repeat(40_000))].into())].into(),
            ..Execution::of_script(
                key,
                "demo".parse().expect("a name"),
                "report".parse().expect("a name"),
                ScriptType::Shell,
                ScriptSource::Inline("true".into()),
            )
        }
    }

    #[test]
    fn an_environment_is_rendered() {
        let env = render(&execution(&[
            ("PLAIN", "as it is"),
            ("FLOW", "${{flow.id}}/${{flow.name}}/${{flow.context_id}}/${{flow.caller_id}}"),
            ("GONE", "[${{ results.skipped.key }}]"),
            ("TOTAL", "${{ results.count-a.total }}"),
        ]))
        .expect("all there");
        assert_eq!(env["PLAIN"], "as it is");
        assert_eq!(env["FLOW"], "4/demo/3/5");
        assert_eq!(env["GONE"], "[]");
        assert_eq!(env["TOTAL"].len(), 40_000);
    }

    #[test]
    fn what_cannot_be_rendered_is_named() {
        let reason = |env: &[(&str, &str)]| render(&execution(env)).expect_err("refused").reason();
        let missing = reason(&[("X", "${{ results.count-a.other }}")]);
        assert_eq!(missing.code, ReasonCode::MissingResult);
        assert!(missing.detail.contains("results.count-a.other"), "{missing}");
        let long = format!("${{{{ results.count-a.{} }}}}", "k".repeat(60_000));
        assert!(reason(&[("X", &long)]).detail.len() < 300, "a long key is not repeated");
        let total = "${{ results.count-a.total }}";
        assert_eq!(reason(&[("X", &total.repeat(2))]).code, ReasonCode::EnvTooLarge);
        let many: Vec<String> = (0..7).map(|i| format!("V{i}")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|name| (name.as_str(), total)).collect();
        assert_eq!(reason(&many).code, ReasonCode::EnvTooLarge);
        assert_eq!(reason(&[("X", "${{ nonsense }}")]).code, ReasonCode::RuntimeError);
    }

    proptest! {
        #[test]
        fn any_text_is_parsed_or_refused(text in "[$\\{\\} a.\"\\[\\]results]{0,60}") {
            if let Ok(template) = EnvTemplate::parse(&text) {
                let kept: Result<_, ()> = template.render(usize::MAX, |_| Ok(Cow::Borrowed("")));
                prop_assert!(kept.expect("nothing is missing").expect("no limit").len() <= text.len());
            }
        }
    }
}
