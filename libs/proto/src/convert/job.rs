//! Jobs.

use model::{BlobHash, JobSpec, ScriptSource};

use crate::convert::enums;
use crate::convert::node::blob_to_wire;
use crate::v1;

/// Scripts that are longer are named by their hashes where jobs are listed.
pub const LISTED_SCRIPT_BYTES_MAX: usize = 4096;

/// Converts a job's spec to the wire.
#[must_use]
pub fn spec_to_wire(spec: &JobSpec) -> v1::JobSpec {
    let JobSpec { script_type, script, env_vars, files, outputs, signature } = spec;
    let source = match script {
        ScriptSource::Inline(text) => v1::script::Source::Text(text.clone()),
        ScriptSource::Blob(blob) => v1::script::Source::Blob(blob_to_wire(blob)),
    };
    v1::JobSpec {
        script_type: enums::script_type_to_wire(*script_type).into(),
        script: Some(v1::Script { source: Some(source) }),
        env_vars: env_vars.clone(),
        files: files.iter().map(|(name, blob)| (name.clone(), blob_to_wire(blob))).collect(),
        outputs: outputs.clone(),
        signature: signature.clone().unwrap_or_default(),
    }
}

/// Converts a job's spec for a list, where a long script is named by its hash.
#[must_use]
pub fn listed_spec_to_wire(spec: &JobSpec) -> v1::JobSpec {
    let mut wire = spec_to_wire(spec);
    if let ScriptSource::Inline(text) = &spec.script
        && text.len() > LISTED_SCRIPT_BYTES_MAX
    {
        let blob = v1::BlobRef { sha256: BlobHash::of(text.as_bytes()).to_string(), size: text.len() as u64 };
        wire.script = Some(v1::Script { source: Some(v1::script::Source::Blob(blob)) });
    }
    wire
}
