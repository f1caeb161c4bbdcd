//! Flow files of effects: read and checked when manifests are loaded, and filled in for each call.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::Arc;

use flow_file::{FlowFile, FlowFileSource, SUBMIT_BYTES_MAX};
use model::{EffectName, Violation};
use workflow::Json;
use workflow::formula::{FormulaValueError, VariableScope};
use workflow::provider::{Effect, EffectAction as CallKind, FlowCall};
use yaml::{Problem, Problems};

use crate::providers::ProviderCall;

/// Flow files of a provider's effects, each checked as `flow validate` does.
#[derive(Debug, Clone, Default)]
pub struct FlowFiles(HashMap<EffectName, Arc<FlowFile>>);

/// Flow files that cannot be used, with every problem at its line and column.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct BadFlowFiles(pub Vec<Problems>);

impl FlowFiles {
    /// Reads the flow file of each effect that is a flow. Paths are relative to `directory`.
    ///
    /// # Errors
    /// Everything that is wrong with any of the files.
    pub fn read(effects: &[Arc<Effect>], directory: &Path) -> Result<Self, BadFlowFiles> {
        let (mut files, mut refused) = (HashMap::new(), Vec::new());
        for effect in effects {
            let CallKind::Flow(flow) = &effect.call else { continue };
            match read(flow, directory) {
                Ok(file) => drop(files.insert(effect.name.clone(), Arc::new(file))),
                Err(problems) => refused.push(problems),
            }
        }
        if refused.is_empty() { Ok(Self(files)) } else { Err(BadFlowFiles(refused)) }
    }

    /// Returns whether the same flows were read, with the same uploaded files.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        let is_same = |(effect, file): (&EffectName, &Arc<FlowFile>)| {
            other.0.get(effect).is_some_and(|other| file.is_same(other))
        };
        self.0.len() == other.0.len() && self.0.iter().all(is_same)
    }

    /// The flow file of an effect.
    pub(super) fn of(&self, effect: &EffectName) -> Option<&Arc<FlowFile>> {
        self.0.get(effect)
    }
}

fn read(flow: &FlowCall, directory: &Path) -> Result<FlowFile, Problems> {
    let path = directory.join(&flow.file).display().to_string();
    // Only the names of variables are known now; all values will be texts.
    let env: Vec<_> = flow.env.keys().map(|name| (name.clone(), String::new())).collect();
    let file = FlowFile::parse(FlowFileSource::open(&path)?, &env)?;
    if file.context.is_some() {
        return Err(file.locate(&[Violation {
            field: "flow.context".to_owned(),
            description: "the flow of an effect runs in the context of each tenant: leave `context` out"
                .to_owned(),
        }]));
    }
    let kept = "the flow of an effect runs in the contexts of several tenants, where this is another job: say what it executes";
    if let Some(problems) = file.created_job_problems(kept) {
        return Err(problems);
    }
    if !file.fits_one_call() {
        let message = format!("the flow of an effect has at most {SUBMIT_BYTES_MAX} bytes");
        return Err(Problems::new(&path, vec![Problem { place: None, message }]));
    }
    Ok(file)
}

/// Fills in the variables of a flow for a call. A variable without a value is left out, so that the flow's own value remains.
pub(super) fn variables(
    call: &ProviderCall,
    flow: &FlowCall,
) -> Result<BTreeMap<String, String>, FormulaValueError> {
    let command = Json::text(call.command);
    let scope = VariableScope::new().with("input", &call.input).with("command_id", &command);
    let mut variables = BTreeMap::new();
    for (name, template) in &flow.env {
        let text = match template.value(&scope)? {
            Json::Null => continue,
            Json::Text(text) => text,
            // Numbers and booleans as written, lists and objects as JSON.
            other => other.to_string(),
        };
        variables.insert(name.clone(), text);
    }
    Ok(variables)
}
